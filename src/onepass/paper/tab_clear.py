"""Final average accuracy on clear tasks: every method and teacher, four data sets, three memory sizes, five seeds.

The paper's first large table, `tab:clear_setting_all`: 17 rows x 12 columns x 5 seeds = 1,020 runs at `full`.

    onepass paper tab_clear --where data=cifar100 memory=5000 method=er,er+mkd --run

Smoke: digits, 17 methods x 2 seeds.
"""

from onepass.paper.found import Found
from onepass.paper.item import ALL, METHODS, Cell, Item, Label, Scale, grid
from onepass.paper.published import CLEAR, DISAGREEMENTS
from onepass.paper.table import Table, by_setting, compared
from onepass.recipes import Family


def cells(scale: Scale, family: Family) -> list[Cell]:
    return grid(METHODS, ALL, scale, family)


def render(found: Found) -> Table:
    title = "Final average accuracy (%), clear tasks"
    return compared("tab_clear", title, found, by_setting(found, CLEAR), disagreement=DISAGREEMENTS["clear"])


ITEM = Item("tab_clear", {"tab:clear_setting_all": Label("accuracy on clear tasks, of every method and teacher")}, cells, render)
