"""What a table or a figure of the paper is: the runs it asks for at a scale, and what it makes of those there are.

Scales are never mixed: `full` is the paper's setting; `small` is the same with networks of width 20, on real data; `smoke` is
digits in 144 updates of ten images, width 8, one memory, two seeds: 154 runs in 11 minutes of processor time (AMD EPYC, 2026-11),
and nothing may be concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from onepass.config import Config
from onepass.data import Source, source
from onepass.nets import ResNet18
from onepass.probes import Predictions, Probe
from onepass.recipes import PUBLISHED, Family, Setting, recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from onepass.paper.found import Found
    from onepass.paper.table import Table

Scale = Literal["full", "small", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "small", "smoke")
FAMILIES: tuple[Family, ...] = ("default", "published")
Where = Mapping[str, tuple[str, ...]]
"""A filter of cells: keys, each with the values that pass."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One run that an item asks for, and its place there: {"data": "cifar100", "memory": "5000", "method": "er", "seed": "0"}."""

    keys: Mapping[str, str]
    config: Config

    def answers(self, where: Where) -> bool:
        """Whether each key that is asked about has one of the values asked for."""
        return all(self.keys.get(key) in allowed for key, allowed in where.items())


class Drawing(NamedTuple):
    """A figure, and what its files are called without their ending."""

    stem: str
    figure: Figure


class Label(NamedTuple):
    """What a label of an item shows, in one line, and the keys of the cells that it shows it of."""

    shows: str
    where: Where = {}


@dataclass(frozen=True, eq=False)
class Item:
    """A table or a figure: a file of this folder each, which ends with `ITEM = Item(...)`."""

    name: str  # the file's
    labels: Mapping[str, Label]  # of the LaTeX (or, for ours, of its kind)
    cells: Callable[[Scale, Family], list[Cell]]
    render: Callable[[Found], Table | list[Drawing]]  # once for each label asked for, with its cells
    ours: bool = False  # whether the paper has nothing like it


# -- what cells are made of -----------------------------------------------------------------------------------------

CIFAR10, CIFAR100 = {"cifar10": (200, 500, 1000)}, {"cifar100": (1000, 2000, 5000)}
TINY, IMAGENET100 = {"tiny-imagenet": (2000, 5000, 10000)}, {"imagenet100": (2000, 5000, 10000)}
ALL = CIFAR10 | CIFAR100 | TINY | IMAGENET100
"""The paper's data sets, each with its memory sizes."""

METHODS = (
    *("er", "er+sdp", "er+te", "er+mkd"),
    *("derpp", "derpp+mkd"),
    *("er-ace", "er-ace+mkd"),
    *("dvc", "dvc+mkd"),
    *("ocm", "ocm+mkd"),
    *("gsa", "gsa+sdp", "gsa+mkd"),
    *("pcr", "pcr+mkd"),
)
"""The rows of the paper's tables."""


def settings(scale: Scale, full: Mapping[str, Sequence[int]]) -> list[tuple[Source, int]]:
    """Data sets and memory sizes: the paper's, or digits with one."""
    return [(source("digits"), 20)] if scale == "smoke" else [(source(name), m) for name, sizes in full.items() for m in sizes]


def seeds(scale: Scale) -> range:
    """The paper's five, or two."""
    return range(2 if scale == "smoke" else 5)


def configured(
    word: str,
    data: Source,
    memory: int,
    seed: int,
    scale: Scale,
    family: Family,
    *,
    stream: Setting = "clear",
    tasks: int | None = None,
    probes: tuple[Probe, ...] = (),
) -> Config:
    """A recipe at a scale, asked for its predictions and whatever else."""
    config = recipe(word, data, memory=memory, stream=stream, tasks=tasks, family=family, seed=seed)
    config = replace(config, probes=(Predictions(), *probes))
    if scale == "full":
        return config
    assert isinstance(config.net, ResNet18)
    narrow = replace(config, net=replace(config.net, width=20 if scale == "small" else 8))
    return replace(narrow, batch_size=10, replay_size=20, precision="fp32") if scale == "smoke" else narrow


def renamed(config: Config, more: str) -> Config:
    """A changed config by a name of its own: its folder says what it is."""
    name = config.name.removesuffix(PUBLISHED)
    return replace(config, name=name + more + (PUBLISHED if name != config.name else ""))


def grid(
    words: Sequence[str],
    full: Mapping[str, Sequence[int]],
    scale: Scale,
    family: Family,
    *,
    stream: Setting = "clear",
    probes: tuple[Probe, ...] = (),
    only: Sequence[int] | None = None,
) -> list[Cell]:
    """Every word on every setting, once for each seed (`only` these, if they are given)."""
    return [
        Cell(
            {"data": data.name, "memory": str(memory), "method": word, "seed": str(seed)},
            configured(word, data, memory, seed, scale, family, stream=stream, probes=probes),
        )
        for data, memory in settings(scale, full)
        for word in words
        for seed in (only if only is not None else seeds(scale))
    ]


def values(cells: Iterable[Cell], key: str) -> list[str]:
    """The values a key has in some cells, in the order in which they come."""
    return list(dict.fromkeys(cell.keys[key] for cell in cells if key in cell.keys))


def chosen(cells: Sequence[Cell], where: Where) -> Iterator[Cell]:
    return (cell for cell in cells if cell.answers(where))
