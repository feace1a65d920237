"""Batch-norm: what is normalised together, in which order statistics move, and the teacher's in each of its modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.distill import EQUATION_3, MKD
from onepass.learner import SGD, Learner
from onepass.method import Method
from onepass.methods.er import ER
from onepass.nets import Custom
from onepass.step import Step
from onepass.stream import Batch, Spec
from onepass.teachers import EMA

SPEC = Spec(4, (3, 8, 8))
MODES = [("batch", "own"), ("batch", "student"), ("batch", "average"), ("running", "student"), ("running", "average")]


class Core(nn.Module):
    """One convolution, one batch-norm, one classifier."""

    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(image[0], 5, 3, padding=1), nn.BatchNorm2d(5)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        self.classifier = nn.Linear(5, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu().mean((2, 3))


@dataclass
class Hand:
    """The same network by hand: plain tensors, statistics passed in and out."""

    weight: Tensor
    bias: Tensor
    gamma: Tensor
    beta: Tensor
    top: Tensor
    bottom: Tensor
    mean: Tensor
    var: Tensor

    def maps(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, padding=1)

    def _out(self, h: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        mean, var, gamma, beta = (v[:, None, None] for v in (mean, var, self.gamma, self.beta))
        return (((h - mean) / (var + 1e-5).sqrt()) * gamma + beta).relu().mean((2, 3))

    def by_batch(self, x: Tensor) -> Tensor:
        """Normalised by what is in `x`, with the biased variance; running statistics get a tenth, of the unbiased."""
        h = self.maps(x)
        flat = h.transpose(0, 1).flatten(1)
        mean = flat.mean(1)
        squares = (flat - mean[:, None]).square().sum(1)
        n = flat.shape[1]
        self.mean, self.var = 0.9 * self.mean + 0.1 * mean, 0.9 * self.var + 0.1 * squares / (n - 1)
        return self._out(h, mean, squares / n)

    def by_running(self, x: Tensor) -> Tensor:
        return self._out(self.maps(x), self.mean, self.var)

    def logits(self, features: Tensor) -> Tensor:
        return features @ self.top.T + self.bottom


def by_hand(net: nn.Module) -> Hand:
    core: Any = net.core
    parts = core.conv.weight, core.conv.bias, core.norm.weight, core.norm.bias, core.classifier.weight, core.classifier.bias
    return Hand(*(p.detach().clone() for p in parts), core.norm.running_mean.clone(), core.norm.running_var.clone())


def statistics(net: nn.Module) -> list[Tensor]:
    norm: Any = net.core.norm
    return [norm.running_mean.clone(), norm.running_var.clone()]


def launches(net: nn.Module) -> int:
    norm: Any = net.core.norm
    return int(norm.num_batches_tracked)


def images(seed: int, n: int = 10) -> Batch:
    """Each seed has a brightness of its own, so that it matters who is normalised with whom."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(80 * (seed % 3), 80 * (seed % 3) + 90, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(4, (n,), generator=generator), name="stream")


def make(method: Method | None = None, **more: Any) -> Learner:
    """In double precision, with 20 images in memory, of which 12 are replayed."""
    more = {"teacher": EMA(0.25), "optim": SGD(lr=0.1)} | more
    learner = Learner(SPEC, method or ER(), net=Custom(Core), memory=20, replay_size=12, precision="fp64", **more)
    rows = images(1, 20)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    return learner


def begin(learner: Learner, seed: int = 2) -> Step:
    rows = images(seed)
    return learner.step(rows, learner.meet(rows))


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


# ---- which images are normalised together


def test_two_calls_are_two_groups_each_normalised_by_itself() -> None:
    learner = make()
    hand, step = by_hand(learner.student), begin(learner)
    stream, replay = step.aug(step.stream), step.aug(step.replay)
    for view in stream, replay:
        out, expected = step.student(view), hand.by_batch(view.x)
        close(out.features, expected)
        close(out.logits, hand.logits(expected))
    assert step.student.calls == [("aug(stream)",), ("aug(replay)",)]


def test_a_joint_call_is_one_group_normalised_together() -> None:
    learner = make()
    hand, step = by_hand(learner.student), begin(learner)
    stream, replay = step.aug(step.stream), step.aug(step.replay)
    expected = hand.by_batch(torch.cat([stream.x, replay.x]))
    one, two = step.student.joint(stream, replay)
    close(one.features, expected[:10])
    close(two.features, expected[10:])
    close(two.logits, hand.logits(expected[10:]))


def test_a_view_of_both_is_one_group() -> None:
    learner = make()
    hand, step = by_hand(learner.student), begin(learner)
    both = step.aug(step.both)
    close(step.student(both).logits, hand.logits(hand.by_batch(both.x)))


def test_joint_and_separate_differ() -> None:
    one, two = begin(make()), begin(make())
    together = one.student.joint(one.raw(one.stream), one.raw(one.replay))
    apart = two.student(two.raw(two.stream)), two.student(two.raw(two.replay))
    for a, b in zip(together, apart, strict=True):
        assert (a.features - b.features).abs().max() > 0.01


def test_what_is_known_in_separate_groups_stays_normalised_separately() -> None:
    learner = make()
    hand, step = by_hand(learner.student), begin(learner)
    stream, replay = step.raw(step.stream), step.raw(step.replay)
    step.student(stream)
    step.student(replay)
    expected = [hand.by_batch(stream.x), hand.by_batch(replay.x)]
    close(step.student(step.raw(step.both)).features, torch.cat(expected[::-1]))


def test_gradients_pass_through_the_statistics_of_the_group() -> None:
    learner = make()
    step = begin(learner)
    hand = by_hand(learner.student)
    hand.weight.requires_grad_()
    view = step.aug(step.both)
    (ours,) = torch.autograd.grad(step.student(view).logits.square().sum(), learner.student.core.conv.weight)
    (theirs,) = torch.autograd.grad(hand.logits(hand.by_batch(view.x)).square().sum(), hand.weight)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


# ---- whose running statistics move, and when


def test_running_statistics_move_once_a_launch_in_the_order_of_launches() -> None:
    learner = make()
    hand, step = by_hand(learner.student), begin(learner)
    groups = [[step.aug(step.stream)], [step.raw(step.replay), step.raw(step.stream)], [step.aug(step.replay)]]
    for i, views in enumerate(groups):
        step.student.joint(*views)
        hand.by_batch(torch.cat([v.x for v in views]))
        close(statistics(learner.student), [hand.mean, hand.var])
        assert launches(learner.student) == i + 1
    kept = statistics(learner.student)
    step.student(step.aug(step.both))
    step.student.joint(step.raw(step.replay), step.raw(step.stream))
    assert all(torch.equal(a, b) for a, b in zip(statistics(learner.student), kept, strict=True)), "nothing was launched"


def test_the_order_of_launches_matters() -> None:
    def after(*names: str) -> list[Tensor]:
        learner = make()
        step = begin(learner)
        for name in names:
            step.student(step.raw(getattr(step, name)))
        return statistics(learner.student)

    assert (after("stream", "replay")[0] - after("replay", "stream")[0]).abs().max() > 1e-3


@pytest.mark.parametrize("pairs", ["ALGORITHM_1", "EQUATION_3"])
def test_an_update_of_er_and_mkd_moves_each_networks_statistics_by_its_own_launches(pairs: str) -> None:
    """The student: aug, then (Algorithm 1) raw.  The teacher: aug, or (Equation 3) raw then aug."""
    rule = MKD(cross_entropy=False, draw="main", weight=1.0, **({"pairs": EQUATION_3} if pairs == "EQUATION_3" else {}))
    learner = make(distill=rule)
    student, teacher = by_hand(learner.student), by_hand(learner.followers["teacher"].net)
    preview = begin(make())  # the same pixels
    raw, aug = preview.raw(preview.both).x, preview.aug(preview.both).x
    learner.observe(images(2))
    for x in (aug, raw) if pairs == "ALGORITHM_1" else (aug,):
        student.by_batch(x)
    for x in (aug,) if pairs == "ALGORITHM_1" else (raw, aug):
        teacher.by_batch(x)
    close(statistics(learner.student), [student.mean, student.var])
    close(statistics(learner.followers["teacher"].net), [teacher.mean, teacher.var])


def test_the_teachers_forwards_leave_the_students_statistics_alone() -> None:
    learner = make()
    kept, step = statistics(learner.student), begin(learner)
    step.teacher(step.aug(step.both))
    assert all(torch.equal(a, b) for a, b in zip(statistics(learner.student), kept, strict=True))


# ---- the teacher's batch-norm in each of its modes


def taught(mode: tuple[Any, Any]) -> Learner:
    """After four updates, by which the teacher's parameters and statistics are its own."""
    learner = make(teacher=EMA(0.25, statistics=mode[0], buffers=mode[1]), distill=MKD(weight=1.0))
    for i in range(4):
        learner.observe(images(10 + i))
    return learner


@pytest.mark.parametrize("mode", MODES)
def test_the_teacher_normalises_by_the_group_or_by_its_running_statistics(mode: tuple[Any, Any]) -> None:
    learner = taught(mode)
    step, teacher = begin(learner), by_hand(learner.followers["teacher"].net)
    assert (teacher.weight - by_hand(learner.student).weight).abs().max() > 1e-4
    both, raw = step.aug(step.both), step.raw(step.stream)
    for view in both, raw:
        expected = (teacher.by_batch if mode[0] == "batch" else teacher.by_running)(view.x)
        close(step.teacher(view).features, expected)
        close(step.teacher(view).logits, teacher.logits(expected))


@pytest.mark.parametrize("mode", MODES)
def test_the_teachers_running_statistics_are_those_its_mode_says(mode: tuple[Any, Any]) -> None:
    learner = make(teacher=EMA(0.25, statistics=mode[0], buffers=mode[1]), distill=MKD(weight=1.0))
    net = learner.followers["teacher"].net
    average = statistics(net)
    for i in range(4):
        own = by_hand(net)
        learner.clock.updates = i
        preview = begin(learner, 10 + i)
        own.by_batch(preview.aug(preview.both, "mkd", learner.full).x)
        learner.observe(images(10 + i))
        student = statistics(learner.student)
        average = [0.75 * mine + 0.25 * theirs for mine, theirs in zip(average, student, strict=True)]
        expected = {"own": [own.mean, own.var], "student": student, "average": average}[mode[1]]
        close(statistics(net), expected)
    assert launches(net) == (4 if mode[1] == "own" else launches(learner.student))


@pytest.mark.parametrize("mode", MODES)
def test_a_teachers_forward_moves_its_statistics_only_if_they_are_its_own(mode: tuple[Any, Any]) -> None:
    learner = taught(mode)
    net = learner.followers["teacher"].net
    kept, step = statistics(net), begin(learner)
    step.teacher(step.aug(step.both))
    moved = not all(torch.equal(a, b) for a, b in zip(statistics(net), kept, strict=True))
    assert moved == (mode == ("batch", "own"))


@pytest.mark.parametrize("mode", MODES)
def test_the_student_learns_in_training_mode_and_its_teacher_in_its_own(mode: tuple[Any, Any]) -> None:
    learner = taught(mode)
    assert learner.student.core.norm.training
    assert learner.followers["teacher"].net.core.norm.training == (mode[0] == "batch")
    learner.predict(images(0).x, "teacher")
    learner.predict(images(0).x, "average")
    assert learner.student.core.norm.training
    assert learner.followers["teacher"].net.core.norm.training == (mode[0] == "batch")
