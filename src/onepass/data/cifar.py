"""CIFAR-10 and CIFAR-100, from their official Python files, through an unpickler that admits only what these files hold."""

import pickle
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from onepass.augment import Full, Partial
from onepass.data import Dataset, Habits, find
from onepass.errors import Refused
from onepass.stream import Batch


@dataclass(frozen=True)
class Cifar10:
    """10 classes of 5,000 and 1,000 images of 32x32, in `cifar-10-batches-py`."""

    name: ClassVar[str] = "cifar10"
    habits: ClassVar[Habits] = Habits(tasks=5, memory=1000, scale=500.0, full=Full(), partial=Partial())

    def load(self, folder: Path | None = None) -> Dataset:
        tree = find("cifar-10-batches-py", folder, self.name)
        return _read(tree, [f"data_batch_{i}" for i in range(1, 6)], "test_batch", "batches.meta", "labels", "label_names")


@dataclass(frozen=True)
class Cifar100:
    """100 classes of 500 and 100 images of 32x32, in `cifar-100-python`."""

    name: ClassVar[str] = "cifar100"
    habits: ClassVar[Habits] = Habits(tasks=10, memory=5000, scale=500.0, full=Full(), partial=Partial())

    def load(self, folder: Path | None = None) -> Dataset:
        return _read(find("cifar-100-python", folder, self.name), ["train"], "test", "meta", "fine_labels", "fine_label_names")


def _read(tree: Path, train: list[str], test: str, meta: str, labels: str, label_names: str) -> Dataset:
    names = tuple(_text(n) for n in _field(tree / meta, unpickle(tree / meta), label_names))
    digest = sha256()

    def rows(files: list[str]) -> Batch:
        xs: list[np.ndarray] = []
        ys: list[np.ndarray] = []
        for file in files:
            values = unpickle(tree / file)
            x, y = np.asarray(_field(tree / file, values, "data")), np.asarray(_field(tree / file, values, labels))
            if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072 or y.shape != (len(x),) or y.dtype.kind not in "iu":
                raise Refused(f"`{tree / file}` does not hold rows of 3,072 bytes with a whole number each; download it again.")
            if len(y) and (y.min() < 0 or y.max() >= len(names)):
                raise Refused(f"`{tree / file}` has labels outside 0 to {len(names) - 1}; download it again.")
            xs.append(x.reshape(-1, 3, 32, 32))
            ys.append(y.astype(np.int64))
        x, y = np.concatenate(xs), np.concatenate(ys)
        digest.update(x.tobytes())
        digest.update(y.tobytes())
        return Batch(torch.from_numpy(x), torch.from_numpy(y))

    return Dataset(rows(train), rows([test]), names, digest.hexdigest())


def _field(file: Path, values: dict[str, Any], name: str) -> Any:
    if name not in values:
        raise Refused(f"`{file}` has no `{name}`: it is not the official file; download it again.")
    return values[name]


# -- a restricted unpickler ---------------------------------------------------------------------------------------------
#
# Nothing of numpy's is called as the file asks: numpy takes bytes for addresses where it is told that they are objects.
# What stands for it here has no attributes to set, for a pickle may set those of whatever it names.


class _Latin1:
    """What protocol 2 writes for bytes: a call of codecs.encode with latin1, and with nothing else."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"bytes written as {encoding}")
        return text.encode("latin1")


class _Whole:
    """A type of whole numbers, which are all that these files have."""

    __slots__ = ("type",)

    def __init__(self, name: str):
        if not re.fullmatch(r"[|<>=]?[iu][1248]", name):
            raise pickle.UnpicklingError(f"numbers of type `{name}`, and not whole ones")
        self.type = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        self.type = np.dtype(order + self.type.str[1:]) if order in ("<", ">") else self.type

    def values(self, content: Any, shape: Any, order: str) -> np.ndarray:
        return np.frombuffer(content, self.type).reshape(shape, order="F" if order == "F" else "C")


class _Type:
    """A call of numpy.dtype."""

    __slots__ = ()

    def __call__(self, name: Any, *_: Any) -> _Whole:
        return _Whole(_text(name))


class _Array:
    """An array whose shape and content come next."""

    __slots__ = ("values",)

    def __setstate__(self, state: Any) -> None:
        _, shape, whole, fortran, content = state
        self.values = _of(whole).values(content, shape, "F" if fortran else "C")


class _Empty:
    """How an array begins, up to protocol 4."""

    __slots__ = ()

    def __call__(self, *_: Any) -> _Array:
        return _Array()


class _FromBuffer:
    """An array in one piece, as protocol 5 writes it."""

    __slots__ = ()

    def __call__(self, content: Any, whole: Any, shape: Any, order: str, *_: Any) -> np.ndarray:
        return _of(whole).values(content, shape, order)


class _Scalar:
    """A single number."""

    __slots__ = ()

    def __call__(self, whole: Any, content: Any) -> Any:
        return _of(whole).values(content, (), "C")[()]


def _of(whole: Any) -> _Whole:
    if not isinstance(whole, _Whole):
        raise pickle.UnpicklingError("numbers of no type")
    return whole


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "numpy.ndarray",  # named as what an array is, and never called
    ("numpy", "dtype"): _Type(),
    ("numpy.core.multiarray", "_reconstruct"): _Empty(),
    ("numpy.core.multiarray", "scalar"): _Scalar(),
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer(),
    ("_codecs", "encode"): _Latin1(),
}
"""What arrays are written with by Python 2, numpy 1 and (from `numpy._core`) numpy 2."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        there = module.replace("numpy._core", "numpy.core"), name
        if there not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for `{module}.{name}`, which no file of CIFAR does")
        return ADMITTED[there]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside itself")


def unpickle(file: Path) -> dict[str, Any]:
    """The dictionary in an official file; nothing in it is ever run."""
    try:
        with open(file, "rb") as opened:
            values = _Unpickler(opened, encoding="bytes").load()
        if isinstance(values, dict):
            values = {_text(k): v.values if isinstance(v, _Array) else v for k, v in values.items()}
    except FileNotFoundError as error:
        raise Refused(f"`{file}` is missing; `{file.parent}` is not whole, download it again.") from error
    except Exception as error:  # a broken pickle may raise anything
        raise Refused(f"`{file}` is not an official file of CIFAR, or is damaged: {error}. Nothing of it was run.") from error
    if not isinstance(values, dict):
        raise Refused(f"`{file}` holds no dictionary: it is not an official file of CIFAR.")
    return values


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
