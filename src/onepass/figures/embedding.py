"""What is remembered, as a map: features in two dimensions, by t-SNE, a colour for each class."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from onepass.figures.style import blank, laid_out, over_all, styled

# Tol's muted colours, which the colour-blind tell apart, and black.
FEW = ("#332288", "#CC6677", "#117733", "#88CCEE", "#882255", "#DDCC77", "#44AA99", "#AA4499", "#999933", "#000000")
MANY = "viridis"


class Cloud(NamedTuple):
    """Points, and the class of each, numbered in training order."""

    points: np.ndarray  # (n, 2)
    y: np.ndarray  # (n,)


def tsne(features: np.ndarray, perplexity: float = 30.0, seed: int = 0) -> np.ndarray:
    """Features (n, d) in two dimensions (n, 2); of fewer than 91, a third of their number is the perplexity."""
    from sklearn.manifold import TSNE

    if len(features) < 4:
        return np.zeros((len(features), 2))
    perplexity = min(perplexity, (len(features) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(features.astype(np.float32))


@styled
def embeddings(
    clouds: Mapping[str, Cloud | None], names: Sequence[str], title: str, note: str = "", columns: int | None = None
) -> Figure:
    """A panel for each cloud; a class that has a place there is named: by its name or, where classes are many, by its number."""
    columns = columns or min(4, len(clouds))
    rows = -(-len(clouds) // columns)
    few = len(names) <= len(FEW)
    colors = FEW[: len(names)] if few else colormaps[MANY](np.linspace(0, 0.94, len(names)))
    side = 3.1 if columns <= 2 else 2.4
    figure = Figure(figsize=(columns * side + 0.8, rows * (side + 0.25) + 0.6 + 0.2 * bool(note)), layout="compressed")
    over_all(figure, title, note)
    for i, (method, cloud) in enumerate(clouds.items()):
        axes = figure.add_subplot(rows, columns, i + 1, title=method)
        axes.set(xticks=[], yticks=[], box_aspect=1)
        axes.spines[:].set(visible=True, color="#dddddd")
        if cloud is None:
            blank(axes)
            continue
        size = float(np.clip(1500 / len(cloud.y), 1.5, 18))
        axes.scatter(*cloud.points.T, s=size, c=[colors[c] for c in cloud.y], linewidths=0, rasterized=True)
        for c, (x, y) in _middles(cloud).items():
            plate = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
            axes.text(x, y, names[c] if few else f"{c}", ha="center", va="center", size=7 if few else 5, bbox=plate)
    if few:
        dots = [
            Line2D([], [], marker="o", linestyle="", markersize=4, color=c, label=n) for c, n in zip(colors, names, strict=True)
        ]
        figure.legend(handles=dots, loc="outside right upper", frameon=False, handletextpad=0.2)
    else:
        of = ScalarMappable(Normalize(0, len(names)), ListedColormap(list(colors)))
        figure.colorbar(of, ax=figure.axes, label="class, in training order", aspect=40, shrink=0.8)
    return laid_out(figure)


def _middles(cloud: Cloud) -> dict[int, np.ndarray]:
    """The median of each class that has a place: half of it lies within a tenth of the picture's width from there."""
    out: dict[int, np.ndarray] = {}
    for c in np.unique(cloud.y):
        points = cloud.points[cloud.y == c]
        middle = np.median(points, axis=0)
        if np.median(np.linalg.norm(points - middle, axis=1)) <= 0.1 * np.ptp(cloud.points, axis=0).max():
            out[int(c)] = middle
    return out
