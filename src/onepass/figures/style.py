"""What all figures have in common: colours that the colour-blind tell apart, sizes, titles, and how they are saved."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from cycler import cycler
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.isotonic import isotonic_regression

INK, SOFT, FAINT = "#222222", "#666666", "#a8a8a8"  # text; text by the way; lines that only divide
# Okabe and Ito's, which the colour-blind tell apart; without their yellow, which is lost on white paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
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
    "pdf.fonttype": 42,  # text stays text, in a type that publishers take
}
styled = style.context(STYLE, after_reset=True)  # for all that makes or saves a figure; no matplotlibrc has a say

Kind = Literal["svg", "png", "pdf"]
UNDATED: dict[Kind, dict[str, None] | None] = {"svg": {"Date": None}, "png": None, "pdf": {"CreationDate": None}}


@styled
def save(figure: Figure, stem: Path, kinds: Sequence[Kind] = ("svg", "png")) -> list[Path]:
    """Write `stem`.svg and `stem`.png (or `pdf`), each whole or not at all; the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for kind in kinds:
        path = stem.with_name(f"{stem.name}.{kind}")
        aside = path.with_name(f"{path.name}.part")
        # in the others resolution is only that of clouds of points, which are pixels there too
        figure.savefig(aside, format=kind, dpi=160 if kind == "png" else 300, metadata=UNDATED[kind])
        os.replace(aside, path)
        paths.append(path)
    return paths


def laid_out(figure: Figure) -> Figure:
    """Decide now where everything goes; matplotlib would do it anew, a little differently, with each drawing."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        for note in axes.texts:
            note.set_in_layout(True)  # for the edges of the page
    return figure


def head(axes: Axes, text: str, note: str) -> None:
    """A title, and between it and the axes what the reader has to know."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    note = wrapped(note, 0.9 * figure.get_figwidth())  # it begins where the axes do
    lines = note.count("\n") + 1 if note else 0
    axes.set_title(text, weight="bold", size="large", pad=6 + 14 * lines if note else None)
    said = axes.annotate(note, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", color=SOFT)
    said.set_in_layout(False)  # the title has made room above, and to the right a long one need not


def wrapped(note: str, inches: float) -> str:
    """A note in lines that are no longer than the page is wide."""
    return "\n".join(textwrap.fill(line, int(14 * inches), break_long_words=False) for line in note.split("\n"))


def over_all(figure: Figure, text: str, note: str) -> None:
    """A title over several axes, and below them what the reader has to know."""
    figure.suptitle(text, x=0.01, ha="left")
    if note:
        figure.supxlabel(wrapped(note, figure.get_figwidth()), x=0.01, ha="left", size="medium", color=SOFT)


def plain(text: str) -> str:
    """What a user called something, as it is to be written: no mathematics."""
    return text.replace("$", r"\$")


def legend(figure: Figure, place: Literal["outside upper right", "outside lower left"] = "outside upper right") -> None:
    """One legend for all axes, each label once."""
    handles = {label: h for axes in figure.axes for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc=place, ncols=len(handles), frameon=False)


def blank(axes: Axes, text: str = "not run yet") -> None:
    """Axes for which there is nothing to draw."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=SOFT)
    axes.set(xticks=[], yticks=[])


def name_ends(axes: Axes, lines: Mapping[str, Line2D]) -> None:
    """Write the name of each line beside its end, in ink, which reads better than the colour of the line."""
    low, high = axes.get_ylim()
    ends = [np.asarray(line.get_xydata())[-1] for line in lines.values()]
    tall = max(name.count("\n") + 1 for name in lines)
    gap = min(0.058 * tall, 1 / max(len(lines) - 1, 1))  # of the axes: a name's height, or less where there are too many
    heights = spread(np.array([y for _, y in ends]), gap * (high - low), low, high)
    for (name, line), (x, y), height in zip(lines.items(), ends, heights, strict=True):
        leader = {"arrowstyle": "-", "color": line.get_color(), "linestyle": line.get_linestyle()}
        fit = {"patchA": None, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        place = axes.get_yaxis_transform()
        axes.annotate(f" {name}", (x, y), (1.04, height), textcoords=place, va="center", arrowprops=leader | fit)


def spread(y: np.ndarray, gap: float, low: float, high: float) -> np.ndarray:
    """The heights in [low, high] nearest to `y` that keep its order and are `gap` apart."""
    order, steps = np.argsort(y, kind="stable"), gap * np.arange(len(y))
    out = np.empty(len(y))
    out[order] = isotonic_regression(y[order] - steps, y_min=low, y_max=high - steps[-1]) + steps
    return out
