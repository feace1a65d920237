"""OCM: sixteen rotations of every image, and the mutual information of what is new, what is kept and what was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.errors import Refused
from onepass.losses import contrast
from onepass.method import Method
from onepass.nets import Head
from onepass.step import Out, Step
from onepass.stream import Spec
from onepass.teachers import Snapshot, Teacher


@dataclass(frozen=True)
class Projection:
    """A description of a linear head, no wider than the features."""

    width: int = 128

    def build(self, features: int, classes: int) -> nn.Module:
        return nn.Linear(features, min(self.width, features))


def rotations(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each image with none, either or both of its halves turned by 180 degrees, the whole turned by 0, 90, 180 and 270.

    (n, c, s, s) -> (16 n, c, s, s), copy by copy; the label of copy k of class y is 16 y + k.
    """
    half = x.shape[3] // 2
    left, right = x[..., :half], x[..., half:]
    turned_left, turned_right = left.flip(2, 3), right.flip(2, 3)
    inner = [(left, right), (turned_left, right), (left, turned_right), (turned_left, turned_right)]
    copies = [torch.rot90(torch.cat(pair, 3), k, (2, 3)) for pair in inner for k in range(4)]
    labels = [16 * y + k for k in range(16)]
    return torch.cat(copies), torch.cat(labels)


@dataclass(frozen=True)
class OCM(Method):
    """Online continual learning through mutual information maximisation (Guo et al., 2022).

    With R the sixteen rotations, A the augmentation, u the projection and f the features, both of unit length, and
    S = s (u f' + u u') for a random window f of the features as wide as u, in the first task and later:

    first   L = Ln(stream) + CE(z(A(stream)))
    later   L = Ln(stream) + Luni(replay) + Lpre(replay) + CE(z(A(replay))) + MSE(z_prev, z; A(replay), old classes)

    Ln, Luni, Lpre are contrasts of S (Lpre: of u(R) with the previous model's) with `losses.contrast`; s is 1 in the first task and
    `scale` later.  Nothing is replayed in the first task.  The previous model is the student at the last boundary, with batch
    statistics.

    two_views   the two sides of the MSE see different augmentations, as in the authors' baseline.
    """

    heads: ClassVar[Mapping[str, Head]] = {"projection": Projection()}
    teachers: ClassVar[Mapping[str, Teacher]] = {"previous": Snapshot()}

    needs_tasks: ClassVar[str] = "it keeps the model of the task before"

    scale: float = 0.5
    temperature: float = 0.07
    two_views: bool = False

    def state(self, spec: Spec) -> dict[str, Tensor]:
        _, height, width = spec.image
        if height != width:
            raise Refused(f"`OCM` turns images by 90 degrees, and these are {height}x{width}; make them square.")
        return {}

    def loss(self, step: Step) -> Tensor | None:
        stream = step.view(step.stream, rotations)
        if step.task == 0:
            step.replay = step.stream[:0]
            new = self.similarity(step, "stream", *step.student.joint(stream, step.aug(stream)), scale=1.0)
            loss = contrast(new, twice(stream.y), self.temperature, pairs=True).mean()
            return loss + F.cross_entropy(step.student(step.aug(step.stream)).logits, step.stream.y)
        replay = step.view(step.replay, rotations)
        outs = step.student.joint(stream, step.aug(stream), replay, step.aug(replay))
        new = self.similarity(step, "stream", *outs[:2], scale=self.scale)
        kept = self.similarity(step, "replay", *outs[2:], scale=self.scale)
        past = unit(outs[2].head("projection")) @ unit(step.net("previous")(replay).head("projection")).T
        loss = contrast(new, twice(stream.y), self.temperature, pairs=True).mean()
        loss = loss + contrast(kept, twice(replay.y), self.temperature).mean()
        loss = loss + contrast(past, replay.y, self.temperature).mean()
        return loss + self.replay_terms(step)

    def similarity(self, step: Step, name: str, one: Out, other: Out, *, scale: float) -> Tensor:
        u = unit(torch.cat([one.head("projection"), other.head("projection")]))
        f = unit(torch.cat([one.features, other.features]))
        width = u.shape[1]
        start = int(torch.randint(max(1, f.shape[1] - width), (), generator=step.random(f"window {name}")))  # on the host
        return scale * (u @ f[:, start : start + width].T + u @ u.T)

    def replay_terms(self, step: Step) -> Tensor:
        view = step.aug(step.replay)
        logits = step.student(view).logits
        again = step.aug(step.replay, "previous") if self.two_views else view
        past = step.net("previous")(again).logits
        old = (step.seen & ~step.new).nonzero().squeeze(1).to(logits.device, non_blocking=True)  # found on the host
        return F.cross_entropy(logits, step.replay.y) + F.mse_loss(logits[:, old], past[:, old])


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1)


def twice(y: Tensor) -> Tensor:
    return torch.cat([y, y])
