"""What was asked for: names, labels and a filter, as the cells of items; and what of it has still to be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onepass.config import Config
from onepass.errors import Refused, unknown
from onepass.paper import ITEMS
from onepass.paper.found import Found, Shelf, find
from onepass.paper.item import Cell, Item, Scale, Where, chosen, values
from onepass.probes import Probe
from onepass.recipes import Family, on


@dataclass(frozen=True, eq=False)
class Part:
    """An item, as one of its labels has it, with the cells that pass the filter."""

    item: Item
    label: str
    cells: tuple[Cell, ...]

    @property
    def shows(self) -> str:
        return self.item.labels[self.label].shows


def parsed(words: Sequence[str]) -> Where:
    """`data=cifar100 method=er,er+mkd` as a filter."""
    where: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        allowed = tuple(value for value in text.split(",") if value)
        if not equals or not allowed:
            raise Refused(f"`{word}` is no filter; write a key and its values, e.g. `method=er,er+mkd`.")
        where[key] = where.get(key, ()) + allowed
    return where


def parts(words: Sequence[str], where: Where, scale: Scale, family: Family) -> list[Part]:
    """What was asked for by name, by label or as `all`; a filter that leaves nothing of it says what there is."""
    labels = {label: item for item in ITEMS.values() for label in item.labels}
    asked: dict[str, Item] = {}
    for word in words:
        if word in ITEMS or word == "all":
            asked |= {label: item for label, item in labels.items() if word in ("all", item.name)}
        elif word in labels:
            asked[word] = labels[word]
        else:
            raise unknown("table or figure", word, [*ITEMS, *labels, "all"], "`onepass paper list` has them.")
    made = {item.name: item.cells(scale, family) for item in asked.values()}
    there = {label: [*chosen(made[item.name], item.labels[label].where)] for label, item in asked.items()}
    out = [Part(item, label, tuple(chosen(there[label], where))) for label, item in asked.items()]
    every = [cell for cells in there.values() for cell in cells]
    for key, allowed in where.items():
        for value in allowed:
            if not list(chosen(every, {key: (value,)})):
                raise _nothing_there(words, {key: (value,)}, scale, every)
    if where:
        out = [part for part in out if part.cells]
        if not out:
            raise _nothing_there(words, where, scale, every)
    return out


def _nothing_there(words: Sequence[str], where: Where, scale: Scale, cells: Sequence[Cell]) -> Refused:
    asked = " ".join(f"{key}={','.join(allowed)}" for key, allowed in where.items())
    keys = dict.fromkeys(key for cell in cells for key in cell.keys)
    there = "; ".join(f"{key}: {', '.join(values(cells, key))}" for key in keys)
    return Refused(f"No cell of {', '.join(words)} at scale {scale} has `{asked}`; there are {there or 'no cells at all'}.")


def look(asked: Sequence[Part], runs: Path, scale: Scale, family: Family, data_dir: Path | None = None) -> list[Found]:
    """What there is of each part now."""
    shelf = Shelf(runs)
    return [find(part.item, part.label, part.cells, shelf, scale, family, data_dir) for part in asked]


def wanting(found: Iterable[Found], scale: Scale, device: str) -> dict[Path, Config]:
    """The runs that are not there yet, by where their cell's own config has them.

    The seeds of a setting go in the precision that those have which are there, wherever they were run.
    """
    configs: dict[Path, Config] = {}
    for part in found:
        there = {run.cell for run in part.runs}
        precisions = {_setting(run.cell): run.precision for run in part.runs}
        for cell in part.cells:
            if cell not in there:
                config = cell.config if scale == "smoke" else on(cell.config, device)
                precision = precisions.get(_setting(cell), config.precision)
                configs[cell.config.folder] = replace(config, device=device, precision=precision)
    return configs


def _setting(cell: Cell) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in cell.keys.items() if key != "seed")


def asked_of_all(configs: Mapping[Path, Config], scale: Scale, family: Family) -> list[Config]:
    """The same runs, each asked for all that any item wants to know of it, so that it is done once."""
    probes: dict[Path, dict[Probe, None]] = {folder: {} for folder in configs}
    for item in ITEMS.values():
        for cell in item.cells(scale, family):
            if (folder := cell.config.folder) in probes:
                probes[folder] |= dict.fromkeys(cell.config.probes)
    return [replace(config, probes=tuple(probes[folder])) for folder, config in configs.items()]
