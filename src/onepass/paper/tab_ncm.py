"""How much of forgetting is the last layer's: accuracy by the classifier, and by the nearest class mean of remembered features.

The paper's `tab:NCM_trick` and `tab:all_ncm_trick`, which has DVC and OCM besides: CIFAR-100, memory 1000.  Both numbers are of
one training: the probe `NCM` looks at its end.  12 methods x 5 seeds = 60 runs at `full`, `tab_clear`'s.  The means are taken
in the features of the network that predicts, as the authors have it.

    onepass paper tab:NCM_trick --where method=er,er+mkd --run

Smoke: digits, 12 methods x 2 seeds, `tab_clear`'s.
"""

from onepass import metrics
from onepass.paper.found import Found
from onepass.paper.item import Cell, Item, Label, Scale, grid, values
from onepass.paper.published import DISAGREEMENTS, NCM
from onepass.paper.table import Blocks, Line, Table, compared
from onepass.probes import NCM as Probe
from onepass.recipes import Family
from onepass.record import Record

MAIN = tuple(base + more for base in ("er", "derpp", "er-ace", "gsa") for more in ("", "+mkd"))
METHODS = tuple(base + more for base in ("er", "derpp", "dvc", "er-ace", "ocm", "gsa") for more in ("", "+mkd"))


def cells(scale: Scale, family: Family) -> list[Cell]:
    return grid(METHODS, {"cifar100": (1000,)}, scale, family, probes=(Probe(),))


def nearest_mean(record: Record) -> float:
    """The final average accuracy in percent, without the classifier."""
    results = record.results
    _, predictions = results.at(f"ncm/{results.stream['infer']}")
    return 100 * metrics.average_accuracy(metrics.accuracy_matrix(predictions, results.arrays["y"], results.tasks)[-1])


def render(found: Found) -> Table:
    blocks: Blocks = []
    for word in values(found.cells, "method"):
        where = {"method": (word,)}
        logits, means = (NCM["cifar100", by, word] for by in ("logits", "ncm"))
        lines = [Line("logits", where, logits), Line("nearest mean", where, means, "logits", nearest_mean)]
        blocks.append(({"method": word}, lines))
    title = "Final average accuracy (%) by logits and by the nearest class mean of what is remembered"
    return compared(found.label.replace(":", "_"), title, found, blocks, first="by", disagreement=DISAGREEMENTS["ncm"])


ITEM = Item(
    "tab_ncm",
    {
        "tab:NCM_trick": Label("accuracy by logits and by the nearest class mean, of four methods", {"method": MAIN}),
        "tab:all_ncm_trick": Label("accuracy by logits and by the nearest class mean, of six methods"),
    },
    cells,
    render,
)
