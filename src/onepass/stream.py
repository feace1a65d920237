"""A single pass over labelled images, in an order fixed by a seed, with labels numbered as they arrive."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from onepass.errors import Refused
from onepass.seeds import Seeds


@dataclass(frozen=True)
class Spec:
    """What is known about a stream before it starts.

    Of an `open` one neither length nor classes are known: `classes` is the most there may be, and a network shows the outputs of
    those met so far, which come first, since labels are numbered as they arrive.
    """

    classes: int  # width of the classifier
    image: tuple[int, int, int]  # channels, height, width
    tasks: tuple[tuple[int, ...], ...] = ()  # classes of each task, numbered in order of arrival; empty if there are none
    original: tuple[int, ...] = ()  # the data set's own label of each class
    names: tuple[str, ...] = ()  # and its name
    open: bool = False


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows that belong together.  `a + b` is both, a slice is a batch; two batches are equal only if they are the same."""

    x: Tensor  # uint8 (n, c, h, w)
    y: Tensor  # int64 (n,)
    extra: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # further columns of the memory
    name: str = "batch"
    parts: tuple["Batch", ...] = ()  # what it was put together from

    @property
    def atoms(self) -> tuple["Batch", ...]:
        return self.parts or (self,)

    def __len__(self) -> int:
        return len(self.y)

    def __add__(self, other: "Batch") -> "Batch":
        if not len(self) or not len(other):
            return self if len(self) else other
        extra = {k: torch.cat([self.extra[k], other.extra[k]]) for k in self.extra.keys() & other.extra.keys()}
        x, y = torch.cat([self.x, other.x]), torch.cat([self.y, other.y])
        return Batch(x, y, extra, f"{self.name}+{other.name}", self.atoms + other.atoms)

    def __getitem__(self, rows: slice) -> "Batch":
        start, stop, _ = rows.indices(len(self))
        name = f"{self.name}[{start}:{stop}]"
        return Batch(self.x[rows], self.y[rows], {k: v[rows] for k, v in self.extra.items()}, name)

    def take(self, index: Tensor, name: str) -> "Batch":
        """Some rows, as a batch of its own."""
        return Batch(self.x[index], self.y[index], {k: v[index] for k, v in self.extra.items()}, name)

    def to(self, device: torch.device) -> "Batch":
        def move(t: Tensor) -> Tensor:
            return t.to(device, non_blocking=True)

        return Batch(move(self.x), move(self.y), {k: move(v) for k, v in self.extra.items()}, self.name)


class Stream(Protocol):
    """A single pass over labelled images."""

    @property
    def spec(self) -> Spec: ...
    @property
    def task_ends(self) -> tuple[int, ...]: ...  # sample counts at which a task ends (Blurry: nominally)
    def __len__(self) -> int: ...
    def batches(self, size: int, start: int = 0) -> Iterator[Batch]: ...


@dataclass(frozen=True, eq=False)
class Pass:
    """A stream over images that are all at hand.  Labels are on the host, so that asking for them costs no wait."""

    x: Tensor  # uint8, in the data set's order
    y: Tensor  # numbered by arrival, in the data set's order
    order: Tensor  # of the rows
    spec: Spec
    task_ends: tuple[int, ...]
    sharp: bool  # whether a batch ends where a task does

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, size: int, start: int = 0) -> Iterator[Batch]:
        """Batches of `size`, from sample `start` on.  At the end of a sharp task there may be a shorter one.

        An image that would be left alone goes with the batch before it: batch-norm cannot normalise a single one of 8x8.
        """
        if size < 1:
            raise Refused(f"Batches of {size} images would never end the stream; take at least 1.")
        stops = (*self.task_ends, len(self)) if self.sharp else (len(self),)
        for stop in stops:
            while start < stop:
                alone = size > 1 and stop - start == size + 1
                rows = self.order[start : min(start + size + alone, stop)]
                yield Batch(self.x[rows.to(self.x.device, non_blocking=True)], self.y[rows], name="stream")
                start += len(rows)

    def to(self, device: torch.device) -> "Pass":
        """The same stream with its images on a CUDA device, if they take less than a quarter of what is free there."""
        if device.type != "cuda" or 4 * self.x.nbytes > torch.cuda.mem_get_info(device)[0]:
            return self
        return replace(self, x=self.x.to(device))

    def cut(self, limit: int | None) -> "Pass":
        """The same stream, over after `limit` samples."""
        if limit is None or limit >= len(self):
            return self
        if limit < 1:
            raise Refused(f"`limit={limit}` leaves nothing of the stream; take at least 1.")
        ends = tuple(e for e in self.task_ends if e < limit) + (limit,)
        return replace(self, order=self.order[:limit], task_ends=ends)

    def number(self, y: Tensor) -> Tensor:
        """Labels of the data set (say, of its test images) in this stream's numbers."""
        return _numbers(self.spec.original)[y]


@dataclass(frozen=True)
class Clear:
    """Task after task, each with classes of its own, shuffled within.

    `first_task_epochs` shows the first task more than once, shuffled anew: for a teacher of higher quality, not for a student.
    `first` puts another of the seed's tasks before the others.
    """

    sharp: ClassVar[bool] = True

    tasks: int
    first_task_epochs: int = 1
    first: int = 0

    def __post_init__(self) -> None:
        if self.first_task_epochs < 1:
            raise Refused(f"`first_task_epochs={self.first_task_epochs}` leaves the first task out; take at least 1.")
        if not 0 <= self.first < max(self.tasks, 1):
            raise Refused(f"`first={self.first}` is none of the {self.tasks} tasks, which are numbered from 0.")

    def over(self, rows: Batch, names: tuple[str, ...], seeds: Seeds) -> Pass:
        blocks, classes = _blocks(self.tasks, rows.y, names, seeds)
        for tasks in blocks, classes:
            tasks.insert(0, tasks.pop(self.first))
        again = [seeds.numpy("order", 0, epoch).permutation(blocks[0]) for epoch in range(1, self.first_task_epochs)]
        blocks[0] = np.concatenate([blocks[0], *again])
        return _numbered(np.concatenate(blocks), blocks, classes, rows, names, sharp=self.sharp)


@dataclass(frozen=True)
class Blurry:
    """Tasks that flow into each other: at each turn the k-th of the images left comes next, k = floor |N(0, scale^2)|.

    A k beyond what is left is drawn again, at most ten times; after ten the first one left is taken, whatever the
    tenth was.  The ends of its tasks are nominal: where they would be if they were clear.
    """

    sharp: ClassVar[bool] = False

    tasks: int
    scale: float = 500.0
    sequential: bool = False  # class after class as filed, the same for every seed, and not blurry at all: the authors' ImageNet

    def __post_init__(self) -> None:
        if not 0 <= self.scale < np.inf:
            raise Refused(f"`scale={self.scale}` is not a width of a normal distribution; take one of at least 0.")

    def over(self, rows: Batch, names: tuple[str, ...], seeds: Seeds) -> Pass:
        blocks, classes = _blocks(self.tasks, rows.y, names, seeds)
        if self.sequential:
            classes = np.split(np.arange(len(names)), self.tasks)
            blocks = [np.concatenate([np.flatnonzero(rows.y.numpy() == c) for c in task]) for task in classes]
            return _numbered(np.concatenate(blocks), blocks, classes, rows, names, sharp=False)
        left = np.concatenate(blocks)[::-1].tolist()  # reversed: taking one near the end of a list is cheap
        rng = seeds.numpy("blurry")
        first_tries = np.abs(rng.normal(0.0, self.scale, len(left))).tolist()
        order: list[int] = []
        for first in first_tries:
            k, redraws = int(first), 0
            while k >= len(left) and redraws < 10:
                k, redraws = int(abs(rng.normal(0.0, self.scale))), redraws + 1
            order.append(left.pop(-1 if redraws == 10 else -1 - k))
        return _numbered(np.array(order), blocks, classes, rows, names, sharp=self.sharp)


@dataclass(frozen=True)
class Imbalanced:
    """Clear tasks of classes that are not equally frequent: of each only a part is kept, one image at least.

    law     "exponential": factor^(-k / (classes - 1)) of the class of rank k, whose ranks are drawn; "uniform": a share drawn
            between 1 / factor and 1.
    factor  how many times the largest class may be as large as the smallest.
    """

    sharp: ClassVar[bool] = True

    tasks: int
    factor: float = 100.0
    law: Literal["exponential", "uniform"] = "exponential"

    def __post_init__(self) -> None:
        if not 1 <= self.factor < np.inf:
            raise Refused(f"`factor={self.factor}` is not how many times the largest class is the smallest; take at least 1.")
        if self.law not in ("exponential", "uniform"):
            raise Refused(f"`law={self.law}` is not one of exponential, uniform.")

    def over(self, rows: Batch, names: tuple[str, ...], seeds: Seeds) -> Pass:
        blocks, classes = _blocks(self.tasks, rows.y, names, seeds)
        labels, share = rows.y.numpy(), self.shares(len(names), seeds)
        kept: list[np.ndarray] = []
        for block, own in zip(blocks, classes, strict=True):
            keep = np.zeros(len(block), dtype=bool)
            for c in own:
                here = np.flatnonzero(labels[block] == c)
                some = seeds.numpy("imbalance", "images", int(c)).permutation(here)  # else a rare class were over at once
                keep[some[: max(1, round(float(share[c]) * len(here)))]] = True
            kept.append(block[keep])
        return _numbered(np.concatenate(kept), kept, classes, rows, names, sharp=self.sharp)

    def shares(self, classes: int, seeds: Seeds) -> np.ndarray:
        """The part of each class that is kept."""
        rng = seeds.numpy("imbalance", self.law)
        if self.law == "uniform":
            return rng.uniform(1 / self.factor, 1.0, classes)
        return self.factor ** (-rng.permutation(classes) / max(1, classes - 1))


@dataclass(frozen=True)
class Blend:
    """Tasks that blend into one another: around each boundary the share of the next task rises linearly from none to all.

    The blend is `width` times the shortest task long.  It comes of moving every image by up to half of that, uniformly, so each
    is still seen once; the ends of the tasks are nominal.
    """

    sharp: ClassVar[bool] = False

    tasks: int
    width: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.width <= 1:
            raise Refused(f"`width={self.width}` is no part of a task; take one from 0 to 1, where only neighbours blend.")

    def over(self, rows: Batch, names: tuple[str, ...], seeds: Seeds) -> Pass:
        blocks, classes = _blocks(self.tasks, rows.y, names, seeds)
        whole = np.concatenate(blocks)
        half = self.width * min(map(len, blocks)) / 2
        time = np.arange(len(whole)) + seeds.numpy("blend").uniform(-half, half, len(whole))
        return _numbered(whole[time.argsort(kind="stable")], blocks, classes, rows, names, sharp=self.sharp)


Order = Clear | Blurry | Imbalanced | Blend
ORDERS: dict[str, type[Order]] = {o.__name__.lower(): o for o in (Clear, Blurry, Imbalanced, Blend)}
"""The orders of a pass, by the names the command line knows them by."""


def _blocks(tasks: int, y: Tensor, names: tuple[str, ...], seeds: Seeds) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The rows of each task, shuffled, and its classes."""
    classes, labels = _tasks(tasks, y, names, seeds.class_order(len(names))), y.numpy()
    return [seeds.numpy("order", t).permutation(np.flatnonzero(np.isin(labels, c))) for t, c in enumerate(classes)], classes


def _tasks(tasks: int, y: Tensor, names: tuple[str, ...], order: np.ndarray) -> list[np.ndarray]:
    """The classes of each task, if they come in this order."""
    if tasks < 1 or len(names) % tasks:
        divisors = ", ".join(str(t) for t in range(1, len(names) + 1) if len(names) % t == 0)
        raise Refused(f"`tasks={tasks}` does not divide the {len(names)} classes evenly; take one of {divisors}.")
    labels = y.numpy()
    if labels.min() < 0 or labels.max() >= len(names):
        raise Refused(
            f"The labels run from {labels.min()} to {labels.max()}, outside 0 to {len(names) - 1} for the {len(names)} "
            "classes named; number them from 0 or name every class."
        )
    missing = np.setdiff1d(np.arange(len(names)), labels)
    if len(missing):
        raise Refused(f"Class `{names[missing[0]]}` has no training image; leave it out of the names or give it some.")
    return np.split(order, tasks)


def _numbered(
    order: np.ndarray,
    blocks: list[np.ndarray],
    classes: list[np.ndarray],
    rows: Batch,
    names: tuple[str, ...],
    *,
    sharp: bool,
) -> Pass:
    labels, first = np.unique(rows.y.numpy()[order], return_index=True)
    original = tuple(int(c) for c in labels[first.argsort()])
    number = _numbers(original)
    spec = Spec(
        classes=len(names),
        image=(rows.x.shape[1], rows.x.shape[2], rows.x.shape[3]),
        tasks=tuple(tuple(sorted(number[torch.from_numpy(c)].tolist())) for c in classes),
        original=original,
        names=tuple(names[c] for c in original),
    )
    ends = tuple(int(e) for e in np.cumsum([len(b) for b in blocks]))
    return Pass(rows.x, number[rows.y], torch.from_numpy(order), spec, ends, sharp)


def _numbers(original: tuple[int, ...]) -> Tensor:
    number = torch.empty(len(original), dtype=torch.int64)
    number[list(original)] = torch.arange(len(original))
    return number
