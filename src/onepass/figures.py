"""Recorded arrays as figures."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cycler import cycler
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.isotonic import isotonic_regression

INK, SOFT, FAINT = "#222222", "#666666", "#a8a8a8"  # text; text by the way; lines that only divide
# Okabe and Ito's, which the colour-blind tell apart; without their yellow, which is lost on white paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COUNTS = "Blues"
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",  # what a viewer of the SVG without the next one falls back on
    "font.sans-serif": "DejaVu Sans",  # comes with matplotlib: the same layout everywhere
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.prop_cycle": cycler(linestyle=["-", "--", ":"]) * cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "figure.titlesize": "large",
    "figure.titleweight": "bold",
    "lines.linewidth": 1.6,
    "savefig.bbox": "tight",
    "xtick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.color": INK,
    "ytick.major.width": 0.6,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "onepass",
}
styled = style.context(STYLE, after_reset=True)  # for all that makes or saves a figure; no matplotlibrc has a say


class Curve(NamedTuple):
    """The accuracy, in [0, 1], after so many images of the stream."""

    samples: np.ndarray  # increasing
    accuracy: np.ndarray


@styled
def along_the_stream(curves: Mapping[str, Sequence[Curve]], task_ends: Sequence[int], title: str) -> Figure:
    """The accuracy of each method over time: its mean over seeds, in a band of one standard deviation either side."""
    figure = Figure(figsize=(6.6, 3.6))
    axes = figure.add_subplot(xlabel="images seen", ylabel="accuracy on the tasks so far (%)")
    for end in task_ends:
        axes.axvline(end, color=FAINT, linestyle=(0, (4, 3)), linewidth=0.6, zorder=0, clip_on=False)
    lines: dict[str, Line2D] = {}
    for method, seeds in curves.items():
        samples, percent = _on_one_grid(seeds)
        mean = percent.mean(0)
        (lines[method],) = axes.plot(samples, mean)
        if len(seeds) > 1:
            std = percent.std(0, ddof=1)
            band = np.clip([mean - std, mean + std], 0, 100)
            axes.fill_between(samples, *band, color=lines[method].get_color(), alpha=0.18, linewidth=0)
    axes.margins(x=0, y=0.03)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    _name_ends(axes, lines)
    least, most = min(map(len, curves.values())), max(map(len, curves.values()))
    count = f"{most}" if least == most else f"{least} to {most}"
    _title(axes, title, f"Mean of {count} seeds, in a band of one standard deviation" if most > 1 else "")
    return _laid_out(figure)


@styled
def confusions(
    matrices: Mapping[str, np.ndarray], names: Sequence[str] | None, tasks: Sequence[Sequence[int]], title: str
) -> Figure:
    """Confusion matrices side by side, classes in training order, counts on a scale of log(1 + count)."""
    rows = -(-len(matrices) // 4)
    columns = -(-len(matrices) // rows)
    classes = max(len(counts) for counts in matrices.values())
    labels = [] if classes > 20 else names or [str(c) for c in range(classes)]
    side, margin = max(2.1, 0.14 * len(labels)), 0.07 * max(map(len, labels), default=3)  # inches
    size = columns * (side + 0.1) + margin + 1.3, rows * (side + 0.3) + margin + 0.8
    figure = Figure(figsize=size, layout="compressed")
    figure.suptitle(title, x=0.01, ha="left")
    top = max(1, *(int(counts.max()) for counts in matrices.values()))
    scale = FuncNorm((np.log1p, np.expm1), vmin=0, vmax=top)
    for i, (method, counts) in enumerate(matrices.items()):
        left, bottom = i % columns == 0, i // columns == rows - 1
        axes = figure.add_subplot(rows, columns, i + 1, title=method)
        axes.set(xlabel="predicted class" if bottom else "", ylabel="true class" if left else "")
        axes.imshow(counts, cmap=COUNTS, norm=scale, interpolation="none")  # "none": SVG gets the cells themselves
        axes.spines[:].set_visible(True)
        for edge in np.cumsum([len(task) for task in tasks])[:-1] - 0.5:
            axes.axhline(edge, color=FAINT, linewidth=0.4)
            axes.axvline(edge, color=FAINT, linewidth=0.4)
        if labels:
            axes.set_xticks(range(classes), labels, rotation=90 if names else 0, size="small")
            axes.set_yticks(range(classes), labels, size="small")
        axes.tick_params(left=left, labelleft=left, bottom=bottom, labelbottom=bottom)
    ticks = [0, *(t for k in range(9) for t in (10**k, 3 * 10**k) if t <= top)]
    image = figure.axes[0].images[0]
    figure.colorbar(image, ax=figure.axes, label="test images (log scale)", ticks=ticks, format="{x:,.0f}", aspect=30)
    return _laid_out(figure)


@styled
def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png, each whole or not at all; the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for kind, metadata in (("svg", {"Date": None}), ("png", None)):
        path = stem.with_name(f"{stem.name}.{kind}")
        aside = path.with_name(f"{path.name}.part")
        figure.savefig(aside, format=kind, dpi=160, metadata=metadata)
        os.replace(aside, path)
        paths.append(path)
    return paths


def _laid_out(figure: Figure) -> Figure:
    """Decide now where everything goes; matplotlib would do it anew, a little differently, with each drawing."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _on_one_grid(seeds: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The first curve's samples, as far as all curves reach, and the accuracy of each curve there in percent."""
    start, end = max(c.samples[0] for c in seeds), min(c.samples[-1] for c in seeds)
    samples = np.unique(np.clip(seeds[0].samples, start, end))
    return samples, 100 * np.array([np.interp(samples, c.samples, c.accuracy) for c in seeds])


def _title(axes: Axes, title: str, note: str) -> None:
    """A title, and between it and the axes what the reader has to know."""
    axes.set_title(title, weight="bold", size="large", pad=20 if note else None)
    axes.annotate(note, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", color=SOFT)


def _name_ends(axes: Axes, lines: Mapping[str, Line2D]) -> None:
    """Write the name of each line beside its end, in ink, which reads better than the colour of the line."""
    low, high = axes.get_ylim()
    ends = [np.asarray(line.get_xydata())[-1] for line in lines.values()]
    heights = _spread(np.array([y for _, y in ends]), 0.058 * (high - low), low, high)
    for (name, line), (x, y), height in zip(lines.items(), ends, heights, strict=True):
        leader = {"arrowstyle": "-", "color": line.get_color(), "linestyle": line.get_linestyle()}
        fit = {"patchA": None, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        place = axes.get_yaxis_transform()
        axes.annotate(f" {name}", (x, y), (1.04, height), textcoords=place, va="center", arrowprops=leader | fit)


def _spread(y: np.ndarray, gap: float, low: float, high: float) -> np.ndarray:
    """The heights in [low, high] nearest to `y` that keep its order and are `gap` apart."""
    order, steps = np.argsort(y, kind="stable"), gap * np.arange(len(y))
    spread = np.empty(len(y))
    spread[order] = isotonic_regression(y[order] - steps, y_min=low, y_max=high - steps[-1]) + steps
    return spread
