"""Confusion matrices side by side, classes in training order, counts on a scale of log(1 + count)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure

from onepass.figures.style import FAINT, blank, laid_out, over_all, plain, styled

COUNTS = "Blues"


@styled
def confusions(
    matrices: Mapping[str, np.ndarray | None],
    names: Sequence[str] | None,
    tasks: Sequence[Sequence[int]],
    title: str,
    note: str = "",
    columns: int | None = None,
) -> Figure:
    """A panel for each matrix, in rows of `columns`; None: there is none yet."""
    rows = -(-len(matrices) // (columns or 4))
    columns = columns or -(-len(matrices) // rows)
    there = [counts for counts in matrices.values() if counts is not None]
    classes = max((len(counts) for counts in there), default=0)
    labels = [] if classes > 20 else [plain(name) for name in names or map(str, range(classes))]
    side, margin = max(2.1 if columns < 5 else 1.2, 0.14 * len(labels)), 0.07 * max(map(len, labels), default=3)  # inches
    size = columns * (side + 0.1) + margin + 1.3, rows * (side + 0.3) + margin + 0.8 + 0.2 * bool(note)
    figure = Figure(figsize=size, layout="compressed")
    over_all(figure, title, note)
    top = max(1, *(int(counts.max()) for counts in there)) if there else 1
    scale = FuncNorm((np.log1p, np.expm1), vmin=0, vmax=top)
    for i, (method, counts) in enumerate(matrices.items()):
        left, bottom = i % columns == 0, i // columns == rows - 1
        axes = figure.add_subplot(rows, columns, i + 1, title=method)
        axes.set(xlabel="predicted class" if bottom else "", ylabel="true class" if left else "")
        axes.spines[:].set_visible(True)
        if counts is None:
            axes.set_box_aspect(1)
            blank(axes)
            continue
        axes.imshow(counts, cmap=COUNTS, norm=scale, interpolation="none")  # "none": SVG gets the cells themselves
        for edge in np.cumsum([len(task) for task in tasks])[:-1] - 0.5:
            axes.axhline(edge, color=FAINT, linewidth=0.4)
            axes.axvline(edge, color=FAINT, linewidth=0.4)
        if labels:
            axes.set_xticks(range(classes), labels, rotation=90 if max(map(len, labels)) > 2 else 0, size="small")
            axes.set_yticks(range(classes), labels, size="small")
        else:
            axes.set(xticks=range(0, classes, -(-classes // 5)), yticks=range(0, classes, -(-classes // 5)))
        axes.tick_params(left=left, labelleft=left, bottom=bottom, labelbottom=bottom)
    ticks = [0, *(t for k in range(9) for t in (10**k, 3 * 10**k) if t <= top)]
    images = [axes.images[0] for axes in figure.axes if axes.images]
    if images:
        figure.colorbar(images[0], ax=figure.axes, label="test images (log scale)", ticks=ticks, format="{x:,.0f}", aspect=30)
    return laid_out(figure)
