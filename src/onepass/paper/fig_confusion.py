"""Confusion matrices at the end of training, classes in training order: a method alone above the same with MKD.

The paper's `fig:confusion_matrices` (whose methods it does not name: here those of its first table of nearest class means) and
`fig:supp_confusion_matrices`, for all seven: CIFAR-100, memory 1000, clear tasks, seed 0.  14 runs at `full`, all of them
`tab_clear`'s.

    onepass paper fig:confusion_matrices --run

Smoke: digits, 14 runs, `tab_clear`'s.
"""

from onepass.paper.found import Found
from onepass.paper.item import Cell, Drawing, Item, Label, Scale, grid, values
from onepass.recipes import Family

BASES = ("er", "derpp", "er-ace", "gsa", "dvc", "ocm", "pcr")
MAIN = tuple(base + more for more in ("", "+mkd") for base in BASES[:4])


def cells(scale: Scale, family: Family) -> list[Cell]:
    return grid([base + more for more in ("", "+mkd") for base in BASES], {"cifar100": (1000,)}, scale, family, only=(0,))


def render(found: Found) -> list[Drawing]:
    from onepass import figures

    bases = list(dict.fromkeys(word.partition("+")[0] for word in values(found.cells, "method")))
    there = {run.cell.keys["method"]: run.record.results for run in found.runs}
    words = [base + more for more in ("", "+mkd") for base in bases]
    stream = next(iter(there.values())).stream
    matrices = {word: there[word].confusion() if word in there else None for word in words}
    title = f"Confusion at the end: {found.setting}"
    note = f"seed 0; lines divide tasks; {found.about}"
    drawn = figures.confusions(matrices, stream["names"], stream["tasks"], title, note, columns=len(bases))
    return [Drawing(found.label.replace(":", "_"), drawn)]


ITEM = Item(
    "fig_confusion",
    {
        "fig:confusion_matrices": Label("confusion in training order of four methods, alone and with MKD", {"method": MAIN}),
        "fig:supp_confusion_matrices": Label("confusion in training order of all methods, alone and with MKD"),
    },
    cells,
    render,
)
