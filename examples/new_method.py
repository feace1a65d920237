"""Replay with logit adjustment: correct the softmax for how often each class has been trained on.

A method of your own is one file.  `onepass run examples/new_method.py:LogitAdjusted+mkd` runs it, and
`python examples/new_method.py` holds it against the contract that every method keeps.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass import Method, Spec, check_method
from onepass.step import Step


@dataclass(frozen=True, kw_only=True)
class LogitAdjusted(Method):
    tau: float = 1.0

    def state(self, spec: Spec) -> dict[str, Tensor]:
        return {"count": torch.ones(spec.classes)}

    def loss(self, step: Step) -> Tensor | None:
        if not len(step.replay):
            return None
        y = step.both.y
        count = step.state[self]["count"]
        count.index_add_(0, y, torch.ones_like(y, dtype=torch.float32))
        prior = self.tau * count.log()
        return F.cross_entropy(step.student(step.aug(step.both)).logits + prior, y)


if __name__ == "__main__":
    print("\n".join(check_method(LogitAdjusted())))
