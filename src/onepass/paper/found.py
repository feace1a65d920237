"""The runs that were asked for, and what there is of them: records of other settings are left out, and counted."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onepass.__about__ import RESULTS_VERSION
from onepass.config import Config
from onepass.nets import PRECISIONS
from onepass.paper.item import FAMILIES, SCALES, Cell, Item, Scale, Where
from onepass.recipes import Family
from onepass.record import Record


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run, and the cell that it fills."""

    cell: Cell
    record: Record
    precision: str


@dataclass(frozen=True, eq=False)
class Found:
    """What an item is drawn from: cells, and the finished runs of some or all of them."""

    label: str
    scale: Scale
    family: Family
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]  # what a reader has to know: how much is missing, what was left out
    data_dir: Path | None = None  # for what is drawn from the data itself

    @property
    def about(self) -> str:
        """What stands below a figure."""
        return f"scale {self.scale}, recipe {self.family}; {self.notes[0]}"

    @property
    def setting(self) -> str:
        """The data and the memory of the cells, which are the same for all of a figure."""
        keys = self.cells[0].keys
        return f"{keys['data']}, memory {keys['memory']}"

    def of(self, where: Where) -> list[Run]:
        return [run for run in self.runs if run.cell.answers(where)]

    def by_seed(self, where: Where, measure: Callable[[Record], float]) -> dict[int, float]:
        """What was measured, for each seed that was run; a cell that gives no number has no part in it."""
        measured = {int(run.cell.keys["seed"]): measure(run.record) for run in self.of(where)}
        return {seed: value for seed, value in measured.items() if value == value}


class Shelf:
    """The runs in a folder, by where they lie; read only as far as somebody asks."""

    def __init__(self, root: Path):
        self.root = root
        self.paths: dict[str, set[Path]] = {}  # by place, which leaves the identity out
        for path in sorted(root.glob("*/*/m*/s*-*")):
            if path.is_dir():
                place = path.relative_to(root).as_posix().rpartition("-")[0]
                self.paths.setdefault(place, set()).add(path)

    def at(self, config: Config) -> Iterator[tuple[str, Path]]:
        """Where the runs of a config lie, with the precision they were computed in: each is another run."""
        there = self.paths.get(config.place)
        if there:
            for precision in PRECISIONS:
                path = self.root / replace(config, precision=precision, device="cpu").folder
                if path in there:
                    yield precision, path

    def all_at(self, cells: Iterable[Cell]) -> set[Path]:
        return {path for cell in cells for _, path in self.at(cell.config)}


def find(
    item: Item, label: str, cells: Sequence[Cell], shelf: Shelf, scale: Scale, family: Family, data_dir: Path | None = None
) -> Found:
    """The finished runs of some cells, one precision for all seeds of a cell's setting."""
    notes: list[str] = []
    runs: list[Run] = []
    wanting: list[Path] = []
    unended: list[Path] = []
    damaged: list[Path] = []
    for cell in cells:
        for precision, path in shelf.at(cell.config):
            state = state_of(path, cell.config)
            if state == "done":
                runs.append(Run(cell, Record(path), precision))
            else:
                {"begun": unended, "wanting": wanting, "damaged": damaged}[state].append(path)
    runs, dropped = _of_one_precision(runs)
    there = {run.cell for run in runs}
    notes.append(f"{len(there)} of {len(cells)} runs are there")
    precisions = Counter(run.precision for run in runs)
    if precisions:
        notes[-1] += f"; precision {' and '.join(f'{p} ({n})' if len(precisions) > 1 else p for p, n in precisions.items())}"
    if made_by := commits(runs):
        notes[-1] += f"; commit {', '.join(made_by)}"
    for paths, what in (
        (unended, "not finished, and ignored"),
        (wanting, "left out, for they were not asked for what is measured here"),
        (damaged, "damaged or half-written, and ignored"),
        (dropped, "left out, for the other seeds of the same setting have another precision"),
    ):
        if paths:
            notes.append(f"{len(paths)} {what}: {_some(paths)}")
    left = _left_out(item, cells, shelf, scale, family)
    if left:
        notes.append("left out: " + ", ".join(f"{n} of {what}" for what, n in left.items()))
    return Found(label, scale, family, tuple(cells), tuple(runs), tuple(notes), data_dir)


def commits(runs: Iterable[Run]) -> list[str]:
    """Those of onepass that the runs were made by, begun or taken up; `+`: with files that were changed since."""
    envs = (env for run in runs for env in (run.record.env, *run.record.env.get("resumed", ())))
    return list(dict.fromkeys(env["commit"] for env in envs if env.get("commit")))


def state_of(path: Path, config: Config) -> str:
    """`done`, `begun`, `wanting` a probe that the config has, or `damaged`."""
    record = Record(path)
    try:
        there = record.config["config"]["probes"]
        if not (path / "done.json").is_file():
            return "begun"
        if not zipfile.is_zipfile(path / "probes.npz") or "summary" not in (record.done or {}):
            return "damaged"
        (path / "stream.json").stat()
        record.env["precision"]
    except (OSError, ValueError, KeyError, TypeError):
        return "damaged"
    return "done" if all(probe in there for probe in config.to_json()["probes"]) else "wanting"


def _of_one_precision(runs: Sequence[Run]) -> tuple[list[Run], list[Path]]:
    """For each setting the runs of the precision that most of its seeds have, and the paths of the others."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple((k, v) for k, v in run.cell.keys.items() if k != "seed"), []).append(run)
    kept: list[Run] = []
    dropped: list[Path] = []
    for group in groups.values():
        most = Counter(run.precision for run in group).most_common(1)[0][0]
        kept += [run for run in group if run.precision == most]
        dropped += [run.record.path for run in group if run.precision != most]
    return kept, dropped


def _left_out(item: Item, cells: Sequence[Cell], shelf: Shelf, scale: Scale, family: Family) -> Counter[str]:
    """How many records there are of this item at another scale or by another recipe, and of these cells in another version."""
    counted: Counter[str] = Counter()
    strays = {path for paths in shelf.paths.values() for path in paths} - shelf.all_at(item.cells(scale, family))
    for other_scale in SCALES:
        for other in FAMILIES:
            if strays and (other_scale, other) != (scale, family):
                theirs = shelf.all_at(item.cells(other_scale, other)) & strays
                counted[f"scale `{other_scale}`" if other_scale != scale else f"recipe `{other}`"] += len(theirs)
                strays -= theirs
    places = {path for cell in cells for path in shelf.paths.get(cell.config.place, ())}
    counted["another version of the results"] = sum(map(_of_another_version, strays & places))
    return +counted


def _of_another_version(path: Path) -> bool:
    try:
        tree = Record(path).config
        return tree.get("results") != RESULTS_VERSION
    except (OSError, ValueError, AttributeError):
        return False


def _some(paths: Iterable[Path]) -> str:
    shown = [str(path) for path in paths]
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
