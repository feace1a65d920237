"""What is remembered at the end of training, by t-SNE of its features: how far classes lie apart, alone and with MKD.

The paper's `fig:tsne`, of ER on CIFAR-10, memory 1000, and `fig:all_tsne`, of six methods on CIFAR-100, memory 5000; clear tasks,
seed 0.  Features of raw images by the student in evaluation mode (the probe `MemoryFeatures`), perplexity 30, which the paper
gives for the second.  14 runs at `full`, all of them `tab_clear`'s.

    onepass paper fig:tsne --run

Smoke: digits, 10 runs of their own: a memory of 200, since there is nothing to see in 20 images; without OCM, which would cost as
much as all the others.
"""

from onepass.data import source
from onepass.paper.found import Found
from onepass.paper.item import Cell, Drawing, Item, Label, Scale, configured, values
from onepass.probes import MemoryFeatures
from onepass.recipes import Family

BASES = ("er", "derpp", "dvc", "er-ace", "gsa", "ocm")
PARTS = {"main": (("cifar10", 1000), BASES[:1]), "appendix": (("cifar100", 5000), BASES)}


def cells(scale: Scale, family: Family) -> list[Cell]:
    out: list[Cell] = []
    for part, (full, bases) in PARTS.items():
        name, memory = ("digits", 200) if scale == "smoke" else full
        for word in (base + more for base in bases if (scale, base) != ("smoke", "ocm") for more in ("", "+mkd")):
            config = configured(word, source(name), memory, 0, scale, family, probes=(MemoryFeatures(),))
            out.append(Cell({"data": name, "memory": str(memory), "method": word, "seed": "0", "part": part}, config))
    return out


def render(found: Found) -> list[Drawing]:
    from onepass import figures
    from onepass.figures.embedding import Cloud

    there = {run.cell.keys["method"]: run.record.results for run in found.runs}
    clouds: dict[str, Cloud | None] = {}
    for word in values(found.cells, "method"):
        results = there.get(word)
        clouds[word] = None
        if results is not None:
            (features,), (y,) = results.at("memory/features")[1], results.at("memory/y")[1]
            clouds[word] = Cloud(figures.tsne(features), y)
    names = found.runs[0].record.results.stream["names"]
    title = f"What is remembered, by t-SNE: {found.setting}"
    drawn = figures.embeddings(clouds, names, title, f"seed 0; perplexity 30; {found.about}")
    return [Drawing(found.label.replace(":", "_"), drawn)]


ITEM = Item(
    "fig_tsne",
    {
        "fig:tsne": Label("t-SNE of what er remembers, alone and with MKD", {"part": ("main",)}),
        "fig:all_tsne": Label("t-SNE of what each method remembers, alone and with MKD", {"part": ("appendix",)}),
    },
    cells,
    render,
)
