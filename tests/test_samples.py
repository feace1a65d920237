"""Images and their views, side by side."""

from __future__ import annotations

import numpy as np
import pytest

from onepass.figures import samples


@pytest.mark.parametrize(("n", "channels"), [(1, 3), (5, 1), (9, 3)])
def test_every_image_and_view_is_drawn_in_its_place(n: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    raw, views = rng.uniform(size=(n, channels, 4, 6)), rng.uniform(-0.1, 1.1, size=(n, 3, channels, 4, 6))
    names = [f"name {i}" for i in range(n)]
    figure = samples(raw, views, names, "a title", "a note")
    assert len(figure.axes) == (2 if n > 5 else 1)
    drawn = [(image, label.get_text()) for axes in figure.axes for label, four in zip(
        axes.get_yticklabels(), np.array(axes.images, dtype=object).reshape(-1, 4), strict=True) for image in four]  # fmt: skip
    wanted = [(x, names[i]) for i in range(n) for x in (raw[i], *views[i])]
    assert len(drawn) == len(wanted) == 4 * n
    for (image, label), (pixels, name) in zip(drawn, wanted, strict=True):
        shown = np.asarray(image.get_array())
        assert np.allclose(
            shown if channels == 3 else shown[None], np.clip(pixels.transpose(1, 2, 0) if channels == 3 else pixels, 0, 1)
        )
        assert label == name
    boxes = [image.get_extent() for axes in figure.axes[:1] for image in axes.images]
    for i, (left, right, bottom, top) in enumerate(boxes):
        assert all(right <= other[0] or other[1] <= left or bottom <= other[3] or other[2] <= top for other in boxes[:i])  # apart
