"""Which classes a stream shows when."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from onepass.figures.style import FAINT, PALETTE, blank, head, laid_out, over_all, plain, styled


class Shown(NamedTuple):
    """The class of each image of a stream, and where its tasks end (on a blurry stream: nominally)."""

    y: np.ndarray | Sequence[int]
    task_ends: Sequence[int]


@styled
def presence(
    streams: Mapping[str, Shown | None], tasks: Sequence[Sequence[int]], title: str, note: str = "", names: Sequence[str] = ()
) -> Figure:
    """For each stream, classes upwards in training order and time to the right: the darker, the more images of the class then.
    The classes have their `names` where there is room."""
    classes = sum(map(len, tasks))
    colors = np.ones((classes, 1, 3))
    for t, task in enumerate(tasks):
        colors[list(task)] = to_rgb(PALETTE[t % 6])
    figure = Figure(figsize=(6.6, 1.75 * len(streams) + 0.8))
    over_all(figure, title, note)
    for i, (name, stream) in enumerate(streams.items()):
        axes = figure.add_subplot(len(streams), 1, i + 1, ylabel="class")
        head(axes, name, "")
        if stream is None:
            blank(axes, "the data is not there")
            continue
        times, rows = _pieces(stream), np.arange(classes + 1) - 0.5
        counts, _, _ = np.histogram2d(stream.y, np.arange(len(stream.y)), bins=(rows, times))
        rate = counts / np.diff(times)
        share = np.sqrt(rate / rate.max())[..., None]  # a root, so that the last stragglers are seen
        axes.pcolormesh(times, rows, 1 - share * (1 - colors), rasterized=True)
        for end in stream.task_ends[:-1]:
            axes.axvline(end, color=FAINT, linestyle=(0, (4, 3)), linewidth=0.6)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="y", integer=True)
        if names and classes <= 12:
            axes.set_yticks(range(classes), [plain(name) for name in names])
        axes.set_xlabel("images seen" if i == len(streams) - 1 else "")
    return laid_out(figure)


def _pieces(stream: Shown, most: int = 240) -> np.ndarray:
    """Where to cut time, in at most so many pieces of 12 images or more, so that no piece goes over the end of a task."""
    count = min(most, len(stream.y) // 12)
    edges = [0.0]
    for end in stream.task_ends:
        pieces = max(1, round(count * (end - edges[-1]) / len(stream.y)))
        edges += np.linspace(edges[-1], end, pieces + 1)[1:].tolist()
    return np.array(edges)
