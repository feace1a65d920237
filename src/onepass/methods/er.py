"""ER: cross-entropy on the stream and on what is replayed, as one batch."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from onepass.method import Method
from onepass.step import Step


@dataclass(frozen=True)
class ER(Method):
    """Experience replay (Rolnick et al., 2019): L = mean over replay and stream of CE(z(Aug(x)), y).

    As in the authors' code, nothing is learnt from the very first batch, when there is nothing to replay.
    """

    def loss(self, step: Step) -> Tensor | None:
        if not len(step.replay):
            return None
        return F.cross_entropy(step.student(step.aug(step.both)).logits, step.both.y)
