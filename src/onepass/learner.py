"""A method, its network, teacher, memory and optimiser, learning from one batch after another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from onepass.augment import Augment, Full
from onepass.boundaries import Boundaries
from onepass.distill import Distiller
from onepass.errors import Refused
from onepass.graph import Graphs
from onepass.losses import lambda_for
from onepass.memory import Memory
from onepass.method import Method
from onepass.nets import PRECISIONS, Net, Network, ResNet18, build_net, low_precision, predicting, repeatable, resolve_precision
from onepass.seeds import Seeds
from onepass.step import Drawn, Forward, Mirror, Step
from onepass.stream import Batch, Spec
from onepass.teachers import Follower, Teacher, average

Infer = Literal["student", "teacher", "average"]
ROWS = 100  # images predicted at a time: what a learner's update needs is more, so that a run's peak is not here


class Optim(Protocol):
    """A description of an optimiser."""

    def build(self, net: nn.Module) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class Adam:
    """Adam; with `decoupled` weight decay, AdamW."""

    lr: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        _positive("lr", self.lr)

    def build(self, net: nn.Module) -> torch.optim.Optimizer:
        kind = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        return kind(net.parameters(), lr=self.lr, betas=self.betas, weight_decay=self.weight_decay, fused=True)


@dataclass(frozen=True)
class SGD:
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _positive("lr", self.lr)

    def build(self, net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True)


@dataclass
class Clock:
    """How far the stream has been learnt: images, batches, updates (those that were skipped counted too)."""

    samples: int = 0
    batches: int = 0
    updates: int = 0


class Learner:
    """Learns from a stream: `observe(batch)`, then `predict(images)`.

    Everything that changes while it learns is in `state_dict()`; everything else is what it was made with.
    """

    def __init__(
        self,
        spec: Spec,
        method: Method,
        *,
        teacher: Teacher | None = None,
        distill: Distiller | None = None,
        net: Network | None = None,
        optim: Optim | None = None,
        memory: int = 1000,
        replay_size: int = 64,
        augment: Augment | None = None,
        full: Augment | None = None,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
        boundaries: Boundaries | None = None,
        updates: int = 1,
        infer: Infer = "student",
        precision: str = "auto",
        device: str | torch.device = "cpu",
        graph: bool = False,
        seeds: Seeds | None = None,
    ):
        check_parts(teacher, distill, infer)
        if replay_size < 1 or updates < 1:
            raise Refused(f"`replay_size={replay_size}` and `updates={updates}` must both be at least 1.")
        self.spec, self.method, self.distill, self.boundaries = spec, method, distill, boundaries
        self.replay_size, self.updates = replay_size, updates
        self.infer: Infer = infer
        self.full = full or Full()
        self.augment = augment or self.full
        self.seeds = seeds or Seeds()
        self.device = torch.device(device)
        self.precision = resolve_precision(precision, self.device)
        if self.precision not in PRECISIONS:
            raise Refused(f"`precision={precision}` is not one of auto, {', '.join(PRECISIONS)}.")
        self.dtype = torch.float64 if self.precision == "fp64" else torch.float32

        self.student = build_net(
            net or ResNet18(),
            spec,
            classifier=method.classifier,
            heads=method.heads,
            mean=mean,
            std=std,
            seeds=self.seeds,
        )
        self.student.to(self.device, self.dtype).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        rules = dict(method.teachers) | ({"teacher": teacher} if teacher is not None else {})
        self.followers: dict[str, Follower] = {name: rule.follow(self.student) for name, rule in rules.items()}
        self.alpha: float | None = getattr(teacher, "alpha", None)
        self.memory = Memory(memory, spec.image, method.columns, classes=spec.classes, device=self.device)
        self.optimizer = (optim or Adam()).build(self.student)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.state: dict[Any, dict[str, Tensor]] = {
            owner: {k: v.to(self.device) for k, v in owner.state(spec).items()} for owner in (method, distill) if owner is not None
        }
        self.graphs = Graphs(self.backward, self._again, list(self.student.parameters()), self.device) if graph else None
        self.mirror = Mirror(self.device)
        self.clock = Clock()
        self.task, self.since = 0, 0
        self.seen = torch.zeros(spec.classes, dtype=torch.bool)
        self.new = torch.zeros(spec.classes, dtype=torch.bool)

    # -- learning --

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from one batch of the stream, then remember it.  What it returns stays on the device."""
        present = self.meet(batch)
        rows = batch.to(self.device)
        rows = Batch(rows.x, rows.y, rows.extra, "stream")
        loss, step = None, None
        for _ in range(self.updates):
            loss, step = self.update(rows, present)
        assert step is not None
        extra = self.method.remember(step)
        self.memory.add(rows.x, batch.y, extra, rng=self.seeds.torch("reservoir", self.clock.updates))
        self.clock.samples += len(batch)
        self.clock.batches += 1
        self.since += 1
        return {} if loss is None else {"loss": loss.detach()}

    def update(self, rows: Batch, present: Tensor) -> tuple[Tensor | None, Step]:
        """One update of the network, by rows that have been met; nothing is remembered."""
        step = self.step(rows, present)
        with repeatable(self.device):
            if self.graphs is None:
                loss = self.backward(step)
            else:
                step, loss = self.graphs(step)
        if loss is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            for follower in self.followers.values():
                follower.update(self.student)
        self.clock.updates += 1
        return loss, step

    def backward(self, step: Step) -> Tensor | None:
        """The loss of an update, and its gradients."""
        self.optimizer.zero_grad(set_to_none=True)  # before the forwards, which then have their room
        loss = self.method.loss(step)
        if loss is not None and self.distill is not None:
            loss = self.distill.loss(step, loss)
        step.close()
        if loss is not None:
            self.scaler.scale(loss).backward()  # the identity outside fp16
        return loss

    def meet(self, batch: Batch) -> Tensor:
        """Take note of the classes that arrive, and of a new task if the rule says so.  Says which are in the batch."""
        if tuple(batch.x.shape[1:]) != self.spec.image:
            raise Refused(
                f"The images are {tuple(batch.x.shape[1:])} and the network was built for {self.spec.image} (channels, height, "
                "width); resize them, or declare their size in the stream's `Spec`."
            )
        _bytes(batch.x)
        labels = batch.y.cpu()  # free for a stream that keeps its labels on the host
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.spec.classes:
            raise Refused(
                f"A label is {low if low < 0 else high}, outside 0 to {self.spec.classes - 1}; number the classes from 0, or "
                "declare more in the stream's `Spec`."
            )
        present = torch.zeros(self.spec.classes, dtype=torch.bool)
        present[labels] = True
        met = self.seen | present
        if self.spec.open and not met[: int(met.sum())].all():
            raise Refused(
                f"A label is {high}, and only {int(met.sum()) - 1} other classes have been met: on an open stream labels are "
                "numbered as they come, from 0; let `onepass.Open` or `onepass.arrivals.Labels` number them."
            )
        asked = self.boundaries is not None and self.clock.batches > 0
        if asked and self.boundaries is not None and self.boundaries(present, self.seen, self.since, self.spec):
            self.task, self.since = self.task + 1, 0
            self.new = torch.zeros_like(self.new)
            for follower in self.followers.values():
                follower.boundary(self.student)
        self.new = self.new | (present & ~self.seen)
        self.seen = met
        return present

    def step(self, rows: Batch, present: Tensor) -> Step:
        """The context of one update."""

        def forward(name: str, net: nn.Module, grad: bool) -> Forward:
            assert isinstance(net, Net)
            classes = self.classes if self.spec.open else None
            update = self.clock.updates
            return Forward(name, net, grad=grad, precision=self.precision, seeds=self.seeds, update=update, classes=classes)

        nets = {name: forward(name, f.net, False) for name, f in self.followers.items()}
        return Step(
            spec=self.spec,
            stream=rows,
            memory=self.memory,
            replay_size=self.replay_size,
            student=forward("student", self.student, True),
            teacher=nets.pop("teacher", None),
            nets=nets,
            state=self.state,
            augment=self.augment,
            full=self.full,
            alpha=self.alpha,
            ready="teacher" in self.followers and self.followers["teacher"].ready,
            seeds=self.seeds,
            update=self.clock.updates,
            seen=self.seen,
            present=present,
            new=self.new,
            task=self.task,
            since=self.since,
            asks=self._asks if self.boundaries is None else None,
            dtype=self.dtype,
            mirror=self.mirror,
        )

    def _again(self, step: Step, drawn: Drawn) -> Step:
        """A step like that one, of batches and views that are there."""
        return self.step(cast(Batch, drawn[0][2]), step.present).give(drawn)

    def _asks(self, what: str) -> Refused:
        return Refused(
            f"`{type(self.method).__name__}` asked {what}, but this stream does not say. Give it a rule, e.g. "
            "`boundaries=NewClass(lag=100)` (the paper's)."
        )

    # -- what was learnt --

    @property
    def classes(self) -> int:
        """How many classes a prediction is one of: all; on an open stream, those met so far."""
        return int(self.seen.sum()) if self.spec.open else self.spec.classes

    @property
    def networks(self) -> tuple[Infer, ...]:
        """The networks that can predict."""
        if "teacher" in self.followers:
            return ("student", "teacher", "average")
        return ("student",)

    def network(self, which: Infer | None = None) -> nn.Module:
        """The network that predicts, or another: the student itself, the teacher's, or a copy that averages both."""
        which = which or self.infer
        if which == "student":
            return self.student
        if "teacher" not in self.followers:
            raise Refused(f"There is no teacher, so nothing predicts by `{which}`; take `student`.")
        teacher = self.followers["teacher"]
        return teacher.net if which == "teacher" else average(self.student, teacher)

    def logits(self, x: Tensor, which: Infer | None = None, rows: int = ROWS) -> Tensor:
        """Logits of uint8 images, (n, classes) on the host; moves nothing of the learner."""
        _bytes(x)
        if not self.classes:
            raise Refused("No class has been met yet, so there is none to predict; `observe` a batch of the stream first.")
        with predicting(self.network(which)) as net:
            return answers(net, x, self.precision, self.device, rows)[:, : self.classes]

    def features(self, x: Tensor, which: Infer | None = None, rows: int = ROWS, precision: str | None = None) -> Tensor:
        """What the classifier is given of uint8 images, (n, d) on the host; moves nothing of the learner."""
        _bytes(x)
        with predicting(self.network(which)) as net:
            within = self.precision if precision is None or self.precision == "fp64" else precision
            return answers(cast(Net, net).features, x, within, self.device, rows)

    def predict(self, x: Tensor, which: Infer | None = None) -> Tensor:
        """The class of each uint8 image, numbered by arrival."""
        return self.logits(x, which).argmax(1)

    # -- saving --

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that changes, as named tensors."""
        state: dict[str, Tensor] = {f"student.{k}": v for k, v in self.student.state_dict().items()}
        for name, follower in self.followers.items():
            state |= {f"follower.{name}.{k}": v for k, v in follower.state_dict().items()}
        state |= {f"memory.{k}": v for k, v in self.memory.state_dict().items()}
        for i, values in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{i}.{k}": v for k, v in values.items()}
        for i, values in enumerate(self.state.values()):
            state |= {f"state.{i}.{k}": v for k, v in values.items()}
        if self.precision == "fp16":
            state |= {f"scaler.{k}": torch.tensor(float(v)) for k, v in self.scaler.state_dict().items()}
        clock = (self.clock.samples, self.clock.batches, self.clock.updates, self.task, self.since)
        return state | {"clock": torch.tensor(clock), "seen": self.seen, "new": self.new}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}

        self.student.load_state_dict(part("student."))
        for name, follower in self.followers.items():
            follower.load_state_dict(part(f"follower.{name}."))
        self.memory.load_state_dict(part("memory."))
        moments: dict[int, dict[str, Tensor]] = {}
        weights = list(self.student.parameters())
        for key, value in part("optimizer.").items():
            index, _, name = key.partition(".")
            weight = weights[int(index)]
            mine = torch.empty_like(weight if value.shape == weight.shape else value, requires_grad=False)
            moments.setdefault(int(index), {})[name] = mine.copy_(value)  # weights and moments must lie in memory alike
        self.optimizer.load_state_dict({"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]})
        for i, values in enumerate(self.state.values()):
            for name, value in part(f"state.{i}.").items():
                mine = values.get(name)
                if mine is not None and (mine.shape, mine.dtype) == (value.shape, value.dtype):
                    mine.copy_(value)  # in place: a graph that was captured knows this tensor
                else:
                    values[name] = value.to(self.device, copy=True)
        if self.precision == "fp16":
            scaler = {k: v.item() for k, v in part("scaler.").items()}
            whole = {k: int(scaler[k]) for k in ("growth_interval", "_growth_tracker")}
            self.scaler.load_state_dict(scaler | whole)
        samples, batches, updates, self.task, self.since = (int(v) for v in state["clock"])
        self.clock = Clock(samples, batches, updates)
        self.seen, self.new = state["seen"].clone(), state["new"].clone()


@torch.no_grad()
def answers(ask: Callable[[Tensor], Tensor], x: Tensor, precision: str, device: torch.device, rows: int = ROWS) -> Tensor:
    """What a network in evaluation mode, or a part of it, says of uint8 images, so many at a time, on the host."""
    dtype = torch.float64 if precision == "fp64" else torch.float32
    with low_precision(precision, device), repeatable(device):
        parts = [
            ask((part.to(device, non_blocking=True).to(dtype) / 255).contiguous(memory_format=torch.channels_last))
            for part in x.split(rows)
        ]
    return torch.cat([p.to(dtype) for p in parts]).cpu()


def check_parts(teacher: Teacher | None, distill: Distiller | None, infer: str) -> None:
    """What can be said of a learner's parts before any is built."""
    if infer not in ("student", "teacher", "average"):
        raise Refused(f"`infer={infer}` is not one of student, teacher, average.")
    if distill is not None and teacher is None:
        raise Refused(
            f"`{type(distill).__name__}` distils from a teacher and there is none; add one, e.g. `teacher=EMA(alpha=0.01)`."
        )
    if teacher is None and infer != "student":
        raise Refused(f"`infer={infer}` needs a teacher and there is none; add one, or take `infer=student`.")
    weight, alpha = getattr(distill, "weight", 0.0), getattr(teacher, "alpha", None)
    if weight is None and alpha is not None:
        try:
            lambda_for(alpha)
        except ValueError as error:
            raise Refused(str(error)) from error
    if weight is None and alpha is None:
        raise Refused(
            f"`{type(teacher).__name__}` has no `alpha` for the law of lambda; give `{type(distill).__name__}` a `weight`."
        )


def _bytes(x: Tensor) -> None:
    if x.dtype != torch.uint8:
        raise Refused(f"The images are {x.dtype} and the memory keeps bytes; give uint8 from 0 to 255.")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise Refused(f"`{name}={value}` would not move the weights; take a number above 0.")
