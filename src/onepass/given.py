"""Images and labels as people have them, whole or one by one, as rows that a learner takes."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onepass.arrivals import Label, Shape, pixels
from onepass.errors import Refused


def images(x: Any, image: Shape) -> Tensor:
    """Images as uint8 (n, channels, height, width): one, several in an array of numpy or torch, or a list of single ones.

    Arrays are bytes, or floats from 0 to 1, of the declared size, with their channels first or last (one channel may be left
    out); Pillow's images are brought to that size.
    """
    if isinstance(x, (list, tuple)):
        rows = [_single(item, i, image) for i, item in enumerate(cast(list[Any], x))]
        return torch.stack(rows) if rows else torch.zeros(0, *image, dtype=torch.uint8)
    if isinstance(x, (Tensor, np.ndarray)):
        return _several(_array(x), image)
    return pixels(x, image)[None]


def labels(y: Any) -> list[Label]:
    """Labels as a list, of one image or several."""
    if isinstance(y, (Tensor, np.ndarray)):
        if y.ndim > 1:
            raise Refused(f"Labels of shape {tuple(y.shape)} are not one for each image; give whole numbers or text, (n,).")
        y = y.tolist()
    if isinstance(y, (str, np.generic)) or not isinstance(y, Iterable):
        y = [y]
    return [_plain(label) for label in cast(Iterable[Any], y)]


def _plain(label: Any) -> Any:
    """As Python has it; whether it can be a label is for `Labels` to say."""
    return label.item() if isinstance(label, (Tensor, np.ndarray, np.generic)) and cast(Any, label).ndim == 0 else label


def check_lengths(x: Tensor, y: list[Label]) -> None:
    if len(x) != len(y):
        raise Refused(f"There are {len(x)} images and {len(y)} labels; give one label for each image.")


def _array(x: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).detach().cpu().numpy()


def _single(item: Any, i: int, image: Shape) -> Tensor:
    if not isinstance(item, (Tensor, np.ndarray)):
        return pixels(item, image)
    array = _array(item)
    if array.ndim not in (2, 3):
        raise Refused(f"Element {i} has shape {array.shape}, which is no single image; give all as one array, or one by one.")
    rows = _several(array, image)
    if len(rows) != 1:
        raise Refused(f"Element {i} holds {len(rows)} images of {image}; give all as one array, or one by one.")
    return rows[0]


def _several(array: np.ndarray, image: Shape) -> Tensor:
    if array.ndim and not len(array):
        return torch.zeros(0, *image, dtype=torch.uint8)
    channels, height, width = image
    shape = array.shape
    first = array.ndim in (3, 4) and shape[-3:] == image
    last = array.ndim in (3, 4) and shape[-3:] == (height, width, channels)
    plain = array.ndim in (2, 3) and channels == 1 and shape[-2:] == (height, width)
    if first and last and channels > 1:
        raise Refused(
            f"Images of shape {shape} may have their channels first or last, and `image={image}` does not tell; give them as "
            "Pillow images, which have them last."
        )
    if not (first or last or plain):
        raise Refused(
            f"Images of shape {shape} are not of the declared `image={image}` (channels, height, width), with channels first or "
            "last; resize them, or declare their size."
        )
    if plain and not first:
        array = array.reshape(-1, 1, height, width)
    elif last and not first:
        array = np.moveaxis(array, -1, -3)
    return torch.from_numpy(np.array(_bytes(array.reshape(-1, *image)), order="C"))


def _bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise Refused(f"The images are of {array.dtype}; give uint8 from 0 to 255, or floats from 0 to 1.")
    wrong = ~np.isfinite(array).all((1, 2, 3))
    if wrong.any():
        raise Refused(f"Image {int(wrong.argmax())} holds a NaN or an infinity; leave it out.")
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        raise Refused(f"The images run from {low:g} to {high:g}; give floats from 0 to 1, or uint8 from 0 to 255.")
    return np.rint(array * 255).astype(np.uint8)
