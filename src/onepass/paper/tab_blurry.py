"""Final average accuracy where tasks flow into each other: as `tab_clear`, on blurry streams, without GSA.

The paper's second large table, `tab:blurry_all`: 14 rows x 12 columns x 5 seeds = 840 runs at `full`.  GSA must know which
classes belong to which task, and the paper leaves it out; OCM is told of a new task by `NewClass(lag=100)`.

    onepass paper tab_blurry --where data=cifar100 memory=5000 method=er,er+mkd --run

Smoke: digits, 14 methods x 2 seeds.
"""

from onepass.paper.found import Found
from onepass.paper.item import ALL, METHODS, Cell, Item, Label, Scale, grid
from onepass.paper.published import BLURRY, DISAGREEMENTS
from onepass.paper.table import Table, by_setting, compared
from onepass.recipes import Family


def cells(scale: Scale, family: Family) -> list[Cell]:
    return grid([word for word in METHODS if not word.startswith("gsa")], ALL, scale, family, stream="blurry")


def render(found: Found) -> Table:
    title = "Final average accuracy (%), blurry tasks"
    return compared("tab_blurry", title, found, by_setting(found, BLURRY), disagreement=DISAGREEMENTS["blurry"])


ITEM = Item("tab_blurry", {"tab:blurry_all": Label("accuracy on blurry tasks, of every method and teacher but GSA")}, cells, render)
