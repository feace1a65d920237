"""MKD in Avalanche's strategies, as a plugin; it needs nothing of Avalanche but the documented interface of a strategy."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.errors import Refused
from onepass.losses import mkd_loss
from onepass.teachers import EMA, Follower, Teacher, average


class MKDPlugin:
    """Momentum knowledge distillation in a strategy of Avalanche's: `Naive(..., plugins=[ReplayPlugin(), MKDPlugin()])`.

    What the strategy's model gives for the stream and for what is replayed is distilled from a teacher that sees the same.  The
    teacher follows after each update, and grows with a model whose classifier grows.

    cross_entropy   is added, of what the student gives for the view that the teacher sees: as MKD has it beside every method whose
                    own loss is another, and to be turned off beside plain replay.
    augment         None, or from a tensor of images to another view of them: the student sees both, the teacher this one
                    (Algorithm 1).
    logits          takes the logits from what the model gives, if it gives more.
    teacher         another than `EMA(alpha)`; it then needs a `weight` of its own.
    infer           who is evaluated: the student, the teacher or the average of both.
    """

    supports_distributed = False

    def __init__(
        self,
        *,
        alpha: float = 0.01,
        weight: float | None = None,
        temperature: float = 4.0,
        cross_entropy: bool = True,
        augment: Callable[[Tensor], Tensor] | None = None,
        logits: Callable[[Any], Tensor] | None = None,
        teacher: Teacher | None = None,
        infer: Literal["student", "teacher", "average"] = "average",
    ):
        if infer not in ("student", "teacher", "average"):
            raise Refused(f"`infer={infer}` is not one of student, teacher, average.")
        if teacher is not None and weight is None:
            raise Refused("The weight is left to the law of alpha, but the teacher is one of your own; give a `weight`.")
        self.alpha, self.weight, self.temperature = alpha, weight, temperature
        self.cross_entropy, self.augment, self.logits, self.infer = cross_entropy, augment, logits, infer
        self.rule = teacher or EMA(alpha)
        self.follower: Follower | None = None
        self._student: nn.Module | None = None  # while another is evaluated

    def before_training_exp(self, strategy: Any, **_: Any) -> None:
        """By now the strategy has adapted its model to the classes of the experience."""
        new = self.rule.follow(strategy.model)
        if self.follower is None:
            self.follower = new
            return
        if _shapes(new) != _shapes(self.follower):
            self.follower = _grown(new, self.follower)
        self.follower.boundary(strategy.model)

    def before_backward(self, strategy: Any, **_: Any) -> None:
        teacher = self._teacher
        seen = [(strategy.mbatch, strategy.mb_output)]
        if getattr(strategy, "replay_loader", None) is not None and hasattr(strategy, "mb_buffer_out"):  # ER-ACE's second forward
            replayed = [strategy.mb_buffer_x, strategy.mb_buffer_y, strategy.mb_buffer_tid]
            seen.append((replayed, strategy.mb_buffer_out))
        if not teacher.ready:
            return
        students: list[Any] = []
        teachers: list[Any] = []
        rows = sum(len(batch[1]) for batch, _ in seen)
        for batch, out in seen:
            students.append(out)
            if self.augment is not None:
                batch = [self.augment(batch[0]), *batch[1:]]
                out = _forward(strategy, strategy.model, batch)
                students.append(out)
            if self.cross_entropy:
                z = self.logits(out) if self.logits else out
                strategy.loss = strategy.loss + F.cross_entropy(z, batch[1]) * len(batch[1]) / rows
            with torch.no_grad():
                taught = _forward(strategy, teacher.net, batch)
            teachers += [taught] * (1 if self.augment is None else 2)
        strategy.loss = strategy.loss + mkd_loss(
            students, teachers, alpha=self.alpha, weight=self.weight, temperature=self.temperature, logits=self.logits
        )

    def after_update(self, strategy: Any, **_: Any) -> None:
        self._teacher.update(strategy.model)

    def before_eval(self, strategy: Any, **_: Any) -> None:
        if self.follower is not None and self.infer != "student":
            self._student = strategy.model
            strategy.model = self.predictor(strategy.model)

    def after_eval(self, strategy: Any, **_: Any) -> None:
        if self._student is not None:
            strategy.model, self._student = self._student, None

    def predictor(self, model: nn.Module) -> nn.Module:
        """The network that is evaluated: a copy, in evaluation mode."""
        return average(self._teacher.net if self.infer == "teacher" else model, self._teacher)

    @property
    def _teacher(self) -> Follower:
        if self.follower is None:
            raise Refused("There is no teacher before the first experience has begun.")
        return self.follower


def _forward(strategy: Any, net: nn.Module, batch: list[Tensor]) -> Any:
    """What the strategy's own forward gives for another network and another batch, task labels and all."""
    kept = strategy.model, strategy.mbatch
    strategy.model, strategy.mbatch = net, batch
    try:
        return strategy.forward()
    finally:
        strategy.model, strategy.mbatch = kept


def _shapes(follower: Follower) -> dict[str, torch.Size]:
    return {k: v.shape for k, v in follower.state_dict().items()}


@torch.no_grad()
def _grown(new: Follower, old: Follower) -> Follower:
    """A follower of the student's new shape, with what the old one had where it had anything."""
    before = old.state_dict()
    for name, mine in new.state_dict().items():
        if name in before and mine.dim() == before[name].dim():
            both = tuple(slice(min(a, b)) for a, b in zip(mine.shape, before[name].shape, strict=True))
            mine[both] = before[name][both]
    new.updates = old.updates
    return new
