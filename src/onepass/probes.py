"""Measurements of a live learner: named arrays, which know nothing of tables."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from onepass.learner import Learner
from onepass.stream import Batch, Stream


@dataclass(frozen=True)
class Moment:
    """When a probe is asked: between two batches of a stream."""

    before: int  # images seen before the last batch
    after: int  # and after it
    ends: tuple[int, ...]  # of the tasks, in images
    last: bool  # whether the stream is over

    @property
    def ended(self) -> int:
        """How many tasks have ended."""
        return bisect_right(self.ends, self.after)

    @property
    def task_end(self) -> bool:
        return self.last or self.ended > bisect_right(self.ends, self.before)


class Probe(Protocol):
    """A measurement.  It draws nothing and moves nothing, so a run with it has the same bits as a run without."""

    def due(self, moment: Moment) -> bool: ...
    def __call__(self, learner: Learner, stream: Stream, test: Batch, moment: Moment) -> Iterator[tuple[str, np.ndarray]]: ...


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
        tasks = stream.spec.tasks[: moment.ended + (0 if moment.task_end else 1)]
        asked = torch.isin(test.y, torch.tensor([c for task in tasks for c in task]))
        rows = asked.nonzero().squeeze(1)
        for which in learner.networks if moment.task_end else (learner.infer,):
            predicted = np.full(len(test), -1, dtype=np.int16)
            predicted[asked.numpy()] = learner.predict(test.x.index_select(0, rows), which).numpy()
            yield f"{'task' if moment.task_end else 'curve'}/{which}", predicted
