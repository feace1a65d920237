"""How far one update moves the features of remembered images of past tasks, along the stream, alone and with MKD.

The paper's `fig:feature_drift`, of ER, and `fig:supp_feat_drift`, of six methods: CIFAR-100, memory 5000, clear tasks, seed 0.
The probe `Drift` looks at up to 1,000 images before and after one update in fifty, from the second task on.  12 runs at `full`,
`tab_clear`'s.

    onepass paper fig:feature_drift --run

Smoke: digits, 12 runs, `tab_clear`'s, one update in four.
"""

from onepass.paper.found import Found
from onepass.paper.item import Cell, Drawing, Item, Label, Scale, grid, values
from onepass.probes import Drift as Probe
from onepass.recipes import Family

BASES = ("er", "derpp", "dvc", "er-ace", "gsa", "ocm")


def cells(scale: Scale, family: Family) -> list[Cell]:
    probe = Probe(every=4) if scale == "smoke" else Probe()
    words = [base + more for base in BASES for more in ("", "+mkd")]
    return grid(words, {"cifar100": (5000,)}, scale, family, probes=(probe,), only=(0,))


def render(found: Found) -> list[Drawing]:
    from onepass import figures
    from onepass.figures.curves import Drift

    there = {run.cell.keys["method"]: Drift(*run.record.results.at("drift/student")) for run in found.runs}
    panels: dict[str, dict[str, Drift | None]] = {}
    for word in values(found.cells, "method"):
        base, plus, more = word.partition("+")
        panels.setdefault(base, {})[plus + more or "alone"] = there.get(word)
    ends = found.runs[0].record.results.stream["task_ends"]
    title = f"Feature drift: {found.setting}"
    drawn = figures.drifts(panels, ends, title, f"seed 0; smoothed over 2 % of the stream; {found.about}")
    return [Drawing(found.label.replace(":", "_"), drawn)]


ITEM = Item(
    "fig_drift",
    {
        "fig:feature_drift": Label("feature drift of er along the stream, alone and with MKD", {"method": ("er", "er+mkd")}),
        "fig:supp_feat_drift": Label("feature drift of six methods along the stream, alone and with MKD"),
    },
    cells,
    render,
)
