"""The hyper-parameter search: every value that the paper tried, judged by held-out training images, never by test images.

The paper's `tab:all_hp`, searched on CIFAR-100, memory 5000.  It does not say what a choice was judged by; here by the last tenth
of each class's training images, which the stream does not show (`held_out=LastTenth`).  One seed.  At `full` er,
er-ace and dvc have 48 points each (momentum is SGD's alone), derpp 384, gsa 16, er+sdp 10 (two of the twelve have no rates),
pcr 1, er+te 7, and the recipe's own one more where the printed grid lacks it (er): 563 runs.  OCM was not searched.

    onepass paper tab_hp --where method=er --run

Smoke: digits, 3 points of er and 3 of er+te, 1 seed.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from onepass.config import Config
from onepass.errors import unknown
from onepass.held_out import LastTenth
from onepass.learner import SGD, Adam
from onepass.methods.derpp import DERpp
from onepass.methods.dvc import DVC
from onepass.paper.found import Found
from onepass.paper.item import Cell, Item, Label, Scale, configured, settings, values
from onepass.paper.published import SEARCHED, Tried
from onepass.paper.table import Block, Table, Value, accuracy
from onepass.recipes import PUBLISHED, Family, partial
from onepass.space import Dimension
from onepass.teachers import EMA, HypoExponential

SHOWN = 10  # of each method's points, the best


def cells(scale: Scale, family: Family) -> list[Cell]:
    out: list[Cell] = []
    for data, memory in settings(scale, {"cifar100": (5000,)}):
        for word in ("er", "er+te") if scale == "smoke" else SEARCHED:
            recipe = replace(configured(word, data, memory, 0, scale, family), held_out=LastTenth())
            for config in {config.folder: config for config in (*_points(recipe, _tried(word, scale), family), recipe)}.values():
                keys = {"data": data.name, "memory": str(memory), "method": word, **described(config), "seed": "0"}
                out.append(Cell(keys | {"recipe": "yes" if config.folder == recipe.folder else "no"}, config))
    return out


def _tried(word: str, scale: Scale) -> Tried:
    if scale != "smoke":
        return SEARCHED[word]
    few: Tried = {"optim": ("Adam",), "lr": (5e-4, 1e-3, 1e-2), "wd": (0.0,)} if word == "er" else {"alpha": (0.01, 0.1)}
    return SEARCHED[word] | few


def _points(recipe: Config, tried: Tried, family: Family) -> Iterator[Config]:
    """Every combination that makes sense, as the recipe with these values."""
    for chosen in product(*tried.values()):
        with suppress(ValueError):  # two of SDP's (mu, c2) have no two rates
            yield _set(recipe, dict(zip(tried, chosen, strict=True)), family)


def _set(config: Config, point: Mapping[str, float | str], family: Family) -> Config:
    lr, decay, momentum = (float(point.get(name, 0.0)) for name in ("lr", "wd", "momentum"))
    optim = SGD(lr=lr, momentum=momentum, weight_decay=decay) if point["optim"] == "SGD" else Adam(lr=lr, weight_decay=decay)
    augment = config.augment
    if "aug" in point:
        augment = config.data.habits.full if point["aug"] == "full" else partial(config.data, family)
    method, teacher = config.method, config.teacher
    if isinstance(method, DVC):  # its step down the stream's gradient is as long as the optimiser's
        method = replace(method, rate=lr)
    if isinstance(method, DERpp):
        method = replace(method, alpha=float(point["alpha"]), beta=float(point["beta"]))
    if isinstance(teacher, HypoExponential) and "mu" in point:
        teacher = replace(teacher, mu=float(point["mu"]), c2=float(point["c2"]))
    if isinstance(teacher, EMA) and "alpha" in point and not isinstance(method, DERpp):
        teacher = replace(teacher, alpha=float(point["alpha"]))
    return replace(config, method=method, teacher=teacher, optim=optim, augment=augment)


@dataclass(frozen=True)
class Grid:
    """What the paper tried for a method, as a space to search; a method with a suffix has its method's own."""

    base: Config
    family: Family = "default"

    @property
    def tried(self) -> Tried:
        word = self.base.title.removesuffix(PUBLISHED)
        found = SEARCHED.get(word) or SEARCHED.get(word.partition("+")[0])
        if found is None:
            raise unknown("grid of the paper's for", word, SEARCHED)
        return found

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        return {name: tried for name, tried in self.tried.items() if len(tried) > 1}

    def asks(self, name: str, point: Mapping[str, float | str]) -> bool:
        return name != "momentum" or point.get("optim", self.tried["optim"][0]) == "SGD"

    def at(self, point: Mapping[str, float | str]) -> Config:
        fixed = {name: tried[0] for name, tried in self.tried.items() if len(tried) == 1}
        return _set(self.base, fixed | dict(point), self.family)


def described(config: Config) -> dict[str, str]:
    """The values of what is searched."""
    optim, method, teacher = config.optim, config.method, config.teacher
    out: dict[str, float | str] = {"optim": type(optim).__name__, "lr": getattr(optim, "lr", 0.0)}
    out["wd"] = getattr(optim, "weight_decay", 0.0)
    if isinstance(optim, SGD):
        out["momentum"] = optim.momentum
    out["aug"] = "full" if config.augment == config.data.habits.full else "partial"
    if isinstance(method, DERpp):
        out |= {"alpha": method.alpha, "beta": method.beta}
    if isinstance(teacher, HypoExponential):
        out |= {"mu": teacher.mu, "c2": teacher.c2}
    if isinstance(teacher, EMA):
        out |= {"alpha": teacher.alpha}
    return {name: value if isinstance(value, str) else f"{value:g}" for name, value in out.items()}


def render(found: Found) -> Table:
    """The best of each method's points, and the recipe's own."""
    measured = {run.cell: accuracy(run.record) for run in found.runs}
    blocks: list[Block] = []
    for word in values(found.cells, "method"):
        mine = [cell for cell in found.cells if cell.keys["method"] == word]
        ranked = sorted((cell for cell in mine if cell in measured), key=lambda cell: -measured[cell])
        lines: list[list[Value]] = []
        for rank, cell in enumerate(ranked, 1):
            if rank <= SHOWN or cell.keys["recipe"] == "yes":
                point = " ".join(
                    text if name in ("optim", "aug") else f"{name} {text}" for name, text in described(cell.config).items()
                )
                lines.append([point, rank, measured[cell], "recipe" if cell.keys["recipe"] == "yes" else None])
        blocks.append(Block({"method": word, "points": f"{len(ranked)} of {len(mine)}"}, lines))
    notes = [
        f"scale {found.scale}, recipe {found.family}; accuracy (%) on the last tenth of each class's training images, held out",
        "the paper prints the values that it tried and not which won: nothing to agree with",
        *found.notes,
    ]
    title = f"Hyper-parameter search: the best {SHOWN} points of each method, and the recipe's own"
    return Table("tab_hp", title, ("point", "rank", "held-out accuracy", "in use"), blocks, notes)


ITEM = Item("tab_hp", {"tab:all_hp": Label("the hyper-parameter search, on held-out training images")}, cells, render)
