"""What a student learns from its teacher: a loss read off both, added to the method's own."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.augment import Augment
from onepass.errors import Refused
from onepass.losses import lambda_for, mkd_loss
from onepass.step import Forward, Step, View
from onepass.stream import Spec

Pairs = tuple[tuple[str, str], ...]
ALGORITHM_1: Pairs = (("raw", "aug"), ("aug", "aug"))  # (student sees, teacher sees): what the published numbers used
EQUATION_3: Pairs = (("aug", "raw"), ("aug", "aug"))  # what the paper writes
SINGLE_VIEW: Pairs = (("aug", "aug"),)  # the ablation's "no aug"


class Distiller(Protocol):
    """A loss read off the student and its teacher, added to (or mixed with) the method's own, `base`."""

    def state(self, spec: Spec) -> dict[str, Tensor]: ...
    def loss(self, step: Step, base: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class MKD:
    """Momentum knowledge distillation: L = base + CE(s(aug), y) + weight x the mean over pairs of tau^2 KL(t || s).

    weight         lambda; None: `lambda_for` the teacher's alpha, so that there is one dial.
    pairs          which view the student sees, and which the teacher, in each term; forwarded in this order.
    cross_entropy  its own, on the augmented view; off for ER, whose loss is that cross-entropy already.
    raw_until      None, or a number of tasks after which "raw" is the augmented images once more (the authors' OCM: 1).
    doubled        each image goes through twice, in one batch-norm group (the authors' DVC).
    draw           "mkd": views of its own, as the authors' code has them; "main": the method's (ER: always these).
    augment        of its own views; None: the data's full set, whatever the method itself uses.
    """

    weight: float | None = None
    temperature: float = 4.0
    pairs: Pairs = ALGORITHM_1
    cross_entropy: bool = True
    draw: Literal["mkd", "main"] = "mkd"
    augment: Augment | None = None
    raw_until: int | None = None
    doubled: bool = False

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise Refused(f"`temperature={self.temperature}` divides the logits; take one above 0 (the paper's is 4).")
        if self.weight is not None and not self.weight >= 0:
            raise Refused(f"`weight={self.weight}` would reward the student for leaving its teacher; take one of at least 0.")
        if not self.pairs or any(view not in ("raw", "aug") for pair in self.pairs for view in pair):
            raise Refused(f"`pairs={self.pairs}` must pair views named raw or aug, e.g. (('raw', 'aug'), ('aug', 'aug')).")
        if self.draw not in ("mkd", "main"):
            raise Refused(f"`draw={self.draw!r}` is neither `mkd`, views of its own, nor `main`, the method's.")
        if self.draw == "main" and self.augment is not None:
            raise Refused("`augment` has no say with `draw='main'`, where the views are the method's; leave one of them out.")

    def state(self, spec: Spec) -> dict[str, Tensor]:
        return {}

    def loss(self, step: Step, base: Tensor) -> Tensor:
        if not step.ready:
            return base
        using = (self.augment or step.full) if self.draw == "mkd" else None
        aug = step.aug(step.both, self.draw, using)
        raw = step.raw(step.both, self.draw)
        if self.raw_until is not None and step.task >= self.raw_until:
            raw = step.raw(aug, "again")
        view = {"raw": raw, "aug": aug}
        teachers = [self.logits(step, step.teacher, view[t]) for _, t in self.pairs]  # first: they keep nothing for a backward
        students = [self.logits(step, step.student, view[s]) for s, _ in self.pairs]
        weight = self.weight
        if weight is None:
            if step.alpha is None:
                raise Refused("`weight` is left to the law of alpha, but this teacher has no `alpha`; give MKD a `weight`.")
            weight = lambda_for(step.alpha)
        loss = base + mkd_loss(students, teachers, weight=weight, temperature=self.temperature)
        if self.cross_entropy:
            loss = loss + F.cross_entropy(self.logits(step, step.student, aug), step.both.y)
        return loss

    def logits(self, step: Step, net: Forward, view: View) -> Tensor:
        _whole(net, view, "mkd")
        return net.joint(view, step.raw(view, "double"))[0].logits if self.doubled else net(view).logits


@dataclass(frozen=True, kw_only=True)
class SDP:
    """Scheduled data prior (Koh et al., 2023): L = (1 - w) base + mean of beta w |h - h_T|^2 over the augmented images.

    h are the student's features and h_T the teacher's; beta = mean of sqrt(|dCE/dh|^2 / (4 |h - h_T|^2 + 1e-8)) evens out the
    sizes of the two gradients; w = clip(m - 1/K, 0, 1) K / (K + 1), where K classes were met and m is the mean over them of the
    mean of the last 100 probabilities that the student, in evaluation mode, gave to the right class.

    scale_base  False: base is left as it is, and (1 - w) CE of the augmented images is added (GSA+SDP).
    draw        "main": the method's augmented images; "sdp": others, where the method's do not cover stream and replay (OCM).
    """

    scale_base: bool = True
    draw: Literal["sdp", "main"] = "main"
    window: int = 100

    def state(self, spec: Spec) -> dict[str, Tensor]:
        # a ring of probabilities for each class, with a last place for what is pushed out before it is looked at
        ring = torch.zeros(spec.classes, self.window + 1)
        return {"ring": ring, "count": torch.zeros(spec.classes, dtype=torch.int64)}

    def loss(self, step: Step, base: Tensor) -> Tensor:
        if not step.ready:
            return base
        view = step.aug(step.both, self.draw)
        _whole(step.student, view, "sdp")
        out = step.student(view)
        gap = (out.features - step.teacher(view).features).square().sum(1)
        confidence = step.student.peek(view, running=True).logits.softmax(1).gather(1, view.y[:, None]).squeeze(1)
        w = self.schedule(step.state[self], confidence, view.y, step.there(step.seen))
        slope = feature_slope(step.student.net.classifier, out.features, view.y, out.logits.shape[1])
        beta = (slope.square().sum(1) / (4 * gap.detach() + 1e-8)).sqrt().mean()
        if not self.scale_base:
            return base + (1 - w) * F.cross_entropy(out.logits, view.y) + beta * w * gap.mean()
        return (1 - w) * base + beta * w * gap.mean()

    def schedule(self, state: dict[str, Tensor], confidence: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        """Keep these probabilities, and say how far the student is from guessing: w."""
        ring, count = state["ring"], state["count"]
        same = y[:, None] == y[None, :]
        before, after = same.tril(-1).sum(1), same.triu(1).sum(1)
        place = torch.where(after < self.window, (count[y] + before) % self.window, self.window)
        ring[y, place] = confidence.to(ring.dtype)
        count.index_add_(0, y, torch.ones_like(y))
        mean = ring[:, : self.window].sum(1) / count.clamp(1, self.window)
        classes = seen.sum()
        return (mean * seen).sum().div(classes).sub(1 / classes).clamp(0, 1) * classes / (classes + 1)


def feature_slope(classifier: nn.Module, features: Tensor, y: Tensor, classes: int | None = None) -> Tensor:
    """d CE / d h of each image, whatever the classifier, among its first `classes`: (p - e_y) W for a linear one."""
    with torch.enable_grad():
        h = features.detach().requires_grad_()
        return torch.autograd.grad(F.cross_entropy(classifier(h)[:, :classes], y, reduction="sum"), h)[0]


@dataclass(frozen=True, kw_only=True)
class Warm:
    """No loss: the teacher sees the augmented images, and so its own batch-norm statistics move (Temporal Ensembles as the
    authors' code has it)."""

    def state(self, spec: Spec) -> dict[str, Tensor]:
        return {}

    def loss(self, step: Step, base: Tensor) -> Tensor:
        step.teacher(step.aug(step.both))
        return base


def _whole(net: Forward, view: View, own: str) -> None:
    """Refuse a view of which the method sent only a part through batch-norm (GSA the stream, and not what is replayed)."""
    if net.splits(view):
        raise Refused(
            f"`draw=main` takes the method's own views, and of `{view.name}` it sent only a part through the `{net.name}` before "
            f"({net.calls}); take `draw={own}` (`--distill.draw {own}`), views of the distiller's own."
        )
