"""What predicts best after MKD on ER, student, teacher or their average, and what the second view is worth.

The paper's `tab:ablation`: CIFAR-100, three memory sizes.  One run gives three rows, for every run records the predictions of
all its networks; the single view is a run of its own: 2 x 3 x 5 seeds = 30 runs at `full`, half of them `tab_clear`'s.

    onepass paper tab_ablation --where memory=5000 --run

Smoke: digits, 2 runs x 2 seeds.
"""

from dataclasses import replace

from onepass.distill import MKD, SINGLE_VIEW
from onepass.paper.found import Found
from onepass.paper.item import CIFAR100, Cell, Item, Label, Scale, grid, renamed, values
from onepass.paper.published import ABLATION
from onepass.paper.table import Blocks, Line, Table, accuracy_of, compared
from onepass.recipes import Family

SINGLE = "er+mkd-single-view"


def cells(scale: Scale, family: Family) -> list[Cell]:
    whole = grid(["er+mkd"], CIFAR100, scale, family)
    return whole + [single_view(cell) for cell in whole]


def single_view(cell: Cell) -> Cell:
    """The same run with one pair of views, both augmented: the student's raw pass is gone with its loss."""
    assert isinstance(cell.config.distill, MKD)
    config = replace(cell.config, distill=replace(cell.config.distill, pairs=SINGLE_VIEW))
    return Cell({**cell.keys, "method": SINGLE}, renamed(config, "-single-view"))


def render(found: Found) -> Table:
    rows = (("average", "er+mkd"), ("student", "er+mkd"), ("teacher", "er+mkd"), ("student, single view", SINGLE))
    blocks: Blocks = []
    for data in values(found.cells, "data"):
        for memory in values(found.cells, "memory"):
            lines: list[Line] = []
            for name, method in rows:
                published = ABLATION.get((data, memory, name if method == "er+mkd" else "single-view"))
                against = {"average": "", "student, single view": "student"}.get(name, "average")
                where = {"data": (data,), "memory": (memory,), "method": (method,)}
                lines.append(Line(name, where, published, against, accuracy_of(name.partition(",")[0])))
            blocks.append(({"data": data, "memory": memory}, lines))
    title = "Final average accuracy (%) of er+mkd, by the network that predicts and the views that are distilled"
    return compared("tab_ablation", title, found, blocks, first="predicts")


ITEM = Item("tab_ablation", {"tab:ablation": Label("which network predicts best after MKD, and one view or two")}, cells, render)
