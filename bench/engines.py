"""What an engine costs: eight narrow runs on each, its share of a run of ten minutes, and a thousand configs in its queue.

    python bench/engines.py [--quick] [--write]

Every engine is opened anew by a process of its own and closed again, as a command does it, so that its start and its end are in
the time.  `--write` replaces this script's section of bench/RESULTS.md; `--quick` tries the script, on numbers not to be quoted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

from table import GOALS, Report, goal, header  # noqa: E402

from onepass import recipe, source  # noqa: E402
from onepass.cluster import engine  # noqa: E402
from onepass.config import Config  # noqa: E402
from onepass.engine import drive  # noqa: E402
from onepass.loop import Progress  # noqa: E402
from onepass.nets import ResNet18  # noqa: E402
from onepass.record import Record, records  # noqa: E402

TEN_MINUTES = 600.0
COST = """\
Two runs side by side on two workers: from opening the engine to its end, less the longer run by its own clock. What is left is
fixed: processes that start and import torch, data that is loaded, Ray's own start, its measurement of a run, and the end of it all.
It does not grow with the run, so it is given as its share of a run of ten minutes; no run here took ten minutes."""
QUEUE = """\
{count} submits of one run that is finished, as when a sweep is given again: each goes through the engine's queue to a worker,
which finds the record there and returns it. Nothing is trained, so this is the queue alone. Resident memory of the parent, which
keeps no outcome."""
KINDS = {"one after the other": ("local", 1), "pool, 2 workers": ("local", 2), "Ray, 2 workers": ("ray", 2)}


def narrow(limit: int, width: int = 20) -> Config:
    """ER+MKD on digits in the paper's batches, so that an update is work and not bookkeeping."""
    made = recipe("er+mkd", source("digits"), memory=200)
    return replace(made, net=ResNet18(width), batch_size=10, replay_size=64, precision="fp32", limit=limit)


def memory(field: str = "VmRSS") -> float:
    """Of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def one_by_one(configs: list[Config], root: Path, name: str, workers: int) -> dict[str, float]:
    """All by an engine: what it took from opening to closing, and the memory when all are queued and at the end."""
    ended: dict[int, Any] = {}
    waiting = set(range(len(configs)))

    def tell(i: int, event: Any) -> None:
        if not isinstance(event, Progress):
            ended[i] = event if isinstance(event, Exception) else None  # nothing is kept of what went well
            waiting.discard(i)

    before, began = memory(), time.monotonic()
    with engine(name, workers=workers).open(root, tell, runs=len(configs)) as at_work:
        opened = memory()
        for i, config in enumerate(configs):
            at_work.submit(i, config)
        queued = memory()
        drive(at_work, lambda: bool(waiting))
        end = memory()
    wall = time.monotonic() - began
    wrong = [event for event in ended.values() if event is not None]
    if wrong:
        raise SystemExit(f"{len(wrong)} runs failed, the first with: {wrong[0]}")
    return {"wall": wall, "before": before, "opened": opened, "queued": queued, "end": end}


def child(kind: str, *args: str) -> dict[str, float]:
    """The same in a process of its own, which nothing before it has warmed or filled."""
    call = [sys.executable, __file__, "--child", kind, *args]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)
    return {name: float(value) for name, value in (word.split("=") for word in done.stdout.split()[-1].split(","))}


def seconds_of(root: Path) -> list[float]:
    """What each run itself has recorded of its time."""
    return [float((record.done or {})["seconds"]) for record in records(root)]


def table_of_eight(report: Report, limit: int) -> None:
    rows: list[list[str]] = []
    walls: dict[str, float] = {}
    for title in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            walls[title] = child("eight", title, str(limit), folder)["wall"]
            runs = seconds_of(Path(folder))
        first = walls["one after the other"]
        rows.append([title, f"{walls[title]:.1f}", f"{sum(runs) / len(runs):.1f}", f"{first / walls[title]:.2f}"])
    report.say("### Eight narrow runs", "")
    report.say(
        f"ER+MKD on {limit} digits, width 20, batch 10 + 64, seeds 0 to 7; from before the engine is opened until it is closed.", ""
    )
    report.table(["", "wall, s", "a run by its own clock, s", "times faster"], rows)


def table_of_cost(report: Report, limit: int) -> None:
    """The fixed cost: from opening to closing, less what the one run has recorded of itself."""
    rows: list[list[str]] = []
    for title, name in (("pool, 2 workers", "pool"), ("Ray, 2 workers", "Ray")):
        with tempfile.TemporaryDirectory() as folder:
            wall = child("two", title, str(limit), folder)["wall"]
            longest = max(seconds_of(Path(folder)))
        rows.append(
            goal(
                f"{name}: {wall - longest:.1f} s, of ten minutes",
                100 * (wall - longest) / TEN_MINUTES,
                most=2.0,
                form=".2f",
                unit=" %",
            )
        )
    report.say("### What an engine adds", "", COST, "")
    report.table(GOALS, rows)


def table_of_queue(report: Report, count: int) -> None:
    rows: list[list[str]] = []
    for title in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            found = child("queue", title, str(count), folder)
        grown = [f"{found[b] - found[a]:+.1f}" for a, b in (("opened", "queued"), ("queued", "end"))]
        rows.append([title, f"{found['wall']:.1f}", f"{found['before']:.0f}", *grown, f"{1000 * found['wall'] / count:.1f}"])
    report.say(f"### {count} configs in the queue", "", QUEUE.format(count=count), "")
    report.table(["", "wall, s", "before, MB", "while it is filled, MB", "until all have ended, MB", "ms a config"], rows)


def in_child(kind: str, title: str, number: str, folder: str) -> None:
    name, workers = KINDS[title]
    root = Path(folder)
    if kind == "queue":
        made = narrow(20, width=2)
        from onepass.loop import run

        assert isinstance(run(made, root), Record)
        found = one_by_one([made] * int(number), root, name, workers)
    else:
        found = one_by_one([replace(narrow(int(number)), seed=s) for s in range({"eight": 8, "two": 2}[kind])], root, name, workers)
    print(",".join(f"{key}={value:.3f}" for key, value in found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a look, and no number to quote")
    parser.add_argument("--write", action="store_true", help="replace this script's section of bench/RESULTS.md")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        return in_child(*args.child)
    report = Report()
    report.say(*header(" ".join(["python bench/engines.py", *sys.argv[1:]])), "")
    source("digits").load()  # decoded before anything is timed
    table_of_eight(report, 20 if args.quick else 1400)
    table_of_cost(report, 20 if args.quick else 400)
    table_of_queue(report, 20 if args.quick else 1000)
    report.end("engines" if args.write else None)


if __name__ == "__main__":
    main()
