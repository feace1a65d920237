"""Networks that follow a student: a frozen description, and the module that `.follow(model)` makes of it."""

# torch documents its optimisers by the foreach functions and exports none of them
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel


class Follower(nn.Module):
    """A network that follows another: call it, `update` it after each step, save it; it never has a gradient.

    Everything of the copy is in evaluation mode but its batch-norm where `statistics` is "batch"; a teacher therefore
    drops nothing out and takes nothing from the global generator.  A batch-norm whose weights are frozen is in the mode that
    the student's is in.  Under DistributedDataParallel the module within is followed, the same in every process: the copy
    has nothing to tell the others.
    """

    def __init__(self, student: nn.Module, *, statistics: str, own_buffers: bool):
        super().__init__()
        self.net = deepcopy(_within(student)).requires_grad_(False)
        self.statistics = statistics
        self.updates = 0
        for _, norm in _norms(self.net):
            if not own_buffers:
                norm.track_running_stats = False  # in either mode its forwards then leave the buffers alone
        self._frozen = [n for n, norm in _norms(_within(student)) if norm.affine and not norm.weight.requires_grad]
        self._resting: set[str] = set()  # of these, those that the student has in evaluation mode
        self.heed(student)
        self.train()

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.net(*args, **kwargs)

    def train(self, mode: bool = True) -> "Follower":
        """`train()` gives the mode in which a teacher teaches, `eval()` the one in which it predicts."""
        self.training = mode
        self.net.eval()
        if mode and self.statistics == "batch":
            for name, norm in _norms(self.net):
                norm.train(name not in self._resting)
        return self

    @torch.no_grad()
    def heed(self, student: nn.Module) -> None:
        """Put each batch-norm whose weights are frozen into the mode of the student's, with its statistics where they rest."""
        for name in self._frozen:
            mine, theirs = self.net.get_submodule(name), _within(student).get_submodule(name)
            if theirs.training:
                self._resting.discard(name)
            elif name not in self._resting:
                self._resting.add(name)
                _follow_buffers(mine, theirs, 1.0)
            mine.train(theirs.training and self.training and self.statistics == "batch")

    @property
    def ready(self) -> bool:
        """Whether it has anything to teach yet."""
        return True

    def update(self, student: nn.Module) -> None:
        """To be called after each step of the optimiser."""

    def boundary(self, student: nn.Module) -> None:
        """To be called before the first batch of a new task."""

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.updates)

    def set_extra_state(self, state: Tensor) -> None:
        self.updates = int(state)


class Teacher(Protocol):
    """A frozen description of a network that follows the student."""

    def follow(self, student: nn.Module) -> Follower: ...


@dataclass(frozen=True)
class EMA:
    """theta_T <- alpha theta + (1 - alpha) theta_T after each step (Eq. 1); a small alpha is a slow, stable teacher.

    start       "copy" of the student; "zero": alpha / (1 - alpha) times it, as the authors' code has it ("alpha": alpha times it,
                as their Temporal Ensembles has it); "debiased": the mean of the students so far with exponential weights,
                which forgets the initial network at once.
    statistics  the teacher normalises by the "batch" it sees, as the authors' does, or by its "running" statistics.
    buffers     its running statistics are its "own" (moved by its own forwards), copies of the "student"'s, or their
                moving "average" at the same rate (of statistics in half precision: copies).
    correction  0, or n: the student's rate is divided by 1 - alpha^max(1, updates // n), the authors' n being 10.
    """

    alpha: float = 0.01
    start: Literal["copy", "zero", "alpha", "debiased"] = "copy"
    statistics: Literal["batch", "running"] = "batch"
    buffers: Literal["own", "student", "average"] = "own"
    correction: int = 0

    def __post_init__(self) -> None:
        _check_modes(self.start, self.statistics, self.buffers, STARTS)
        if not 0 < self.alpha <= 1:
            raise ValueError(f"`alpha={self.alpha}` is not the rate of a moving average; take one in (0, 1].")
        if self.alpha == 1 and (self.start == "zero" or self.correction):
            raise ValueError(
                '`alpha=1` divides by zero in `start="zero"` and in the correction; take `start="copy"` and '
                "`correction=0`, or an alpha below 1."
            )
        if self.start == "debiased" and self.correction:
            raise ValueError(
                f'`start="debiased"` needs no `correction={self.correction}`, which is the authors\' own; leave out either.'
            )

    def follow(self, student: nn.Module) -> "EMAFollower":
        """A module that follows `student`: `teacher(x)`, `teacher.update(student)`, `teacher.state_dict()`."""
        return EMAFollower(student, self)


@dataclass(frozen=True)
class HypoExponential:
    """Two moving averages of rates a1 < a2, combined: theta_T = a2/(a2 - a1) E_a1 - a1/(a2 - a1) E_a2 (Koh et al., 2023).

    The student k steps back has weight a1 a2/(a2 - a1) [(1 - a1)^k - (1 - a2)^k]: none for the present one, a mean age (counted
    from 1) of `mu` and a variance of `c2` mu^2.  `start`, `statistics` and `buffers` are those of `EMA`; buffers that follow as
    an "average" do so at the rate 1 / mu.  `frozen` never moves, as the authors' GSA+SDP does not: with "zero" it stays zero.
    """

    mu: float = 100.0
    c2: float = 0.75
    start: Literal["copy", "zero", "debiased"] = "copy"
    statistics: Literal["batch", "running"] = "batch"
    buffers: Literal["own", "student", "average"] = "own"
    frozen: bool = False

    def __post_init__(self) -> None:
        _check_modes(self.start, self.statistics, self.buffers, STARTS[:3])
        if not self.mu > 2:
            raise ValueError(f"`mu={self.mu}` is too short a memory for two rates at most 1; take a mu above 2.")
        low, high = 0.5 - 1 / self.mu, (1 - 1 / self.mu) * (1 - 2 / self.mu)  # at the latter the faster rate is 1
        if not low < self.c2 <= high:
            raise ValueError(
                f"`mu={self.mu}, c2={self.c2}` has no two rates between 0 and 1; for this mu take a c2 above {low:.4g} and at most "
                f"{high:.4g}."
            )

    @property
    def rates(self) -> tuple[float, float]:
        s = (2 * self.c2 - 1 + 2 / self.mu) ** 0.5
        scale = self.mu - 1 - self.mu * self.c2
        return (1 - s) / scale, (1 + s) / scale

    def follow(self, student: nn.Module) -> "HypoExponentialFollower":
        return HypoExponentialFollower(student, self)


class HypoExponentialFollower(Follower):
    """What `HypoExponential.follow` makes."""

    def __init__(self, student: nn.Module, rule: HypoExponential):
        super().__init__(student, statistics=rule.statistics, own_buffers=rule.buffers == "own")
        self.rule = rule
        self.slow, self.fast = _copies(_parameters(self.net)), _copies(_parameters(self.net))
        if rule.start != "copy":
            a1, a2 = rule.rates if rule.start == "zero" else (0.0, 0.0)
            torch._foreach_mul_(list(self.slow), a1)
            torch._foreach_mul_(list(self.fast), a2)
        if rule.start == "zero":
            self._combine()

    @property
    def ready(self) -> bool:
        return self.rule.start != "debiased" or self.updates > 1  # the present student has no weight

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        if self.rule.frozen:
            return
        self.heed(student)
        self.updates += 1
        a1, a2 = self.rule.rates
        theirs = _wide(_parameters(student))
        torch._foreach_lerp_(list(self.slow), theirs, a1)
        torch._foreach_lerp_(list(self.fast), theirs, a2)
        if self.ready:
            self._combine()
        if self.rule.buffers != "own":
            _follow_buffers(self.net, student, 1.0 if self.rule.buffers == "student" else 1 / self.rule.mu)

    @torch.no_grad()
    def _combine(self) -> None:
        a1, a2 = self.rule.rates
        total, t = 1.0, self.updates
        if self.rule.start == "debiased":
            total = 1 - (a2 * (1 - a1) ** t - a1 * (1 - a2) ** t) / (a2 - a1)  # the weight of the students so far
        mean = torch._foreach_mul(list(self.slow), a2 / (a2 - a1) / total)
        torch._foreach_add_(mean, list(self.fast), alpha=-a1 / (a2 - a1) / total)
        torch._foreach_copy_(_parameters(self.net), mean)


@dataclass(frozen=True)
class Snapshot:
    """The student as it was at the last task boundary; nothing to teach before the first."""

    needs_tasks: ClassVar[str] = "it is the student at the end of a task"

    statistics: Literal["batch", "running"] = "batch"

    def __post_init__(self) -> None:
        _check_modes("copy", self.statistics, "student", STARTS)

    def follow(self, student: nn.Module) -> "SnapshotFollower":
        return SnapshotFollower(student, statistics=self.statistics, own_buffers=True)


class SnapshotFollower(Follower):
    """What `Snapshot.follow` makes."""

    @property
    def ready(self) -> bool:
        return self.updates > 0

    @torch.no_grad()
    def boundary(self, student: nn.Module) -> None:
        self.heed(student)
        self.updates += 1
        torch._foreach_copy_(_parameters(self.net), _parameters(student))
        _follow_buffers(self.net, student, 1.0)


@dataclass(frozen=True)
class Frozen:
    """The student of another run at the same seed that saw the first task `epochs` times, from the first boundary on.

    `onepass.run` makes that run first, beside this one; in a loop of your own, `load` its weights.
    """

    needs_tasks: ClassVar[str] = "it is a student at the end of a task"

    epochs: int = 5
    statistics: Literal["batch", "running"] = "batch"

    def __post_init__(self) -> None:
        _check_modes("copy", self.statistics, "student", STARTS)
        if self.epochs < 1:
            raise ValueError(f"`epochs={self.epochs}` trains no teacher; take at least 1.")

    def follow(self, student: nn.Module) -> "FrozenFollower":
        return FrozenFollower(student, statistics=self.statistics, own_buffers=True)


class FrozenFollower(Follower):
    """What `Frozen.follow` makes."""

    @property
    def ready(self) -> bool:
        return self.updates > 0

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.net.load_state_dict(state)

    def boundary(self, student: nn.Module) -> None:
        self.updates += 1


STARTS, STATISTICS, BUFFERS = ("copy", "zero", "debiased", "alpha"), ("batch", "running"), ("own", "student", "average")


class EMAFollower(Follower):
    """What `EMA.follow` makes."""

    def __init__(self, student: nn.Module, rule: EMA):
        super().__init__(student, statistics=rule.statistics, own_buffers=rule.buffers == "own")
        self.rule = rule
        halves = [p for p in _parameters(self.net) if _half(p)]
        self.wide = _copies(halves) if halves else []  # where a small rate is not lost in the rounding
        if rule.start in ("zero", "alpha"):
            scale = rule.alpha / (1 - rule.alpha) if rule.start == "zero" else rule.alpha
            torch._foreach_mul_(self._exact(), scale)
            self._round()

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        rule = self.rule
        self.heed(student)
        self.updates += 1
        rate = rule.alpha
        if rule.start == "debiased":  # the mean of theta_1 .. theta_t with weights (1 - alpha)^(t - k), as a recursion
            rate = rule.alpha / (1 - (1 - rule.alpha) ** self.updates)
        mine, theirs = self._exact(), _wide(_parameters(student))
        if rule.correction:
            corrected = rule.alpha / (1 - rule.alpha ** max(1, self.updates // rule.correction))
            torch._foreach_mul_(mine, 1 - rule.alpha)
            torch._foreach_add_(mine, theirs, alpha=corrected)
        else:
            torch._foreach_lerp_(mine, theirs, rate)
        self._round()
        if rule.buffers != "own":
            _follow_buffers(self.net, student, 1.0 if rule.buffers == "student" else rate)

    def _exact(self) -> list[Tensor]:
        """The averages of the parameters, those of half precision in float32."""
        wide = iter(self.wide)
        return [next(wide) if _half(p) else p for p in _parameters(self.net)]

    def _round(self) -> None:
        if len(self.wide):
            torch._foreach_copy_([p for p in _parameters(self.net) if _half(p)], list(self.wide))


@torch.no_grad()
def average(student: nn.Module, teacher: nn.Module) -> nn.Module:
    """The mean of both networks' parameters with the student's buffers: a copy, in evaluation mode.

    Of a network under DistributedDataParallel it is a copy of the module within, for any one process to use.
    """
    mean = deepcopy(_within(student))
    other = teacher.net if isinstance(teacher, Follower) else teacher
    torch._foreach_lerp_(_parameters(mean), _parameters(other), 0.5)
    return mean.eval()


def _check_modes(start: str, statistics: str, buffers: str, starts: tuple[str, ...]) -> None:
    for name, value, known in ("start", start, starts), ("statistics", statistics, STATISTICS), ("buffers", buffers, BUFFERS):
        if value not in known:
            raise ValueError(f"`{name}={value!r}` is not one of {', '.join(known)}.")
    if statistics == "running" and buffers == "own":
        raise ValueError(
            '`statistics="running"` needs running statistics, and with `buffers="own"` nothing ever fills them, '
            'since the teacher then never sees a batch in training mode; take `buffers="student"` or "average".'
        )


def _within(net: nn.Module) -> nn.Module:
    """The module that is run in parallel (and perhaps compiled), or the network itself."""
    inner = getattr(net, "_orig_mod", net)
    return inner.module if isinstance(inner, DistributedDataParallel) else net


def _norms(net: nn.Module) -> Iterator[tuple[str, _NormBase]]:
    return ((name, m) for name, m in net.named_modules() if isinstance(m, _NormBase))


def _half(t: Tensor) -> bool:
    return t.dtype in (torch.float16, torch.bfloat16)


def _wide(tensors: list[Tensor]) -> list[Tensor]:
    return [t.float() if _half(t) else t for t in tensors]


def _copies(tensors: list[Tensor]) -> nn.ParameterList:
    """Copies that move with their module and are saved with it, those of half precision in float32."""
    return nn.ParameterList([nn.Parameter(t.float() if _half(t) else t.clone(), requires_grad=False) for t in tensors])


def _parameters(net: nn.Module) -> list[Tensor]:
    return [p.detach() for p in net.parameters()]


def _follow_buffers(net: nn.Module, student: nn.Module, rate: float) -> None:
    for mine, theirs in zip(net.buffers(), student.buffers(), strict=True):
        if rate == 1.0 or not mine.is_floating_point() or _half(mine):
            mine.copy_(theirs)
        else:
            mine.lerp_(theirs, rate)
