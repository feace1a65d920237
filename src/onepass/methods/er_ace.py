"""ER-ACE: the stream's softmax does not see the classes it could only push down."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.errors import Refused
from onepass.method import Method
from onepass.step import Step

AUTHORS_BATCH = 10


@dataclass(frozen=True)
class ERACE(Method):
    """Asymmetric cross-entropy (Caccia et al., 2022): L = CE(z(Aug(x)) restricted to S, y) + CE(z(Aug(m)), y).

    shown   S: the classes present in the batch and "unseen": those never met; "present": the former alone (the ER-ACE paper);
            "authors": the former and, of the unseen, those that the data set numbers 0 to 9, as the MKD authors' code has it
            (it counts to its batch size; right for CIFAR-10 alone).
    """

    shown: Literal["unseen", "present", "authors"] = "unseen"

    def __post_init__(self) -> None:
        if self.shown not in ("unseen", "present", "authors"):
            raise Refused(f"`shown={self.shown}` is not one of unseen, present, authors.")

    def loss(self, step: Step) -> Tensor | None:
        logits = step.student(step.aug(step.stream)).logits
        hidden = ~step.there(self.visible(step)[: logits.shape[1]])
        loss = F.cross_entropy(logits.masked_fill(hidden, -torch.inf), step.stream.y)
        if len(step.replay):
            loss = loss + F.cross_entropy(step.student(step.aug(step.replay)).logits, step.replay.y)
        return loss

    def visible(self, step: Step) -> Tensor:
        """S, as a mask of the classes."""
        if self.shown == "present":
            return step.present
        unseen = ~step.seen
        if self.shown == "authors":
            if len(step.spec.original) != step.spec.classes:
                raise Refused(
                    "`shown=authors` asks how the data set numbers its classes, and this stream's `Spec.original` is empty."
                )
            unseen = unseen & (torch.tensor(step.spec.original) < AUTHORS_BATCH)
        return step.present | unseen
