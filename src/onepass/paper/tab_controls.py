"""Ours: what of MKD does it, by giving each method one of its parts alone.

MKD brings an extra cross-entropy (`+ce`, for all methods but ER, whose loss it is), distillation (`+kd`: without that
cross-entropy), averaged weights (`+ema`: without any loss) and raw images, which move the student's running statistics
(`+rawpass`: without a loss on them).  Nobody ran these controls.  CIFAR-100, memory 5000: 29 ways (er+kd would be er+mkd again)
x 5 seeds = 145 runs at `full`, 50 of them `tab_clear`'s.

    onepass paper tab_controls --where method=er,er+rawpass,er+mkd --run

Smoke: digits, er and er-ace, 2 seeds.
"""

from onepass.paper.found import Found
from onepass.paper.item import Cell, Item, Label, Scale, grid
from onepass.paper.published import CLEAR
from onepass.paper.table import Table, by_setting, compared
from onepass.recipes import Family

BASES = ("er", "derpp", "er-ace", "gsa", "pcr")
PARTS = ("", "+ce", "+kd", "+ema", "+rawpass", "+mkd")


def cells(scale: Scale, family: Family) -> list[Cell]:
    bases = ("er", "er-ace") if scale == "smoke" else BASES
    words = [base + part for base in bases for part in PARTS if (base, part) != ("er", "+kd")]
    return grid(words, {"cifar100": (5000,)}, scale, family)


def render(found: Found) -> Table:
    title = "Final average accuracy (%) with one part of MKD at a time, clear tasks"
    return compared("tab_controls", title, found, by_setting(found, CLEAR))


ITEM = Item("tab_controls", {"tab:controls": Label("which part of MKD does it: one at a time")}, cells, render, ours=True)
