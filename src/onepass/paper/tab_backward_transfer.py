"""What later tasks do to earlier ones: backward transfer at the end, with and without MKD.

The paper's `tab:backward_tf` and `tab:backward_tf_app`, which has ER-ACE, DVC and OCM besides: CIFAR-100 with memory 5000,
ImageNet100 with 10000.  12 methods x 2 x 5 seeds = 120 runs at `full`, `tab_clear`'s.  The mean over the tasks but the last of
their accuracy at the end less that when they were learnt (spec: the authors' code does not compute it).

    onepass paper tab:backward_tf --where data=cifar100 method=er,er+mkd --run

Smoke: digits, 12 methods x 2 seeds, `tab_clear`'s.
"""

from onepass.paper.found import Found
from onepass.paper.item import Cell, Item, Label, Scale, grid
from onepass.paper.published import BACKWARD_TRANSFER
from onepass.paper.table import Table, by_setting, compared
from onepass.recipes import Family
from onepass.record import Record

MAIN = tuple(base + more for base in ("er", "derpp", "gsa") for more in ("", "+mkd"))
METHODS = tuple(base + more for base in ("er", "derpp", "er-ace", "dvc", "ocm", "gsa") for more in ("", "+mkd"))


def cells(scale: Scale, family: Family) -> list[Cell]:
    return grid(METHODS, {"cifar100": (5000,), "imagenet100": (10000,)}, scale, family)


def transfer(record: Record) -> float:
    return 100 * record.summary["backward_transfer"]


def render(found: Found) -> Table:
    blocks = by_setting(found, BACKWARD_TRANSFER, transfer)
    return compared(found.label.replace(":", "_"), "Backward transfer (points) at the end, clear tasks", found, blocks)


ITEM = Item(
    "tab_backward_transfer",
    {
        "tab:backward_tf": Label("backward transfer at the end of three methods, alone and with MKD", {"method": MAIN}),
        "tab:backward_tf_app": Label("backward transfer at the end of six methods, alone and with MKD"),
    },
    cells,
    render,
)
