"""Ours: Algorithm 1 against Equation 3, and views of one's own against the method's: accuracy against cost.

By Algorithm 1 the student sees raw and augmented images and the teacher augmented ones; by Equation 3 it is the other way round,
and a step costs less.  With shared draws MKD looks at the method's own augmentations; the published runs drew anew but for ER.
The cost is in forward passes of an image for each update.  CIFAR-100, memory 5000: 19 ways x 5 seeds = 95 runs at `full`.

    onepass paper tab_views --where method=er+mkd --run

Smoke: digits, er+mkd and er-ace+mkd, 2 seeds.
"""

from dataclasses import replace

from onepass.config import Config
from onepass.distill import EQUATION_3, MKD, SINGLE_VIEW
from onepass.paper.cost import units
from onepass.paper.found import Found
from onepass.paper.item import Cell, Item, Label, Scale, grid, renamed, values
from onepass.paper.published import CLEAR
from onepass.paper.table import Blocks, Line, Table, compared
from onepass.recipes import Family

WORDS = ("er+mkd", "derpp+mkd", "er-ace+mkd", "dvc+mkd", "pcr+mkd")
PAIRS = {"algorithm-1": None, "equation-3": EQUATION_3, "single-view": SINGLE_VIEW}  # None: as the recipe has it


def cells(scale: Scale, family: Family) -> list[Cell]:
    words = ("er+mkd", "er-ace+mkd") if scale == "smoke" else WORDS
    out: list[Cell] = []
    for cell in grid(words, {"cifar100": (5000,)}, scale, family):
        own = cell.keys["method"] != "er+mkd"
        for draw in ("own", "shared") if own else ("shared",):
            for views in ("algorithm-1", "equation-3") if own else PAIRS:
                keys = {"method": cell.keys["method"], "views": views, "draw": draw}
                out.append(Cell({**cell.keys, **keys}, _changed(cell.config, views, draw)))
    return out


def _changed(config: Config, views: str, draw: str) -> Config:
    assert isinstance(config.distill, MKD)
    distill = replace(config.distill, pairs=PAIRS[views] or config.distill.pairs, draw="main" if draw == "shared" else "mkd")
    same = distill == config.distill  # then it is the recipe's, and other tables' too
    return config if same else renamed(replace(config, distill=distill), f"-{views}-{draw}")


def render(found: Found) -> Table:
    blocks: Blocks = []
    for word in values(found.cells, "method"):
        mine = [cell for cell in found.cells if cell.keys["method"] == word]
        first, lines = "", list[Line]()
        for draw in values(mine, "draw"):
            for views in values([cell for cell in mine if cell.keys["draw"] == draw], "views"):
                where = {"method": (word,), "views": (views,), "draw": (draw,)}
                cell = next(cell for cell in mine if cell.answers(where))
                name = f"{views}, {draw} draws"
                recipes = views == "algorithm-1" and (draw == "own" or word == "er+mkd")
                theirs = CLEAR.get(("cifar100", "5000", word)) if recipes else None
                lines.append(Line(name, where, theirs, first, more=(round(units(cell.config)),)))
                first = first or name
        blocks.append(({"method": word}, lines))
    title = "Final average accuracy (%) by the views that are distilled, and the forward passes of an update"
    return compared("tab_views", title, found, blocks, first="views", more=("cost",))


ITEM = Item("tab_views", {"tab:views": Label("Algorithm 1 against Equation 3: accuracy against cost")}, cells, render, ours=True)
