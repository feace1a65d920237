"""The log lines of a run, one after the other, also while it is being written."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onepass.errors import Refused
from onepass.record import Record


def open_record(run: Path | str | Record) -> Record:
    record = run if isinstance(run, Record) else Record(Path(run))
    if not (record.path / "config.json").is_file():
        raise Refused(f"`{record.path}` is no run: it has no `config.json`. `onepass runs` lists those there are.")
    return record


def lines(record: Record, *, wait: bool = True, every: float = 2.0) -> Iterator[dict[str, float]]:
    """Each line of the log once.  With `wait`, those still to come too, asked for `every` so many seconds until the run ends.

    A run that is taken up again cuts its log back to the checkpoint and writes the same lines anew: they do not come twice.
    """
    file, place, last = record.path / "log.jsonl", 0, -1.0
    while True:
        done = record.done is not None  # asked first: what was written before the end is then read
        if file.is_file():
            if file.stat().st_size < place:
                place = 0
            with open(file, "rb") as opened:
                opened.seek(place)
                for line in opened:
                    if not line.endswith(b"\n"):
                        break  # the rest of it is still to come
                    try:
                        row = json.loads(line)
                    except ValueError:  # it was cut back, and has grown past this place since
                        place = 0
                        break
                    place += len(line)
                    if row["updates"] > last:
                        last = row["updates"]
                        yield row
        if done or not wait:
            return
        time.sleep(every)


def values(row: dict[str, float]) -> dict[str, float]:
    """What was measured, without its place."""
    return {k: v for k, v in row.items() if k not in ("samples", "updates")}


def summary(record: Record) -> dict[str, float]:
    """The numbers of the end, if it has come."""
    return {k: v for k, v in (record.done or {}).get("summary", {}).items() if v is not None}


def settings(record: Record) -> dict[str, Any]:
    """The config, flat: `optim.lr`, `method.is`, ..."""

    def flat(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(tree, dict):
            yield prefix, tree
            return
        for key, value in tree.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else key)

    return dict(flat(record.config["config"], ""))
