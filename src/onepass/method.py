"""What a method is: a frozen value with one loss."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from onepass.memory import Column
from onepass.nets import Head, Linear
from onepass.step import Step
from onepass.stream import Spec
from onepass.teachers import Teacher


class Method(ABC):
    """A way to learn from a stream with a memory.

    Write a frozen dataclass with `loss`; declare what the learner must provide in the class variables below.  A method
    returns a loss and does nothing else: no backward, no optimiser.  Never subclass a method; compose instead.
    """

    classifier: ClassVar[Head] = Linear()
    heads: ClassVar[Mapping[str, Head]] = {}
    """Further outputs the network must have: `step.student(view).head(name)`."""
    columns: ClassVar[Mapping[str, Column]] = {}
    """Further columns the memory must keep: `step.replay.extra[name]`, filled by `remember`."""
    teachers: ClassVar[Mapping[str, Teacher]] = {}
    """Networks the method itself follows the student with: `step.net(name)`."""

    needs_tasks: ClassVar[str] = ""
    """Why it must be told where tasks begin, if it must: what is said where a stream has none."""

    def state(self, spec: Spec) -> dict[str, Tensor]:
        """What changes over steps, at its start: `step.state[self]`.  It is checkpointed for you."""
        return {}

    @abstractmethod
    def loss(self, step: Step) -> Tensor | None:
        """The loss of this update, a scalar; None: do not update on this batch."""

    def remember(self, step: Step) -> dict[str, Tensor]:
        """Values of `columns` for the rows of the stream, from outputs already there."""
        return {}
