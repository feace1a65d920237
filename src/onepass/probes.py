"""Measurements of a live learner: named arrays, which know nothing of tables."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from onepass.errors import Refused
from onepass.learner import Infer, Learner
from onepass.stream import Batch, Stream


@dataclass(frozen=True)
class Moment:
    """When a probe is asked: around one batch of a stream."""

    before: int  # images seen before the batch
    after: int  # and after it
    ends: tuple[int, ...]  # of the tasks, in images
    last: bool  # whether the stream is over then
    batches: int = 0  # learnt before it
    seen: dict[Any, Any] = field(default_factory=dict[Any, Any])  # what probes saw before it, filed under them

    @property
    def past(self) -> int:
        """How many tasks had ended before the batch."""
        return bisect_right(self.ends, self.before)

    @property
    def ended(self) -> int:
        """How many tasks have ended after it."""
        return bisect_right(self.ends, self.after)

    @property
    def task_end(self) -> bool:
        return self.last or self.ended > self.past


class Probe(Protocol):
    """A measurement.  It draws nothing and moves nothing, so a run with it has the same bits as a run without."""

    def due(self, moment: Moment) -> bool: ...
    def __call__(self, learner: Learner, stream: Stream, test: Batch, moment: Moment) -> Iterator[tuple[str, np.ndarray]]: ...


@runtime_checkable
class Before(Protocol):
    """A probe that also looks before the batch is learnt; what it sees is in `moment.seen` when it is asked, after it."""

    def before(self, learner: Learner, stream: Stream, moment: Moment) -> Any: ...


@dataclass(frozen=True)
class Predictions:
    """The predicted class of every test image of the tasks so far, -1 for the others.

    By student, teacher and average at each task's end, and by the network that predicts every `every` images if that is
    given.
    """

    every: int | None = None

    def due(self, moment: Moment) -> bool:
        return moment.task_end or bool(self.every and moment.after // self.every > moment.before // self.every)

    def __call__(self, learner: Learner, stream: Stream, test: Batch, moment: Moment) -> Iterator[tuple[str, np.ndarray]]:
        asked = _asked(stream, test, moment)
        for which in learner.networks if moment.task_end else (learner.infer,):
            predicted = learner.predict(_images(test, asked), which)
            yield f"{'task' if moment.task_end else 'curve'}/{which}", _where(asked, predicted)


@dataclass(frozen=True)
class NCM:
    """The class whose mean is nearest to every test image, -1 for those of tasks not met: at the end, without the classifier.

    Means and distances are of the features of raw images in evaluation mode, the means over all that is remembered of a
    class; by the student, and by the network that predicts if that is another.
    """

    def due(self, moment: Moment) -> bool:
        return moment.last

    def __call__(self, learner: Learner, stream: Stream, test: Batch, moment: Moment) -> Iterator[tuple[str, np.ndarray]]:
        asked, memory = _asked(stream, test, moment), learner.memory.all()
        for which in dict.fromkeys(("student", learner.infer)):
            remembered, features = learner.features(memory.x, which), learner.features(_images(test, asked), which)
            yield f"ncm/{which}", _where(asked, nearest_class_mean(remembered, memory.y.cpu(), features))


def nearest_class_mean(remembered: Tensor, y: Tensor, features: Tensor) -> Tensor:
    """For each row of `features` the class of the nearest mean of those rows of `remembered` that are of one class."""
    classes, index = y.unique(return_inverse=True)
    sums = torch.zeros(len(classes), remembered.shape[1], dtype=torch.float64).index_add_(0, index, remembered.double())
    means = sums / index.bincount()[:, None]
    return classes[torch.cdist(features.double(), means, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)]


@dataclass(frozen=True)
class Drift:
    """How far one update moves the features of what is remembered of past tasks: the mean norm of their change.

    The same images before and after one batch in `every`, at most `rows` of them, evenly spaced over the memory; raw, in
    evaluation mode.  Where tasks are blurry, those count as past that have nominally ended.
    """

    every: int = 50
    rows: int = 1000
    of: tuple[Infer, ...] = ("student",)  # those of these networks that there are

    def __post_init__(self) -> None:
        for name in "every", "rows":
            if getattr(self, name) < 1:
                raise Refused(f"`{name}={getattr(self, name)}` measures no drift; take at least 1.")

    def due(self, moment: Moment) -> bool:
        return moment.past > 0 and moment.batches % self.every == 0

    def before(self, learner: Learner, stream: Stream, moment: Moment) -> tuple[Tensor, dict[Infer, Tensor]]:
        memory = learner.memory
        old = torch.tensor([c for task in stream.spec.tasks[: moment.past] for c in task])
        rows = torch.isin(memory.labels[: len(memory)], old).nonzero().squeeze(1)
        count = min(self.rows, len(rows))
        x = memory.at(rows[torch.arange(count) * len(rows) // max(count, 1)], "past").x  # a copy: the memory moves on
        return x, self._look(learner, x)

    def __call__(self, learner: Learner, stream: Stream, test: Batch, moment: Moment) -> Iterator[tuple[str, np.ndarray]]:
        x, then = moment.seen[self]
        for which, features in self._look(learner, x).items():
            yield f"drift/{which}", (features - then[which]).norm(dim=1).mean().numpy()

    def _look(self, learner: Learner, x: Tensor) -> dict[Infer, Tensor]:
        # in bf16 rounding alone would be a fifth of what one update changes
        return {which: learner.features(x, which, precision="fp32") for which in self.of if which in learner.networks and len(x)}


@dataclass(frozen=True)
class MemoryFeatures:
    """The features of all that is remembered, and their classes, at the end: what a picture of them is made from."""

    of: Infer = "student"

    def due(self, moment: Moment) -> bool:
        return moment.last

    def __call__(self, learner: Learner, stream: Stream, test: Batch, moment: Moment) -> Iterator[tuple[str, np.ndarray]]:
        memory = learner.memory.all()
        yield "memory/features", learner.features(memory.x, self.of).float().numpy()
        yield "memory/y", memory.y.cpu().numpy().astype(np.int16)


def _asked(stream: Stream, test: Batch, moment: Moment) -> Tensor:
    """Which test images are of the tasks so far."""
    tasks = stream.spec.tasks[: moment.ended + (0 if moment.task_end else 1)]
    return torch.isin(test.y, torch.tensor([c for task in tasks for c in task]))


def _images(test: Batch, asked: Tensor) -> Tensor:
    """Some of the test images, still on the disk if that is where they are."""
    return test.x.index_select(0, asked.nonzero().squeeze(1))


def _where(asked: Tensor, predicted: Tensor) -> np.ndarray:
    """Predictions of some of the test images as an array over all of them."""
    out = np.full(len(asked), -1, dtype=np.int16)
    out[asked.numpy()] = predicted.numpy()
    return out
