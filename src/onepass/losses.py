"""The losses, as pure functions of logits and features: per example inside, `.mean()` at the call site."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SLOPE, OFFSET, LEAST_ALPHA = 4.5, 14.5, 0.0006
"""The paper's law, lambda = 9/2 log10(alpha) + 29/2 (section "Expressing lambda"), which is nothing at an alpha of 0.0006."""


def distillation(student: Tensor, teacher: Tensor, temperature: float = 4.0) -> Tensor:
    """tau^2 KL(softmax(teacher / tau) || softmax(student / tau)) of each example: (n, classes), (n, classes) -> (n,).

    The teacher comes first in the divergence and gets no gradient.  The factor tau^2 keeps the size of the gradient
    independent of the temperature; the paper's formula omits it, its published numbers have it.
    """
    if student.shape != teacher.shape:
        raise ValueError(
            f"The student's logits are {tuple(student.shape)} and the teacher's {tuple(teacher.shape)}: distillation "
            "compares them entry by entry, so give both the same images and the same classes."
        )
    log_q = (_wide(student) / temperature).log_softmax(-1)
    log_p = (_wide(teacher.detach()) / temperature).log_softmax(-1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1)


def lambda_for(alpha: float) -> float:
    """The weight of the distillation for a teacher of rate `alpha`: 4.5 log10(alpha) + 14.5 (5.5 at 0.01)."""
    if not 0 < alpha <= 1:
        raise ValueError(f"`alpha={alpha}` is not the rate of a moving average; take one in (0, 1].")
    weight = SLOPE * math.log10(alpha) + OFFSET
    if alpha <= LEAST_ALPHA:
        raise ValueError(
            f"`alpha={alpha}` has no weight to speak of under the law 4.5 log10(alpha) + 14.5 (it gives {weight:.3g}); "
            f"take an alpha above {LEAST_ALPHA}, or give `weight` yourself."
        )
    return weight


def mkd_loss(
    student_logits: Tensor | Sequence[Tensor] | Any,
    teacher_logits: Tensor | Sequence[Tensor] | Any,
    *,
    alpha: float = 0.01,
    weight: float | None = None,
    temperature: float = 4.0,
    logits: Callable[[Any], Tensor] | None = None,
) -> Tensor:
    """Momentum knowledge distillation: weight x the mean of `distillation` over examples and pairs, a scalar.

    Either side may be a sequence of logits, one for each view: [s(raw), s(aug)] against t(aug) is the paper's
    Algorithm 1, s(aug) against [t(raw), t(aug)] its Equation 3.  `weight=None` takes `lambda_for(alpha)`.

    logits   for a network that gives more than logits: takes them from what it gave for one view.  Several views are then a list.
    """
    students, teachers = _views(student_logits, logits), _views(teacher_logits, logits)
    if len(students) != len(teachers) and 1 not in (len(students), len(teachers)) or not students or not teachers:
        raise ValueError(
            f"{len(students)} views of the student cannot be paired with {len(teachers)} of the teacher; "
            "give as many of each, or a single one on either side."
        )
    pairs = max(len(students), len(teachers))
    students, teachers = students * (pairs // len(students)), teachers * (pairs // len(teachers))
    terms = [distillation(s, t, temperature).mean() for s, t in zip(students, teachers, strict=True)]
    return (lambda_for(alpha) if weight is None else weight) * torch.stack(terms).mean()


def _views(given: Any, logits: Callable[[Any], Tensor] | None) -> list[Tensor]:
    if logits is not None:
        return [logits(view) for view in (given if isinstance(given, list) else [given])]
    views: Any = [given] if isinstance(given, Tensor) else given
    if not isinstance(views, list | tuple) or not all(isinstance(view, Tensor) for view in views):
        raise ValueError(
            f"What the network gave is a `{type(given).__name__}`, not the logits of a view or several; say where they are in it, "
            'e.g. `logits=lambda out: out["logits"]`.'
        )
    return list(views)


def proxy_contrast(scores: Tensor, y: Tensor) -> Tensor:
    """-1/|P(i)| sum over j in P(i) of ln [exp(s(i, y_j)) / sum over k of exp(s(i, y_k))] of each example i: (n, classes) -> (n,).

    s(i, c) scores example i against the proxy of class c, and P(i) are the examples of i's class.  All of them share one proxy,
    so with n_c of class c among the n this is the cross-entropy of s + ln n, plus ln n of the example's own class.
    """
    count = torch.zeros(scores.shape[1], dtype=scores.dtype, device=scores.device)
    log_n = count.index_add_(0, y, torch.ones_like(y, dtype=scores.dtype)).log()  # -inf hides classes that are not there
    return F.cross_entropy(scores + log_n, y, reduction="none") + log_n[y]


def contrast(similarity: Tensor, y: Tensor, temperature: float, *, pairs: bool = False, eps: float = 1e-8) -> Tensor:
    """Mean over the positives j of i, those with its label and i itself, of l_ij = -ln(e_ij / (sum over k of e_ik + eps) + eps),
    with e_ij = exp((S_ij - max over j of S_ij) / temperature): (n, n), (n,) -> (n,).

    With `pairs` (two views of n / 2 images, one after the other) e_ii is 0, the mean counts twice, and l of i's other view is
    added.  OCM's L_uni and L_pre are without, L_n is with.
    """
    e = ((similarity - similarity.detach().amax(1, keepdim=True)) / temperature).exp()
    if pairs:
        e = e - torch.diag(e.diagonal())
    ln = -(e / (e.sum(1, keepdim=True) + eps) + eps).log()
    positive = (y[:, None] == y[None, :]).to(ln.dtype)
    mean = (ln * positive).sum(1) / positive.sum(1)
    if not pairs:
        return mean
    here = torch.arange(len(y), device=y.device)
    return ln[here, here.roll(len(y) // 2)] + 2 * mean


def _wide(x: Tensor) -> Tensor:
    """At least float32: a log-softmax in half precision would ruin the divergence."""
    return x if x.dtype == torch.float64 else x.float()
