"""What the teacher's rate does: plasticity and stability, and the weight of distillation that goes best with it."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator

from onepass.figures.style import INK, PALETTE, SOFT, head, laid_out, legend, name_ends, styled
from onepass.metrics import mean_std

HEAT = "cividis"  # the same to those who see all colours and to those who do not, and in grey


class Law(NamedTuple):
    """weight = slope * log10(alpha) + intercept"""

    slope: float
    intercept: float

    def __str__(self) -> str:
        sign = "−" if self.intercept < 0 else "+"
        return rf"$\lambda = {self.slope:.2f}\,\log_{{10}}\alpha {sign} {abs(self.intercept):.2f}$"


class Grid(NamedTuple):
    """Accuracy in percent for each weight (a row) and each alpha (a column), nan where there is none."""

    alphas: Sequence[float]
    weights: Sequence[float]
    accuracy: np.ndarray

    def best(self) -> dict[float, float]:
        """The weight of the highest accuracy for each alpha that has one for all weights."""
        columns = zip(self.alphas, self.accuracy.T, strict=True)
        return {alpha: self.weights[int(column.argmax())] for alpha, column in columns if not np.isnan(column).any()}


def fit(points: Mapping[float, float]) -> Law | None:
    """The line of least squares through (log10 of alpha, weight); None where there are not three points."""
    if len(points) < 3:
        return None
    return Law(*(float(v) for v in np.polyfit(np.log10(list(points)), list(points.values()), 1)))


@styled
def plasticity_and_stability(
    alphas: Sequence[float], measures: Mapping[str, Sequence[Sequence[float]]], title: str, note: str = ""
) -> Figure:
    """Each measure of the teacher over alpha: in percent, for each alpha one number a seed."""
    figure = Figure(figsize=(5.6, 3.4))
    axes = figure.add_subplot(xscale="log", xlabel=r"$\alpha$", ylabel="accuracy of the teacher (%)")
    drawn: dict[str, Line2D] = {}
    for (name, numbers), marker in zip(measures.items(), "osD^v", strict=False):
        known = [(alpha, *mean_std(seeds)) for alpha, seeds in zip(alphas, numbers, strict=True) if len(seeds)]
        x, mean, std = np.array(known).reshape(-1, 3).T
        (line,) = axes.plot(x, mean, marker=marker, markersize=4)
        axes.fill_between(x, mean - std, mean + std, color=line.get_color(), alpha=0.18, linewidth=0)
        if len(x):
            drawn[name] = line
    _scale(axes, "x", alphas, margin=1.25)
    name_ends(axes, drawn)
    head(axes, title, note)
    return laid_out(figure)


@styled
def heat_map(grid: Grid, title: str, note: str = "", published: Law | None = None) -> Figure:
    """Accuracy over alpha and weight; the best weight of each alpha framed, and the line through them."""
    alphas, weights, accuracy = grid
    figure = Figure(figsize=(5.8, 4.2))
    axes = figure.add_subplot(xlabel=r"$\alpha$", ylabel=r"$\lambda_\alpha$")
    x, y = _scale(axes, "x", alphas), _scale(axes, "y", weights)
    axes.tick_params(length=0)
    axes.set_facecolor("#eeeeee")  # not run yet
    known = accuracy[~np.isnan(accuracy)]
    image = axes.pcolormesh(x, y, np.ma.masked_invalid(accuracy), cmap=HEAT, edgecolor="white", linewidth=0.4)
    if len(known):
        figure.colorbar(image, ax=axes, label="final average accuracy (%)", aspect=30)
    else:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", color=SOFT)
    for (row, column), value in np.ndenumerate(accuracy):
        if not np.isnan(value):
            ink = INK if value > known.min() + 0.6 * np.ptp(known) else "white"
            plate = {"boxstyle": "square,pad=0.1", "facecolor": image.to_rgba(value), "edgecolor": "none"}  # lines go behind it
            at, text = (alphas[column], weights[row]), f"{value:.1f}"
            axes.text(*at, text, color=ink, bbox=plate, ha="center", va="center", size="small", zorder=4)
    points = grid.best()
    for alpha, weight in points.items():
        i, j = alphas.index(alpha), weights.index(weight)
        axes.add_patch(Rectangle((x[i], y[j]), x[i + 1] - x[i], y[j + 1] - y[j], fill=False, ec=PALETTE[1], lw=1.8, zorder=3))
    _laws(axes, np.geomspace(x[0], x[-1], 200), fit(points), published)
    legend(figure, "outside lower left")
    head(axes, title, note)
    return laid_out(figure)


@styled
def fitted_line(grid: Grid, title: str, note: str = "", published: Law | None = None) -> Figure:
    """The best weight of each alpha, and the line through them."""
    figure = Figure(figsize=(5.2, 3.4))
    axes = figure.add_subplot(xlabel=r"$\alpha$", ylabel=r"$\lambda_{best}$")
    x, _ = _scale(axes, "x", grid.alphas), axes.set_ylim(0, 1.08 * max(grid.weights))
    points = grid.best()
    axes.plot(list(points), list(points.values()), "o", color=PALETTE[1], markersize=6, zorder=3, label="best of the grid")
    _laws(axes, np.geomspace(x[0], x[-1], 200), fit(points), published)
    axes.legend(loc="best", frameon=False)
    if not points:
        axes.text(0.5, 0.5, "no alpha was run with every weight yet", transform=axes.transAxes, ha="center", color=SOFT)
    head(axes, title, note)
    return laid_out(figure)


def _laws(axes: Axes, x: np.ndarray, ours: Law | None, published: Law | None) -> None:
    halo = [withStroke(linewidth=2.6, foreground="white", alpha=0.7)]
    for law, whose, dashes in (ours, "fit", "-"), (published, "paper", "--"):
        if law is not None:
            y = law.slope * np.log10(x) + law.intercept
            axes.plot(x, y, dashes, color=INK, lw=1.2, label=f"{whose}: {law}", path_effects=halo)


def _scale(axes: Axes, which: Literal["x", "y"], values: Sequence[float], margin: float | None = None) -> np.ndarray:
    """A log axis with a tick at each value; the edges of cells around them, half-way between neighbours, where it ends."""
    logs = np.log(np.asarray(values, dtype=float))
    between = (logs[1:] + logs[:-1]) / 2
    first, last = (between[0], between[-1]) if len(between) else (logs[0] - 0.5, logs[-1] + 0.5)
    edges = np.exp([2 * logs[0] - first, *between, 2 * logs[-1] - last])
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log")
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(list(values), [f"{v:g}" for v in values])
    getattr(axes, f"set_{which}lim")(*(edges[[0, -1]] if margin is None else (values[0] / margin, values[-1] * margin)))
    return edges
