"""Images as they are, and as a network sees them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from onepass.figures.style import SOFT, head, laid_out, plain, styled

GAP = 0.08  # between two images, in images


@styled
def samples(raw: np.ndarray, views: np.ndarray, names: Sequence[str], title: str, note: str = "") -> Figure:
    """A row for each image, (n, c, h, w), and beside it some of its views, (n, k, c, h, w), all in [0, 1]."""
    n, k = views.shape[:2]
    blocks = 2 if n > 5 else 1
    rows = -(-n // blocks)
    longest = max(map(len, names))
    figure = Figure(figsize=(blocks * (0.62 * (k + 1.3) + 0.075 * longest), 0.62 * rows + 0.9))
    for b in range(blocks):
        axes = figure.add_subplot(1, blocks, b + 1)
        shown = range(b * rows, min(n, (b + 1) * rows))
        for row, i in enumerate(shown):
            for column, image in enumerate((raw[i], *views[i])):
                left = column * (1 + GAP) + (3 * GAP if column else 0)  # a wider gap between an image and its views
                top = row * (1 + GAP)
                pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
                axes.imshow(
                    pixels.clip(0, 1), cmap="gray", vmin=0, vmax=1, extent=(left, left + 1, top + 1, top), interpolation="none"
                )
        axes.set(xlim=(0, k * (1 + GAP) + 1 + 3 * GAP), ylim=(rows * (1 + GAP) - GAP, 0), aspect="equal")
        axes.set_yticks([row * (1 + GAP) + 0.5 for row in range(len(shown))], [plain(names[i]) for i in shown])
        axes.set_xticks([0.5, (k + 1) * (1 + GAP) / 2 + 0.5 + 2 * GAP], ["raw", "augmented"], color=SOFT)
        axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
        head(axes, title if b == 0 else "", note if b == 0 else "")
    return laid_out(figure)
