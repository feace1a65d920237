"""What changes along the stream: accuracy, and how far an update moves old features."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from onepass.figures.style import FAINT, PALETTE, blank, head, laid_out, legend, name_ends, over_all, styled


class Curve(NamedTuple):
    """The accuracy, in [0, 1], after so many images of the stream."""

    samples: np.ndarray  # increasing
    accuracy: np.ndarray


@styled
def along_the_stream(
    curves: Mapping[str, Sequence[Curve]], task_ends: Sequence[int], title: str, what: str = "accuracy on the tasks so far (%)"
) -> Figure:
    """The accuracy of each method over time: its mean over seeds, in a band of one standard deviation either side."""
    figure = Figure(figsize=(6.6, 3.6))
    axes = figure.add_subplot(xlabel="images seen", ylabel=what)
    _mark(axes, task_ends)
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
    name_ends(axes, lines)
    least, most = min(map(len, curves.values())), max(map(len, curves.values()))
    count = f"{most}" if least == most else f"{least} to {most}"
    head(axes, title, f"Mean of {count} seeds, in a band of one standard deviation" if most > 1 else "")
    return laid_out(figure)


@styled
def networks(panels: Mapping[str, Mapping[str, Curve]], task_ends: Sequence[int], title: str, note: str = "") -> Figure:
    """The accuracy of each network of a method at the ends of tasks, a panel for each method and a colour for each network."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.6, 3.4) if columns == 1 else (2.7 * columns + 0.5, 2.2 * rows + 0.9))
    over_all(figure, title, note)
    shared = None
    for i, (name, curves) in enumerate(panels.items()):
        axes = shared = figure.add_subplot(rows, columns, i + 1, title=name, sharex=shared, sharey=shared)
        axes.set(ylabel="accuracy (%)" if i % columns == 0 else "", xlabel="images seen" if i + columns >= len(panels) else "")
        _mark(axes, task_ends)
        for label, curve in curves.items():
            axes.plot(curve.samples, 100 * curve.accuracy, marker="o", markersize=3, label=label)
        axes.set(xlim=(0, None))
        axes.locator_params(axis="x", nbins=6 if columns == 1 else 3)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(figure)
    return laid_out(figure)


class Drift(NamedTuple):
    """How far one update moves the features of past tasks, after so many images of the stream."""

    samples: np.ndarray  # increasing
    distance: np.ndarray


DASHES = ("-", (0, (4, 1)), (0, (1, 1)))  # what tells the versions apart where there is no colour


@styled
def drifts(panels: Mapping[str, Mapping[str, Drift | None]], task_ends: Sequence[int], title: str, note: str = "") -> Figure:
    """Drift over time, a panel for each method and a colour for each of its versions: as measured, pale, and smoothed."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (6.6, 3.4) if columns == 1 else (2.7 * columns + 0.5, 2.2 * rows + 0.9)
    figure = Figure(figsize=size)
    over_all(figure, title, note)
    for i, (name, courses) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, i + 1, title=name)
        there = {label: course for label, course in courses.items() if course is not None and len(course.samples)}
        axes.set(ylabel="feature drift" if i % columns == 0 else "", xlabel="images seen" if i + columns >= len(panels) else "")
        if not there:
            blank(axes)
            continue
        _mark(axes, task_ends)
        for color, dashes, (label, course) in zip(PALETTE, DASHES, courses.items(), strict=False):
            if label in there and course is not None:
                axes.plot(*course, color=color, linestyle="-", alpha=0.3, linewidth=0.8)
                axes.plot(course.samples, smoothed(*course), color=color, linestyle=dashes, label=label)
        axes.margins(x=0)
        axes.set(xlim=(0, None), ylim=(0, None))
        axes.locator_params(axis="x", nbins=6 if columns == 1 else 3)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    legend(figure)
    return laid_out(figure)


def smoothed(samples: np.ndarray, values: np.ndarray, width: float = 0.02) -> np.ndarray:
    """A mean of neighbours, weighed by a normal distribution with a deviation of `width` of the whole length."""
    distance = (samples[:, None] - samples) / (width * max(float(samples[-1]), 1.0))
    weight = np.exp(-0.5 * distance**2)
    return weight @ values / weight.sum(1)


def _mark(axes: Axes, task_ends: Sequence[int]) -> None:
    for end in task_ends:
        axes.axvline(end, color=FAINT, linestyle=(0, (4, 3)), linewidth=0.6, zorder=0, clip_on=False)


def _on_one_grid(seeds: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """The first curve's samples, as far as all curves reach, and the accuracy of each curve there in percent."""
    start, end = max(c.samples[0] for c in seeds), min(c.samples[-1] for c in seeds)
    samples = np.unique(np.clip(seeds[0].samples, start, end))
    return samples, 100 * np.array([np.interp(samples, c.samples, c.accuracy) for c in seeds])
