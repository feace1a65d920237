"""A stream from any iterable of (image, label), of which neither length nor classes are known beforehand."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onepass.errors import Refused
from onepass.stream import Batch, Spec

Label = int | str
Shape = tuple[int, int, int]  # channels, height, width


class Open:
    """A single pass over pairs of an image and its label, as they come: from a list, a generator, a camera, a torch dataset.

        stream = Open(pairs, max_classes=50)
        learner = Learner(stream.spec, ER())
        for batch in stream.batches(10):
            learner.observe(batch)

    Labels are whole numbers or text, numbered by `labels` as they come; a class beyond `max_classes` is refused.  Images are
    what `pixels` takes, all brought to the shape `image`; without it all must be of the first one's.

    Resuming: make the stream anew and ask for `batches(size, start=learner.clock.samples)`; where the images before cannot come
    again, give instead the `names` that `labels` had.
    """

    task_ends: tuple[int, ...] = ()
    sharp = False

    def __init__(
        self, pairs: Iterable[tuple[Any, Any]], max_classes: int, *, image: Shape | None = None, names: Sequence[Label] = ()
    ):
        self.labels = Labels(max_classes, names)
        self.passed = 0  # how many pairs have come
        self._pairs = iter(pairs)
        if image is None:
            first = next(self._pairs, None)
            if first is None:
                raise Refused("There is no image in this stream to take the shape of; give its `image=(channels, height, width)`.")
            image = cast(Shape, tuple(pixels(_pair(first, 0)[0]).shape))
            self._pairs = chain([first], self._pairs)
            self._given = None
        else:
            self._given = image
        self.spec = Spec(max_classes, image, open=True)

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Batches of `size`, the last perhaps shorter, from pair `start` on; what has passed does not come again."""
        if size < 1:
            raise Refused(f"Batches of {size} images would never end the stream; take at least 1.")
        for pair in islice(self._pairs, max(0, start - self.passed)):
            self.labels.number([_pair(pair, self.passed)[1]])
            self.passed += 1
        while True:
            rows = [self._next(pair) for pair in islice(self._pairs, size)]
            if not rows:
                return
            yield Batch(torch.stack([x for x, _ in rows]), torch.cat([y for _, y in rows]), name="stream")

    def _next(self, pair: Any) -> tuple[Tensor, Tensor]:
        image, label = _pair(pair, self.passed)
        x = pixels(image, self._given)
        if tuple(x.shape) != self.spec.image:
            raise Refused(
                f"Image {self.passed} is {tuple(x.shape)} and the first was {self.spec.image} (channels, height, width); give a "
                f"shape to bring them all to, e.g. `image={self.spec.image}`."
            )
        y = self.labels.number([label])
        self.passed += 1
        return x, y


class Labels:
    """Labels as numbers, 0, 1, ..., in the order in which they first come; at most `most` of them.

    `names` are the labels met, each at its number: with these as its start another `Labels` goes on alike.
    """

    def __init__(self, most: int, names: Iterable[Label] = ()):
        if most < 1:
            raise Refused(f"`max_classes={most}` leaves nothing to tell apart; take at least 1, and as many as may ever come.")
        self.most = most
        self.names: list[Label] = []
        self._numbers: dict[Label, int] = {}
        self.number(names)

    def __len__(self) -> int:
        return len(self.names)

    def number(self, labels: Iterable[Any]) -> Tensor:
        """Their numbers, int64 on the host.  If one of them is refused, none is numbered."""
        found, new = list[int](), dict[Label, int]()
        for label in map(_label, labels):
            there = self._numbers.get(label, new.get(label))
            if there is None:
                there = new[label] = len(self.names) + len(new)
                if there >= self.most:
                    raise Refused(
                        f"`{label}` would be class {there + 1}, and the network was built for `max_classes={self.most}`; leave it "
                        "out, or begin again with more."
                    )
            found.append(there)
        self._numbers |= new
        self.names += new
        return torch.tensor(found, dtype=torch.int64)


def pixels(image: Any, shape: Shape | None = None) -> Tensor:
    """An image as uint8 (channels, height, width), resized and turned to gray or colour if a `shape` is given that it has not.

    It is one of Pillow's, or an array of numpy or torch: bytes, or floats from 0 to 1, of (height, width) or with 1 or 3 channels
    first or last; where that can be read both ways, torch has them first and numpy last.
    """
    if isinstance(image, Tensor):
        return _pixels_of(image.detach().cpu().numpy(), shape, first=True)
    if isinstance(image, np.ndarray):
        return _pixels_of(image, shape, first=False)
    return _pixels_of_pillow(image, shape)


def _pixels_of(array: np.ndarray, shape: Shape | None, *, first: bool) -> Tensor:
    if array.dtype.kind == "f":
        if not (array.size and array.min() >= 0 and array.max() <= 1):  # NaN is neither
            raise Refused("The image has numbers outside 0 to 1, or none at all; give floats from 0 to 1, or uint8 from 0 to 255.")
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise Refused(f"The image is of {array.dtype}; give uint8 from 0 to 255, or floats from 0 to 1.")
    if array.ndim == 2:
        array = array[None]
    elif array.shape != shape:
        ends = [array.ndim == 3 and array.shape[axis] in (1, 3) for axis in (0, -1)]
        if not any(ends):
            raise Refused(f"An image of shape {array.shape} has no axis of 1 or 3 channels, first or last; give it one.")
        if not ends[0] or (ends[1] and not first):
            array = array.transpose(2, 0, 1)
    if shape is None or array.shape == shape:
        return torch.from_numpy(np.array(array, order="C"))
    from PIL import Image

    return _pixels_of_pillow(Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0).copy()), shape)


def _pixels_of_pillow(image: Any, shape: Shape | None) -> Tensor:
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise Refused(f"A `{type(image).__name__}` is no image; give one of Pillow's, or an array of numpy or torch.")
    channels = shape[0] if shape else 1 if image.mode in ("1", "L") else 3
    if channels not in (1, 3):
        raise Refused(
            f"Images are brought to 1 or 3 channels, not to the {channels} of `image={shape}`; give arrays of that shape."
        )
    try:
        image = image.convert("L" if channels == 1 else "RGB")
    except OSError as error:
        raise Refused(f"The image cannot be read ({error}).") from error
    if shape and image.size != (shape[2], shape[1]):
        image = image.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    return _pixels_of(np.asarray(image), None, first=False)


def _pair(pair: Any, index: int) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(cast(Any, pair)) != 2:
        raise Refused(f"Element {index} of the stream is a `{type(pair).__name__}`, no pair of an image and its label; give pairs.")
    image, label = cast(tuple[Any, Any], pair)
    return image, label


def _label(label: Any) -> Label:
    """A label as Python has it, whether it came from numpy or torch."""
    if isinstance(label, (Tensor, np.ndarray, np.generic)) and cast(Any, label).ndim == 0:
        label = cast(Any, label).item()
    if isinstance(label, bool) or not isinstance(label, (int, str)):
        raise Refused(f"`{label}` ({type(label).__name__}) is no label; give whole numbers or text.")
    return label
