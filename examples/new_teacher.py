"""A teacher of your own: the mean of all students since the last boundary.

`onepass run er+mkd --teacher examples/new_teacher.py:Mean --distill.weight 5.5` distils from it.
"""

from dataclasses import dataclass

import torch
from torch import nn

from onepass import ER, MKD, check_method
from onepass.contract import Company
from onepass.teachers import Follower


@dataclass(frozen=True)
class Mean:
    """theta_T = (theta_1 + ... + theta_t) / t, begun anew with each task."""

    def follow(self, student: nn.Module) -> Follower:
        return MeanFollower(student, statistics="batch", own_buffers=True)


class MeanFollower(Follower):
    """`updates` counts what the mean is of; it is saved and restored with the weights."""

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        self.updates += 1
        for mine, theirs in zip(self.net.parameters(), student.parameters(), strict=True):
            mine.lerp_(theirs, 1 / self.updates)

    def boundary(self, student: nn.Module) -> None:
        self.updates = 0


if __name__ == "__main__":
    print("\n".join(check_method(ER(), companies=(Company("alone"), Company("its mean", Mean(), MKD(weight=5.5), "average")))))
