"""Methods and distillers together: weight 0 is the baseline, the loss is the equation's, no draw moves."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onepass.augment import Partial
from onepass.distill import ALGORITHM_1, EQUATION_3, MKD, SINGLE_VIEW
from onepass.errors import Refused
from onepass.learner import SGD, Adam, Learner
from onepass.method import Method
from onepass.methods.er import ER
from onepass.nets import Custom, ResNet18
from onepass.step import Step
from onepass.stream import Batch, Spec
from onepass.teachers import EMA, Follower

SPEC = Spec(4, (3, 8, 8))
ALL_PAIRS = {"ALGORITHM_1": ALGORITHM_1, "EQUATION_3": EQUATION_3, "SINGLE_VIEW": SINGLE_VIEW}


def images(seed: int, n: int = 10) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(4, (n,), generator=generator), name="stream")


def make(method: Method | None = None, **more: Any) -> Learner:
    more = {"net": ResNet18(width=2), "memory": 25, "replay_size": 20, "precision": "fp32"} | more
    return Learner(SPEC, method or ER(), **more)


def filled(*, memory: int = 80, replay_size: int = 64, **more: Any) -> Learner:
    """A learner in double precision with more in its memory than it replays, whose teacher is not its student."""
    more = {"precision": "fp64", "optim": Adam(lr=0.01), "teacher": EMA(0.1)} | more
    learner = make(memory=memory, replay_size=replay_size, **more)
    rows = images(99, 200)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    for i in range(3):
        learner.observe(images(i))
    return learner


def begin(learner: Learner, seed: int = 50) -> Step:
    rows = images(seed)
    return learner.step(rows, learner.meet(rows))


def parameters(learner: Learner) -> dict[str, Tensor]:
    return {k: p.detach().clone() for k, p in learner.student.named_parameters()}


def buffers(learner: Learner) -> dict[str, Tensor]:
    return {k: b.clone() for k, b in learner.student.named_buffers()}


def memory(learner: Learner) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in learner.memory.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def ten_steps(distill: MKD | None, **more: Any) -> Learner:
    learner = make(distill=distill, teacher=EMA(0.1) if distill is not None else None, **more)
    for i in range(11):  # from the first of them nothing is learnt
        learner.observe(images(i))
    return learner


# ---- weight 0 is the baseline


@pytest.mark.parametrize("pairs", ["EQUATION_3", "SINGLE_VIEW"])
@pytest.mark.parametrize(
    "more",
    [
        {"optim": Adam(lr=0.01)},
        {"optim": SGD(lr=0.1), "precision": "bf16"},
        {"optim": Adam(lr=0.01), "precision": "fp64", "updates": 2},
    ],
)
def test_mkd_of_weight_0_on_the_methods_views_is_er_bit_for_bit(pairs: str, more: dict[str, Any]) -> None:
    plain = ten_steps(None, **more)
    control = ten_steps(MKD(weight=0, cross_entropy=False, pairs=ALL_PAIRS[pairs], draw="main"), **more)
    assert same(parameters(plain), parameters(control))
    assert same(buffers(plain), buffers(control))
    assert same(memory(plain), memory(control))
    assert torch.equal(plain.logits(images(0).x), control.logits(images(0).x))
    tracked = control.followers["teacher"].net.core.norm.num_batches_tracked
    assert int(tracked) == 10 * len(ALL_PAIRS[pairs]) * more.get("updates", 1), "the teacher was asked all the same"


@pytest.mark.parametrize("pairs", ["EQUATION_3", "SINGLE_VIEW"])
def test_any_other_weight_is_not_er(pairs: str) -> None:
    plain, other = ten_steps(None), ten_steps(MKD(weight=1e-3, cross_entropy=False, pairs=ALL_PAIRS[pairs], draw="main"))
    assert not same(parameters(plain), parameters(other)) and same(memory(plain), memory(other))


def test_with_algorithm_1_weight_0_keeps_the_parameters_and_its_raw_view_moves_the_running_statistics() -> None:
    plain, control = ten_steps(None), ten_steps(MKD(weight=0, cross_entropy=False, pairs=ALGORITHM_1, draw="main"))
    assert same(parameters(plain), parameters(control)) and same(memory(plain), memory(control))
    ours, theirs = buffers(plain), buffers(control)
    assert not any(torch.equal(ours[k], theirs[k]) for k in ours if "running" in k)
    assert {int(v) for k, v in ours.items() if "tracked" in k} == {10}
    assert {int(v) for k, v in theirs.items() if "tracked" in k} == {20}


def test_a_cross_entropy_of_its_own_on_the_methods_views_doubles_ers() -> None:
    """The control nobody ran: with plain SGD, twice the loss is twice the rate."""
    optim = SGD(lr=0.05, momentum=0.0)
    doubled = ten_steps(MKD(weight=0, cross_entropy=True, pairs=SINGLE_VIEW, draw="main"), optim=optim, precision="fp64")
    faster = ten_steps(None, optim=replace(optim, lr=0.1), precision="fp64")
    for k, p in parameters(doubled).items():
        torch.testing.assert_close(p, parameters(faster)[k], rtol=1e-7, atol=1e-9)


def test_a_teacher_that_nobody_distils_from_changes_nothing() -> None:
    plain, followed = make(optim=Adam(lr=0.01)), make(optim=Adam(lr=0.01), teacher=EMA(0.1))
    for i in range(5):
        assert same(plain.observe(images(i)), followed.observe(images(i)))
    assert same(parameters(plain), parameters(followed)) and same(buffers(plain), buffers(followed))


class Unready(Follower):
    @property
    def ready(self) -> bool:
        return False


@dataclass(frozen=True)
class Late:
    """A teacher with nothing to teach yet."""

    def follow(self, student: nn.Module) -> Follower:
        return Unready(student, statistics="batch", own_buffers=True)


def test_a_teacher_that_is_not_ready_is_not_asked() -> None:
    plain, waiting = make(), make(teacher=Late(), distill=MKD(weight=5.0))
    for i in range(4):
        assert same(plain.observe(images(i)), waiting.observe(images(i)))
    assert same(parameters(plain), parameters(waiting)) and same(buffers(plain), buffers(waiting))
    assert int(waiting.followers["teacher"].net.core.norm.num_batches_tracked) == 0


# ---- MKD against its equation


def log_softmax(z: Tensor) -> Tensor:
    z = z - z.max(1, keepdim=True).values.detach()
    return z - z.exp().sum(1, keepdim=True).log()


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return -log_softmax(z)[torch.arange(len(y)), y].mean()


def divergence(student: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """tau^2 sum_c p_c (log p_c - log q_c), averaged over the examples."""
    log_p, log_q = log_softmax(teacher / tau), log_softmax(student / tau)
    return tau**2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()


def naive(learner: Learner, step: Step, rule: MKD, weight: float) -> tuple[Tensor, list[Tensor]]:
    """The whole loss of ER+MKD and its gradient, from the pixels of the step's views and copies of both networks."""
    x = {"raw": step.raw(step.both, rule.draw).x}
    x["aug"] = step.aug(step.both, rule.draw, learner.full if rule.draw == "mkd" else None).x
    student, teacher = deepcopy(learner.student).train(), deepcopy(learner.followers["teacher"].net).train()
    loss = cross_entropy(student(step.aug(step.both).x), step.both.y)
    for mine, theirs in rule.pairs:
        with torch.no_grad():
            target = teacher(x[theirs])
        loss = loss + weight / len(rule.pairs) * divergence(student(x[mine]), target, rule.temperature)
    if rule.cross_entropy:
        loss = loss + cross_entropy(student(x["aug"]), step.both.y)
    return loss, list(torch.autograd.grad(loss, list(student.parameters())))


@pytest.mark.parametrize("pairs", ALL_PAIRS)
@pytest.mark.parametrize("ce", [False, True])
@pytest.mark.parametrize("draw", ["main", "mkd"])
def test_mkd_is_its_equation_written_out_on_the_same_views(pairs: str, ce: bool, draw: Any) -> None:
    rule = MKD(weight=2.5, temperature=3.0, pairs=ALL_PAIRS[pairs], cross_entropy=ce, draw=draw)
    learner = filled(distill=rule, augment=Partial(padding=1))
    copy = deepcopy(learner)
    step = begin(learner)
    base = learner.method.loss(step)
    assert base is not None
    loss = rule.loss(step, base)
    hand, gradient = naive(copy, step, rule, 2.5)
    torch.testing.assert_close(loss, hand, rtol=1e-9, atol=0.0)
    assert abs(loss - base) > 1e-3, "the teacher has something to say"
    ours = torch.autograd.grad(loss, list(learner.student.parameters()))
    torch.testing.assert_close(list(ours), gradient, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(("alpha", "weight"), [(0.01, 5.5), (0.1, 10.0)])
def test_the_weight_left_out_follows_the_law_of_the_teachers_alpha(alpha: float, weight: float) -> None:
    rule = MKD(cross_entropy=False, draw="main")
    learner = filled(distill=rule, teacher=EMA(alpha))
    copy, step = deepcopy(learner), begin(learner)
    base = learner.method.loss(step)
    assert base is not None and rule.temperature == 4.0 and rule.pairs == ALGORITHM_1
    torch.testing.assert_close(rule.loss(step, base), naive(copy, step, rule, weight)[0], rtol=1e-9, atol=0.0)


def test_a_teacher_without_an_alpha_needs_a_weight() -> None:
    with pytest.raises(Refused, match="`Late` has no `alpha`.*`weight`"):
        make(teacher=Late(), distill=MKD())
    make(teacher=Late(), distill=MKD(weight=1.0))


def test_what_the_learner_minimises_is_the_loss_of_the_step() -> None:
    rule = MKD(cross_entropy=False, draw="main")
    learner = filled(distill=rule)
    copy = deepcopy(learner)
    hand, gradient = naive(deepcopy(copy), begin(copy), rule, 10.0)
    torch.testing.assert_close(learner.observe(images(50))["loss"], hand.detach(), rtol=1e-9, atol=0.0)
    grads = [p.grad for p in learner.student.parameters()]
    torch.testing.assert_close(grads, gradient, rtol=1e-6, atol=1e-10)


# ---- adding MKD moves no draw of the baseline


@dataclass(frozen=True, eq=False)
class Watched(Method):
    """A method, and what it was shown."""

    inner: Method
    shown: list[tuple[Tensor, ...]]

    def loss(self, step: Step) -> Tensor | None:
        loss = self.inner.loss(step)
        if loss is not None:
            aug = step.aug(step.both)
            self.shown.append(
                (step.replay.x, step.replay.y, aug.x, aug.y, step.draw(3).x, torch.rand(2, generator=step.random("a")))
            )
        return loss


DISTILLERS = {
    "own views": MKD(),
    "the method's views": MKD(cross_entropy=False, draw="main"),
    "Eq. 3": MKD(pairs=EQUATION_3, weight=1.0),
    "another augmentation": MKD(augment=Partial(padding=2)),
}


@pytest.mark.parametrize("name", DISTILLERS)
def test_adding_mkd_moves_no_draw_of_the_baseline(name: str) -> None:
    """The same memory, the same rows replayed, the same pixels after augmentation, along 20 steps."""
    shown: tuple[list[tuple[Tensor, ...]], ...] = ([], [])
    learners = [
        make(Watched(ER(), shown[0]), optim=SGD(lr=0.05)),
        make(Watched(ER(), shown[1]), optim=SGD(lr=0.05), teacher=EMA(0.1), distill=DISTILLERS[name]),
    ]
    assert same(parameters(learners[0]), parameters(learners[1])), "the same first weights"
    for i in range(21):
        for learner in learners:
            learner.observe(images(i, 4))
        assert same(memory(learners[0]), memory(learners[1]))
    assert len(shown[0]) == len(shown[1]) == 20
    for alone, together in zip(*shown, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert not same(parameters(learners[0]), parameters(learners[1])), "what is learnt differs"


# ---- the loss of ER


def test_ers_loss_is_cross_entropy_on_replay_and_stream_as_one_batch() -> None:
    learner = filled(replay_size=64)
    copy, step = deepcopy(learner), begin(learner)
    loss = ER().loss(step)
    aug = [step.aug(step.replay).x, step.aug(step.stream).x]
    z = copy.student(torch.cat(aug))
    assert len(z) == 74
    torch.testing.assert_close(loss, cross_entropy(z, torch.cat([step.replay.y, step.stream.y])), rtol=1e-10, atol=0.0)


def unmixed(classes: int, image: tuple[int, int, int]) -> nn.Module:
    """A linear classifier of pixels: what an image gets does not depend on its neighbours."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(3 * 8 * 8, classes)

        def features(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    return Flat()


@dataclass(frozen=True)
class Paint:
    """An augmentation that shows: every pixel has this value.  At 0 the image is left as it is."""

    value: float = 0.0

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return torch.full_like(x, self.value) if self.value else x


def test_every_row_of_ers_loss_weighs_the_same() -> None:
    """Replayed twice over, the memory's share grows from 64/74 to 128/138: it is a mean over rows, not of two means."""
    learner = filled(net=Custom(unmixed), augment=Paint())

    def loss_with(copies: int) -> tuple[float, float, float]:
        step = begin(learner)
        drawn = learner.memory.draw(64, rng=torch.Generator())
        step.replay = Batch(drawn.x.repeat(copies, 1, 1, 1), drawn.y.repeat(copies), name="replay")
        loss = ER().loss(step)
        assert loss is not None and len(step.both) == 64 * copies + 10
        old = cross_entropy(learner.student(drawn.x.double() / 255), drawn.y)
        new = cross_entropy(learner.student(step.stream.x.double() / 255), step.stream.y)
        return loss.item(), old.item(), new.item()

    loss, old, new = loss_with(1)
    assert abs(old - new) > 0.01
    assert loss == pytest.approx((64 * old + 10 * new) / 74, rel=1e-12)
    assert loss_with(2)[0] == pytest.approx((128 * old + 10 * new) / 138, rel=1e-12)


# ---- which augmentation the views of MKD have


def fed(learner: Learner) -> Callable[[], list[str]]:
    """What the student and the teacher are shown at the next step: each launch by its one colour, or "raw"."""
    given: list[Tensor] = []

    def keep(name: str) -> Callable[..., None]:
        return lambda _, args: given.append((name, args[0]))

    learner.student.core.conv.register_forward_pre_hook(keep("student"))
    learner.followers["teacher"].net.core.conv.register_forward_pre_hook(keep("teacher"))

    def told() -> list[str]:
        return [f"{name} {'raw' if x.unique().numel() > 1 else x.mean().item()}" for name, x in given]

    return told


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (MKD(), ["student 0.5", "teacher 0.25", "student raw", "student 0.25"]),
        (MKD(augment=Paint(0.75)), ["student 0.5", "teacher 0.75", "student raw", "student 0.75"]),
        (MKD(pairs=EQUATION_3), ["student 0.5", "teacher raw", "teacher 0.25", "student 0.25"]),
        (MKD(draw="main", cross_entropy=False), ["student 0.5", "teacher 0.5", "student raw"]),
    ],
)
def test_mkds_own_views_are_augmented_fully_whatever_the_method_does(rule: MKD, expected: list[str]) -> None:
    learner = filled(distill=rule, augment=Paint(0.5), full=Paint(0.25))
    told = fed(learner)
    learner.observe(images(50))
    assert told() == expected


def test_the_full_augmentation_is_the_methods_where_nothing_else_is_said() -> None:
    learner = filled(distill=MKD(), full=Paint(0.25))
    told = fed(learner)
    learner.observe(images(50))
    assert told() == ["student 0.25", "teacher 0.25", "student raw", "student 0.25"]
