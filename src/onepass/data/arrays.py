"""Arrays: those of an `.npz` file, or from Python any pair of arrays and any map-style data set."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from onepass.data import Dataset, Habits, check_options, habits_for
from onepass.errors import Refused
from onepass.stream import Batch


@dataclass(frozen=True, kw_only=True)
class Npz:
    """`x`, `y`, `x_test`, `y_test` in a file of numpy's, and `names` of the classes, if it has them.

    Images are bytes, or floats in [0, 1]: (n, h, w), (n, h, w, c) or (n, c, h, w), with 1 or 3 channels.
    mean, std  of each channel, in [0, 1], if the network is to normalise.
    """

    path: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_options(None, max(1, len(self.mean)), None, self.mean, self.std)

    @property
    def name(self) -> str:
        return f"npz:{self.path}"

    @property
    def habits(self) -> Habits:
        return self._habits

    @cached_property
    def _habits(self) -> Habits:
        data = self.load()
        return habits_for(len(data.names), len(data.train), min(data.train.x.shape[2:]), self.mean, self.std)

    def load(self, folder: Path | None = None) -> Dataset:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                values = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise Refused(f"There is no file `{self.path}` (looked for `{Path(self.path).resolve()}`).") from None
        except Exception as error:  # a broken archive may raise anything
            raise Refused(f"`{self.path}` is no whole `.npz` of numbers ({error}); write one with `numpy.savez`.") from error
        wanting = [name for name in ("x", "y", "x_test", "y_test") if name not in values]
        if wanting:
            there = ", ".join(f"`{name}`" for name in values) or "nothing"
            raise Refused(f"`{self.path}` has no `{wanting[0]}`, only {there}; write x, y, x_test and y_test with `numpy.savez`.")
        names = tuple(str(name) for name in values.get("names", ()))
        return dataset((values["x"], values["y"]), (values["x_test"], values["y_test"]), names, f"`{self.path}`")


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Images that are in Python already: `train` and `test` are each a pair (x, y) of arrays, or a map-style data set.

    A map-style data set has a length, and at an index gives an image (of Pillow, or an array) and its label.  A record names
    such data by their contents and cannot bring them back: make them again and give them again.
    """

    title: str = "arrays"
    train: InitVar[Any] = None
    test: InitVar[Any] = None
    names: tuple[str, ...] = ()  # of the classes; empty: their numbers
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    contents: str = ""  # their fingerprint, which is found

    def __post_init__(self, train: Any, test: Any) -> None:
        check_options(None, max(1, len(self.mean)), None, self.mean, self.std)
        if train is not None and test is not None:
            data = dataset(train, test, self.names, f"`{self.title}`")
            object.__setattr__(self, "_data", data)
            object.__setattr__(self, "names", data.names)
            object.__setattr__(self, "contents", data.fingerprint)

    @property
    def name(self) -> str:
        return f"arrays:{self.title}"

    @property
    def habits(self) -> Habits:
        return self._habits

    @cached_property
    def _habits(self) -> Habits:
        data = self.load()
        return habits_for(len(data.names), len(data.train), min(data.train.x.shape[2:]), self.mean, self.std)

    def load(self, folder: Path | None = None) -> Dataset:
        data: Dataset | None = getattr(self, "_data", None)
        if data is None:
            raise Refused(
                f"The images of `{self.title}` were given from Python and are in no record; give `Arrays` its `train` and `test` "
                "again."
            )
        return data


def dataset(train: Any, test: Any, names: Sequence[str], title: str) -> Dataset:
    """Both parts as bytes, checked: two pairs of arrays, or two map-style data sets."""
    parts = [_rows(part, f"{title}, {which}") for which, part in (("training", train), ("testing", test))]
    shapes = {tuple(part.x.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise Refused(
            f"The images of {title} are {_of(parts[0])} for training and {_of(parts[1])} for testing; bring them to one shape."
        )
    classes = max(len(names), int(parts[0].y.max()) + 1)
    if names and classes > len(names):
        raise Refused(f"The labels of {title} go up to {classes - 1}, and {len(names)} classes are named; name every class.")
    unknown = np.setdiff1d(parts[1].y.numpy(), parts[0].y.numpy())
    if len(unknown):
        raise Refused(f"The class {unknown[0]} of {title} is asked for in testing and has no training image; leave its images out.")
    digest = sha256()
    for part in parts:
        digest.update(str(tuple(part.x.shape)).encode() + part.x.numpy().tobytes() + part.y.numpy().tobytes())
    return Dataset(parts[0], parts[1], tuple(names) or tuple(map(str, range(classes))), digest.hexdigest())


def _of(part: Batch) -> str:
    return "x".join(map(str, part.x.shape[1:]))


def _rows(part: Any, title: str) -> Batch:
    if isinstance(part, tuple | list) and len(part) == 2 and hasattr(part[0], "shape"):
        x, y = _array(part[0]), part[1]
    else:
        x, y = _mapped(part, title)
    labels = _labels(y, title)
    if len(x) != len(labels) or not len(labels):
        raise Refused(f"{title}: {len(x)} images and {len(labels)} labels; give one label for each image, and at least one.")
    return Batch(torch.from_numpy(_bytes(x, title)), torch.from_numpy(labels))


def _mapped(part: Any, title: str) -> tuple[np.ndarray, list[Any]]:
    """A map-style data set, one image after the other."""
    if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
        raise Refused(f"{title}: a `{type(part).__name__}` is neither a pair (x, y) nor a data set with a length and an index.")
    images, labels = list[np.ndarray](), list[Any]()
    for i in range(len(part)):
        try:
            image, label = part[i]
        except (TypeError, ValueError) as error:
            raise Refused(f"{title}: item {i} is no image with its label ({error}); give a data set of such pairs.") from error
        images.append(_array(image))
        labels.append(label)
        if images[i].shape != images[0].shape:
            shapes = ["x".join(map(str, images[j].shape)) for j in (0, i)]
            raise Refused(
                f"{title}: images are {shapes[0]} and {shapes[1]}; bring them to one size, e.g. by the data set's transform."
            )
    return (np.stack(images) if images else np.zeros((0, 1, 1, 1), np.uint8)), labels


def _array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, Image.Image):
        return np.asarray(value if value.mode == "L" else value.convert("RGB"))
    return np.asarray(value)


def _labels(y: Any, title: str) -> np.ndarray:
    labels = _array([v.item() if isinstance(v, torch.Tensor) and not v.dim() else v for v in y] if isinstance(y, list) else y)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        what = f"{labels.dtype} of shape {labels.shape}"
        raise Refused(f"{title}: labels are {what}, not a whole number for each image; number the classes from 0.")
    if len(labels) and labels.min() < 0:
        raise Refused(f"{title}: there is a label {labels.min()}; number the classes from 0.")
    return labels.astype(np.int64)


def _bytes(x: np.ndarray, title: str) -> np.ndarray:
    """uint8 (n, c, h, w)."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape:
        raise Refused(
            f"{title}: images of shape {x.shape} are none of (n, h, w), (n, h, w, c) and (n, c, h, w) with 1 or 3 channels."
        )
    if x.dtype.kind == "f":
        if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
            raise Refused(f"{title}: images are {x.dtype} from {x.min():g} to {x.max():g}; give bytes, or floats in [0, 1].")
        x = np.rint(x * 255)
    elif x.dtype != np.uint8:
        raise Refused(f"{title}: images are {x.dtype}; give bytes (uint8), or floats in [0, 1].")
    return np.ascontiguousarray(x, dtype=np.uint8)
