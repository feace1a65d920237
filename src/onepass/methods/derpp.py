"""DER++: replay, and the logits an image had when it was stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.memory import Column
from onepass.method import Method
from onepass.step import Step


@dataclass(frozen=True)
class DERpp(Method):
    """Dark experience replay ++ (Buzzega et al., 2020), with stored logits l and two independent draws m1, m2:

    L = CE(z(Aug(x)), y) + alpha mean (z(Aug(m1)) - l)^2 + beta CE(z(Aug(m2)), y), in three batch-norm groups.

    The mean of the second term is over rows and classes, of an open stream those met when the row was stored.  Stored logits are
    those of the first forward, before the update.
    """

    columns: ClassVar[Mapping[str, Column]] = {"logits": Column("classes", torch.float32)}

    alpha: float = 0.2
    beta: float = 1.0

    def loss(self, step: Step) -> Tensor | None:
        loss = F.cross_entropy(step.student(step.aug(step.stream)).logits, step.stream.y)
        if len(step.memory):
            old = step.draw(step.replay_size)
            loss = loss + self.alpha * self.gap(step.student(step.aug(old)).logits, old.extra["logits"])
            loss = loss + self.beta * F.cross_entropy(step.student(step.aug(step.replay)).logits, step.replay.y)
        return loss

    def remember(self, step: Step) -> dict[str, Tensor]:
        logits = step.student(step.aug(step.stream)).logits.detach()
        return {"logits": F.pad(logits, (0, step.spec.classes - logits.shape[1]), value=torch.inf)}

    def gap(self, logits: Tensor, stored: Tensor) -> Tensor:
        """The mean square over what is stored of a row: infinity stands for a class that was not met then."""
        stored = stored[:, : logits.shape[1]]
        known = stored.isfinite()
        same = torch.where(known, stored, logits.detach())
        return F.mse_loss(logits, same) * (known.numel() / known.sum())  # times 1 where all is known
