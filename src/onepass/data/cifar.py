"""CIFAR-10 and CIFAR-100, from their official Python files, through an unpickler that admits only what these files hold."""

import io
import pickle
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
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


class _Latin1:
    """What protocol 2 writes for bytes: a call of codecs.encode with latin1, and with nothing else."""

    __slots__ = ()  # a pickle may set attributes of whatever it names: this has none

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError(f"bytes written as {encoding}")
        return text.encode("latin1")


class _FromBuffer:
    """What protocol 5 calls: numpy's own function, whose attributes are out of reach."""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        return _core("numeric")._frombuffer(*args)


def _core(module: str) -> Any:
    """A module of numpy's own, wherever this numpy has it."""
    try:
        return import_module(f"numpy._core.{module}")
    except ImportError:
        return import_module(f"numpy.core.{module}")


def _admitted() -> dict[tuple[str, str], Any]:
    """Arrays as Python 2, numpy 1 and numpy 2 write them."""
    arrays = _core("multiarray")
    names: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _Latin1(),
    }
    for core in "numpy.core", "numpy._core":
        names[(f"{core}.multiarray", "_reconstruct")] = arrays._reconstruct
        names[(f"{core}.multiarray", "scalar")] = arrays.scalar
        names[(f"{core}.numeric", "_frombuffer")] = _FromBuffer()
    return names


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BufferedIOBase):
        super().__init__(file, encoding="bytes")
        self.admitted = _admitted()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.admitted:
            raise pickle.UnpicklingError(f"it asks for `{module}.{name}`, which no file of CIFAR does")
        return self.admitted[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside itself")


def unpickle(file: Path) -> dict[str, Any]:
    """The dictionary in an official file; nothing in it is ever run."""
    try:
        with open(file, "rb") as opened:
            values = _Unpickler(opened).load()
    except FileNotFoundError as error:
        raise Refused(f"`{file}` is missing; `{file.parent}` is not whole, download it again.") from error
    except Exception as error:  # a broken pickle may raise anything
        raise Refused(f"`{file}` is not an official file of CIFAR, or is damaged: {error}. Nothing of it was run.") from error
    if not isinstance(values, dict):
        raise Refused(f"`{file}` holds no dictionary: it is not an official file of CIFAR.")
    return {_text(k): v for k, v in values.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
