"""What a learner in use can say of itself: accuracy on what it remembers, how far it has drifted, what it is forgetting."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onepass.arrivals import Label
from onepass.nets import Net


@dataclass(frozen=True)
class Report:
    """All of it is measured on the images in memory, which have been trained on: a fall says more than a height.

    accuracy     the share of each class's remembered images that is classified rightly.
    remembered   how many these are.
    drift        how far the features of the classes known at the last call have moved since, as a part of their length; None on
                 the first call.
    forgetting   of the classes known at the last call, those whose accuracy on the same images has fallen by `fell` or more
                 since: before and now.
    """

    images: int
    accuracy: dict[Label, float]
    remembered: dict[Label, int]
    drift: float | None = None
    forgetting: dict[Label, tuple[float, float]] = field(default_factory=dict[Label, tuple[float, float]])

    @property
    def mean(self) -> float:
        """The mean over classes."""
        return sum(self.accuracy.values()) / len(self.accuracy) if self.accuracy else float("nan")

    def __str__(self) -> str:
        moved = "" if self.drift is None else f"; features have moved by {100 * self.drift:.1f} % of their length"
        lines = [f"{self.images} images of {len(self.accuracy)} classes; {100 * self.mean:.1f} % of the memory is right{moved}"]
        for name, share in sorted(self.accuracy.items(), key=lambda pair: pair[1]):
            before = self.forgetting.get(name)
            fallen = f", was {100 * before[0]:.1f} %: being forgotten" if before else ""
            lines.append(f"  {name}: {100 * share:.1f} % of {self.remembered[name]}{fallen}")
        return "\n".join(lines)


def examine(
    images: int,
    y: Tensor,
    names: Sequence[Label],
    now: tuple[Tensor, Tensor],
    before: tuple[Tensor, Tensor] | None,
    known: int,
    fell: float,
) -> Report:
    """A report from the features and the logits of the remembered images, by the network of now and that of the last call, which
    knew the first `known` classes."""
    present = y.unique().tolist()

    def right(logits: Tensor) -> dict[int, float]:
        hit = logits.argmax(1) == y
        return {c: hit[y == c].double().mean().item() for c in present}

    mine = right(now[1])
    accuracy = {names[c]: mine[c] for c in present}
    remembered = {names[c]: int((y == c).sum()) for c in present}
    if before is None:
        return Report(images, accuracy, remembered)
    old = y < known
    length = before[0][old].norm(dim=1).mean()
    drift = float((now[0] - before[0])[old].norm(dim=1).mean() / length) if bool(old.any()) and length > 0 else 0.0
    theirs = right(before[1])
    fallen = {names[c]: (theirs[c], mine[c]) for c in present if c < known and theirs[c] - mine[c] >= fell}
    return Report(images, accuracy, remembered, drift, fallen)


def parts(net: Net, x: Tensor, classes: int, rows: int = 250) -> tuple[Tensor, Tensor]:
    """Features and logits of uint8 images, by a network in evaluation mode, in float32 on the host."""
    weight = next(net.parameters())
    with torch.no_grad():
        found = [net.parts(part.to(weight.device, weight.dtype) / 255) for part in x.split(rows)]
    return torch.cat([h.float().cpu() for h, _ in found]), torch.cat([z[:, :classes].float().cpu() for _, z in found])
