"""What a choice is judged by: a part of the training images that is held out of the stream, so that no test image has a say."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from onepass.errors import Refused
from onepass.stream import Batch, Pass


class HeldOut(Protocol):
    """A protocol of choosing: what is learnt from, what is tested on instead of the test images, and how far the stream goes."""

    def split(self, rows: Batch, names: tuple[str, ...]) -> tuple[Batch, Batch]: ...
    def cut(self, stream: Pass) -> Pass: ...


@dataclass(frozen=True)
class LastTenth:
    """The last tenth of each class's training images, in the data set's order, is tested on; the stream has the others."""

    def split(self, rows: Batch, names: tuple[str, ...]) -> tuple[Batch, Batch]:
        return _last_tenth(rows, names)

    def cut(self, stream: Pass) -> Pass:
        return stream


@dataclass(frozen=True)
class FirstTasks:
    """The stream ends after its first tasks, and the last tenth of their classes' training images is tested on.

    What comes later has no say in the choice, as it has none for a learner that lives on.
    """

    tasks: int = 2

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise Refused(f"`held_out.tasks={self.tasks}` leaves nothing of the stream; take at least 1.")

    def split(self, rows: Batch, names: tuple[str, ...]) -> tuple[Batch, Batch]:
        return _last_tenth(rows, names)

    def cut(self, stream: Pass) -> Pass:
        there = len(stream.task_ends)
        if self.tasks > there:
            raise Refused(f"`held_out.tasks={self.tasks}` is more than the stream's {there} tasks; take at most {there}.")
        return stream.cut(stream.task_ends[self.tasks - 1])


def _last_tenth(rows: Batch, names: tuple[str, ...]) -> tuple[Batch, Batch]:
    """The first of each class's rows and its last tenth, at least one, both in the order in which they were."""
    kept: list[Tensor] = []
    held: list[Tensor] = []
    for c, name in enumerate(names):
        mine = (rows.y == c).nonzero().squeeze(1)
        if len(mine) == 1:
            raise Refused(
                f"Class `{name}` has one training image, and holding it out leaves none to learn from; take `per_class` of at "
                "least 2, or leave `held_out` out."
            )
        tenth = max(1, len(mine) // 10)
        kept.append(mine[:-tenth])
        held.append(mine[len(mine) - tenth :])
    return _some(rows, kept), _some(rows, held)


def _some(rows: Batch, parts: list[Tensor]) -> Batch:
    index = torch.cat(parts).sort().values
    return Batch(rows.x.index_select(0, index), rows.y[index])  # images on the disk stay there
