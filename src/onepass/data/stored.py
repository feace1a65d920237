"""Images that stay on the disk: rows of a file, of which those are read that are asked for."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Stored:
    """uint8 (n, c, h, w) in a file.  It is indexed, sliced, split and moved as a tensor is, and each time reads what was asked for.

    The file is kept open: rows stay what they are if it is deleted or another takes its name.  It is not mapped: the pages once
    read would count as this process's memory, 20 GB in the end.  What is read twice comes from the system's cache.
    """

    dtype, device, ndim = torch.uint8, torch.device("cpu"), 4

    def __init__(self, file: Path, shape: tuple[int, int, int, int]):
        self._file, self._rows, self._image = _Open(file), torch.arange(shape[0]), shape[1:]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self._rows), *self._image)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Tensor:
        rows = self._rows[index]
        read = np.empty((rows.numel(), *self._image), dtype=np.uint8)
        for into, row in zip(read, rows.flatten().tolist(), strict=True):
            self._file.read(into, row * into.nbytes)
        return torch.from_numpy(read).view(*rows.shape, *self._image)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def index_select(self, dim: int, index: Tensor) -> "Stored":
        """Some rows, still on the disk."""
        assert dim == 0
        some = Stored.__new__(Stored)
        some._file, some._rows, some._image = self._file, self._rows[index], self._image
        return some

    def split(self, rows: int) -> Iterator[Tensor]:
        return (self[i : i + rows] for i in range(0, len(self), rows))

    def to(self, device: torch.device, non_blocking: bool = False) -> "Tensor | Stored":
        """Itself on the host, which it never leaves; a tensor elsewhere."""
        if torch.device(device).type == "cpu":
            return self
        there = torch.empty(self.shape, dtype=torch.uint8, device=device)
        for i, part in zip(range(0, len(self), 512), self.split(512), strict=True):
            there[i : i + 512] = part.to(device, non_blocking=non_blocking)
        return there


class _Open:
    """A file that is open for as long as somebody has its rows."""

    def __init__(self, file: Path):
        self.handle = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def read(self, into: np.ndarray, at: int) -> None:
        """Fill an array with what is at a place in the file."""
        if hasattr(os, "preadv"):
            count = os.preadv(self.handle, [into.data], at)
        else:
            os.lseek(self.handle, at, os.SEEK_SET)
            content = os.read(self.handle, into.nbytes)
            into.reshape(-1)[: len(content)], count = np.frombuffer(content, np.uint8), len(content)
        if count != into.nbytes:
            raise OSError("a file of decoded images was cut short while it was read")

    def __del__(self) -> None:
        os.close(self.handle)
