"""Ours: the paper's text against what its code ran, the same streams under both families of recipes.

CIFAR-100, memory 5000: 17 methods x 2 recipes x 5 seeds = 170 runs at `full`, `tab_clear`'s under both.  What differs between
the families, docs/DIFFERENCES.md lists.  `--recipe` has no say here: both are shown.

    onepass paper tab_recipes --where method=er,er+mkd seed=0 --run

Smoke: digits, seven methods that differ, 2 seeds.
"""

from onepass.paper.found import Found
from onepass.paper.item import FAMILIES, METHODS, Cell, Item, Label, Scale, grid, values
from onepass.paper.published import CLEAR
from onepass.paper.table import Blocks, Line, Table, compared
from onepass.recipes import Family

SMOKE = ("er+te", "er+mkd", "er-ace", "er-ace+mkd", "dvc", "dvc+mkd", "gsa")


def cells(scale: Scale, family: Family) -> list[Cell]:
    words = SMOKE if scale == "smoke" else METHODS
    return [
        Cell({**cell.keys, "recipe": recipe}, cell.config)
        for recipe in FAMILIES
        for cell in grid(words, {"cifar100": (5000,)}, scale, recipe)
    ]


def render(found: Found) -> Table:
    blocks: Blocks = []
    for word in values(found.cells, "method"):
        recipes = values([cell for cell in found.cells if cell.keys["method"] == word], "recipe")
        theirs = CLEAR.get(("cifar100", "5000", word))
        lines = [
            Line(recipe, {"method": (word,), "recipe": (recipe,)}, theirs, "default" if i and "default" in recipes else "")
            for i, recipe in enumerate(recipes)
        ]
        blocks.append(({"method": word}, lines))
    title = "Final average accuracy (%) by the paper's text (default) and by what its code ran (published)"
    return compared("tab_recipes", title, found, blocks, first="recipe")


ITEM = Item("tab_recipes", {"tab:recipes": Label("the paper's text against what its code ran")}, cells, render, ours=True)
