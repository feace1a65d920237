"""What the teacher's rate alpha does, and the weight lambda of distillation that goes best with it.

The paper's `fig:plasticity_stability_alpha`: how well the teacher does on the task just learnt (plasticity: the mean of a[t, t]),
on the tasks before (stability: the mean over task ends of the mean of a[t, j], j < t) and at the end (accuracy), over alpha, each
with the grid's lambda that is nearest to the law's; the paper does not say with which.  And `fig:lambda_alpha1`, the accuracy of
ER+MKD over alpha and lambda, with `fig:lambda_alpha2`, the line through the best lambdas.  CIFAR-100, memory 5000: 6 alphas x 8
lambdas x 5 seeds = 240 runs at `full`, of which the first figure needs 30.

    onepass paper fig_alpha --where seed=0 --run

Smoke: digits, 3 x 3 x 2 seeds = 18 runs.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from onepass import metrics
from onepass.config import Config
from onepass.distill import MKD
from onepass.losses import lambda_for
from onepass.paper.found import Found
from onepass.paper.item import Cell, Drawing, Item, Label, Scale, configured, renamed, seeds, settings, values
from onepass.recipes import Family
from onepass.teachers import EMA

ALPHAS, LAMBDAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3), (0.5, 1.0, 2.0, 4.0, 5.5, 8.0, 12.0, 16.0)
LAW = (4.5, 14.5)  # the paper's slope and intercept, 9/2 and 29/2
FEW = (0.03, 0.1, 0.3), (0.5, 2.0, 8.0)  # digits: in 144 updates a slower teacher does not get away from its start


def cells(scale: Scale, family: Family) -> list[Cell]:
    alphas, lambdas = FEW if scale == "smoke" else (ALPHAS, LAMBDAS)
    out: list[Cell] = []
    for data, memory in settings(scale, {"cifar100": (5000,)}):
        for alpha in alphas:
            lawful = min(lambdas, key=lambda weight: abs(np.log(weight / lambda_for(alpha))))
            for weight in lambdas:
                for seed in seeds(scale):
                    config = configured("er+mkd", data, memory, seed, scale, family)
                    keys = {"data": data.name, "memory": str(memory), "method": "er+mkd", "seed": str(seed)}
                    keys |= {"alpha": f"{alpha:g}", "lambda": f"{weight:g}", "law": "yes" if weight == lawful else "no"}
                    out.append(Cell(keys, _set(config, alpha, weight)))
    return out


def _set(config: Config, alpha: float, weight: float) -> Config:
    assert isinstance(config.teacher, EMA) and isinstance(config.distill, MKD)
    if (alpha, weight) == (config.teacher.alpha, config.distill.weight or lambda_for(config.teacher.alpha)):
        return config  # the recipe's, and other tables' too
    changed = replace(config, teacher=replace(config.teacher, alpha=alpha), distill=replace(config.distill, weight=weight))
    return renamed(changed, f"-alpha{alpha:g}-lambda{weight:g}")


def render(found: Found) -> list[Drawing]:
    from onepass import figures

    alphas, weights = ([float(v) for v in values(found.cells, key)] for key in ("alpha", "lambda"))
    points = Counter((run.cell.keys["alpha"], run.cell.keys["lambda"]) for run in found.runs)
    least, most = min(points.values()), max(points.values())
    said = f"mean over {most if least == most else f'{least} to {most}'} seeds\n{found.about}"
    title = f"er+mkd: {found.setting}"
    if found.label == "fig:plasticity_stability_alpha":
        matrices = [[run.record.results.matrix("teacher") for run in found.of({"alpha": (f"{a:g}",)})] for a in alphas]
        measured = {name: [[100 * of(m) for m in group] for group in matrices] for name, of in MEASURES.items()}
        note = f"lambda: of the grid, the nearest to the law's; {said}"
        return [Drawing("fig_plasticity_stability_alpha", figures.plasticity_and_stability(alphas, measured, title, note))]
    accuracy = np.array([[_accuracy(found, alpha, weight) for alpha in alphas] for weight in weights])
    grid = figures.Grid(alphas, weights, accuracy)
    best = [*grid.best().values()]
    if at_edge := sum(weight in (min(weights), max(weights)) for weight in best):
        said = f"{at_edge} of {len(best)} best at an edge of the grid, where a better one may lie beyond it; {said}"
    published = figures.Law(*LAW) if found.scale == "full" else None
    if found.label == "fig:lambda_alpha1":
        note = f"framed: the best lambda of an alpha that was run with all; {said}"
        return [Drawing("fig_lambda_alpha1", figures.heat_map(grid, title, note, published))]
    return [Drawing("fig_lambda_alpha2", figures.fitted_line(grid, title, said, published))]


def _accuracy(found: Found, alpha: float, weight: float) -> float:
    """In percent, the mean over seeds; nan where nothing was run."""
    where = {"alpha": (f"{alpha:g}",), "lambda": (f"{weight:g}",)}
    return 100 * metrics.mean_std([*found.by_seed(where, lambda record: record.summary["accuracy"]).values()])[0]


def _final(matrix: np.ndarray) -> float:
    return metrics.average_accuracy(matrix[-1])


MEASURES = {"accuracy": _final, "plasticity": metrics.plasticity, "stability": metrics.stability}

ITEM = Item(
    "fig_alpha",
    {
        "fig:plasticity_stability_alpha": Label("the teacher's plasticity and stability, over its rate alpha", {"law": ("yes",)}),
        "fig:lambda_alpha1": Label("accuracy of er+mkd over alpha and the weight lambda of distillation"),
        "fig:lambda_alpha2": Label("the best lambda for each alpha, and the line through them"),
    },
    cells,
    render,
)
