"""DVC: two views that must agree, and the replay that the stream's own gradient would hurt most."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.errors import Refused
from onepass.method import Method
from onepass.nets import Head, Linear, UnitLinear
from onepass.step import Out, Step
from onepass.stream import Batch


@dataclass(frozen=True)
class Pair:
    """A description of DVC's head on two views' logits: 2 classes -> hidden -> classes."""

    hidden: int = 128

    def build(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(2 * classes, self.hidden), nn.ReLU(), nn.Linear(self.hidden, classes))


@dataclass(frozen=True)
class DVC(Method):
    """Dual view consistency (Gu et al., 2022), on stream and replay alike, with p, p' the raw and augmented view's softmax and
    q that of a head on both logits:

    L = CE of both views - 1/3 sum of the entropies of the mean p, p' and q + weight mean |q - p, p'|.

    Each batch's two views are one batch-norm group.  Replay is chosen among `candidates` at random: those for which a step down
    the stream's gradient, theta - rate g, most increases |p - e_y|_1 |h|_1, the size of the classifier's gradient.

    candidates  of the memory; as many as are replayed, or fewer, are kept without scoring (the MKD authors' 50).
    unit        logits of unit norm, as the MKD authors' code has them: it cripples the method, and is there to show it.
    """

    heads: ClassVar[Mapping[str, Head]] = {"pair": Pair()}

    weight: float = 2.0
    rate: float = 0.1
    candidates: int = 128
    unit: bool = False

    def __post_init__(self) -> None:
        if self.candidates < 1 or not self.rate >= 0:
            raise Refused(f"`candidates={self.candidates}, rate={self.rate}`: take at least 1 candidate and a rate of at least 0.")

    @property
    def classifier(self) -> Head:  # pyright: ignore[reportIncompatibleVariableOverride]
        return UnitLinear() if self.unit else Linear()

    def loss(self, step: Step) -> Tensor | None:
        loss = self.agree(step, step.stream)
        step.replay = self.interfered(step, loss, step.draw(self.candidates))
        if len(step.replay):
            loss = loss + self.agree(step, step.replay)
        return loss

    def agree(self, step: Step, batch: Batch) -> Tensor:
        one, other = step.student.joint(step.raw(batch), step.aug(batch))
        met = one.logits.shape[1]
        wide = [F.pad(z.logits, (0, step.spec.classes - met)) for z in (one, other)]  # the head has a place for every class
        both = step.student.apply("pair", step.student.net.heads["pair"], torch.cat(wide, 1))[:, :met]
        loss = F.cross_entropy(torch.cat([one.logits, other.logits]), torch.cat([batch.y, batch.y]))
        p, p_other, q = (z.softmax(1) for z in (one.logits, other.logits, both))
        for view in p, p_other, q:
            mean = view.mean(0).clamp(min=torch.finfo(torch.float64).eps)
            loss = loss + (mean * mean.log()).sum() / 3
        return loss + self.weight * ((q - p).abs().mean() + (q - p_other).abs().mean()) / 2

    def interfered(self, step: Step, loss: Tensor, pool: Batch) -> Batch:
        """The rows of the pool that learning from the stream alone would hurt most."""
        if len(pool) <= step.replay_size:
            return pool
        weights = {name: w for name, w in step.student.net.named_parameters() if w.requires_grad}
        slopes = torch.autograd.grad(loss, list(weights.values()), retain_graph=True, materialize_grads=True)
        moved = {name: (w - self.rate * g).detach() for (name, w), g in zip(weights.items(), slopes, strict=True)}
        view = step.raw(pool)
        before, after = step.student.peek(view), step.student.peek(view, moved)
        score = size(after, pool.y) - size(before, pool.y)
        return pool.take(score.topk(step.replay_size).indices, "replay")


def size(out: Out, y: Tensor) -> Tensor:
    """The L1 norm of each image's gradient of the cross-entropy at the classifier's weights: 2 (1 - p_y) |h|_1."""
    p = out.logits.softmax(1).gather(1, y[:, None]).squeeze(1)
    return 2 * (1 - p) * out.features.abs().sum(1)
