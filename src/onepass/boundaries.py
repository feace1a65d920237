"""When a new task starts: known, or inferred from the classes that arrive."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from onepass.errors import Refused
from onepass.stream import Spec


class Boundaries(Protocol):
    """Whether a new task starts with this batch.  Not asked on the very first one.

    `present` and `seen` say of each class whether it is in this batch, and whether it was in an earlier one; `since`
    counts the batches since the last boundary.
    """

    def __call__(self, present: Tensor, seen: Tensor, since: int, spec: Spec) -> bool: ...


@dataclass(frozen=True)
class Oracle:
    """A task starts when the stream says so: with the first image of a task none of whose classes has been met."""

    def __call__(self, present: Tensor, seen: Tensor, since: int, spec: Spec) -> bool:
        if not spec.tasks:
            raise Refused("This stream has no tasks to know the boundaries of; take a rule such as `NewClass(lag=100)`.")
        return any(present[list(task)].any() and not seen[list(task)].any() for task in spec.tasks)


@dataclass(frozen=True)
class NewClass:
    """A task starts with a class never seen before, unless one started fewer than `lag` batches ago (the paper's rule)."""

    lag: int = 100

    def __post_init__(self) -> None:
        if self.lag < 1:
            raise Refused(f"`lag={self.lag}` would start a task within a batch; take at least 1.")

    def __call__(self, present: Tensor, seen: Tensor, since: int, spec: Spec) -> bool:
        return since >= self.lag and bool((present & ~seen).any())
