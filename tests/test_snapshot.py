"""The student at the end of the last task as a teacher (the paper's second table): silent until there is one.

The follower by itself is in `test_teachers.py`.  Where `spec/authors-code.md` 1.11 says otherwise, it was decided (`design.md`,
section 16): this is the low-quality teacher, a copy at the end of each task after one epoch, which the authors'
last code has no more; the very first batch is not trained on, as in all of ER.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from onepass.boundaries import NewClass
from onepass.data import source
from onepass.distill import MKD, SINGLE_VIEW
from onepass.errors import Refused
from onepass.learner import Learner
from onepass.nets import ResNet18
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Spec
from onepass.teachers import Snapshot

SPEC = Spec(6, (3, 8, 8), tasks=((0, 1), (2, 3), (4, 5)))
CIFAR = source("cifar10")
SMALL: dict[str, Any] = {"net": ResNet18(width=2), "memory": 30, "replay_size": 12}
AUG = ("aug(replay)", "aug(stream)")
TASKS = [0, 0, 0, 1, 1, 1, 2, 2]


def images(seed: int, task: int, n: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, 2 * task + torch.arange(n) % 2, name="stream")


def make(word: str, family: Any = "default", **more: Any) -> Learner:
    config = recipe(word, CIFAR, family=family)
    return replace(config, **(SMALL | {"precision": "fp64"} | more)).learner(SPEC, sharp=True)


def state(learner: Learner, start: str) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in learner.state_dict().items() if k.startswith(start)}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and len(a) > 0 and all(torch.equal(a[k], b[k]) for k in a)


def one_step(learner: Learner, task: int, seed: int = 50, n: int = 6) -> tuple[Step, Tensor, Tensor]:
    rows = images(seed, task, n)
    step = learner.step(rows, learner.meet(rows))
    base = learner.method.loss(step)
    assert base is not None and learner.distill is not None
    return step, base, learner.distill.loss(step, base)


def softmax(z: list[float]) -> list[float]:
    total = sum(math.exp(v / 4) for v in z)
    return [math.exp(v / 4) / total for v in z]


def slow_kl(teacher: list[list[float]], student: list[list[float]]) -> float:
    total = 0.0
    for t, s in zip(teacher, student, strict=True):
        total += sum(p * math.log(p / q) for p, q in zip(softmax(t), softmax(s), strict=True))
    return total / len(teacher)


def test_the_recipe_is_the_papers() -> None:
    config = recipe("er+snapshot", CIFAR)
    assert config.teacher == Snapshot() and config.infer == "student" and config.optim == recipe("er", CIFAR).optim
    assert config.distill == MKD(weight=0.01, temperature=4.0, pairs=SINGLE_VIEW, cross_entropy=False, draw="main")


@pytest.mark.parametrize("family", ["default", "published"])
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_it_is_er_bit_for_bit_until_the_first_boundary(family: Any, precision: Any) -> None:
    plain, taught = (make(word, family, precision=precision) for word in ("er", "er+snapshot"))
    for i, task in enumerate(TASKS[:3]):
        assert same(plain.observe(images(i, task)), taught.observe(images(i, task))) or i == 0
    for start in "student.", "memory.", "optimizer.":
        assert same(state(plain, start), state(taught, start))
    assert not taught.followers["teacher"].ready
    for i, task in enumerate(TASKS[3:6], 3):
        plain.observe(images(i, task))
        taught.observe(images(i, task))
    assert taught.followers["teacher"].ready
    assert same(state(plain, "memory."), state(taught, "memory.")) and not same(state(plain, "student."), state(taught, "student."))


def test_before_the_first_boundary_the_teacher_is_not_asked() -> None:
    learner = make("er+snapshot")
    learner.observe(images(0, 0))
    step, base, loss = one_step(learner, 0)
    assert loss is base and step.teacher.calls == [] and step.student.calls == [AUG]


def test_the_teacher_is_the_student_at_the_last_boundary() -> None:
    learner, at_boundary, task = make("er+snapshot"), None, 0
    for i, t in enumerate(TASKS):
        if t > task:
            at_boundary, task = deepcopy(learner.student.state_dict()), t
        learner.observe(images(i, t))
        if at_boundary is not None:
            teacher = learner.followers["teacher"].net
            assert all(torch.equal(p, at_boundary[k]) for k, p in teacher.named_parameters())
    assert learner.followers["teacher"].updates == 2 == learner.task


def test_then_the_loss_is_its_equation() -> None:
    learner = make("er+snapshot")
    for i, task in enumerate(TASKS):
        if i:
            again = deepcopy(learner)
            student = deepcopy(learner.student)
            step, base, loss = one_step(again, task, i)
            if task:
                x = step.aug(step.both).x
                teacher = deepcopy(learner.student if TASKS[i - 1] < task else learner.followers["teacher"].net)
                student.train()
                teacher.train()  # it normalises by the batch
                with torch.no_grad():
                    kl = slow_kl(teacher(x).tolist(), student(x).tolist())
                assert loss.item() - base.item() == pytest.approx(0.01 * 16 * kl, rel=1e-8, abs=1e-12)
                assert (kl < 1e-12) == (TASKS[i - 1] < task), "at first it is the student itself"
                assert step.student.calls == [AUG] == step.teacher.calls
        found = learner.observe(images(i, task))
        assert i == 0 or found["loss"].item() == pytest.approx(loss.item(), rel=1e-12)


def test_no_gradient_reaches_the_teacher() -> None:
    learner = make("er+snapshot")
    for i, task in enumerate(TASKS[:5]):
        learner.observe(images(i, task))
    _, _, loss = one_step(learner, 1)
    loss.backward()
    assert all(p.grad is None for p in learner.followers["teacher"].parameters())


def test_its_units_are_222_before_and_296_after_the_first_boundary() -> None:
    for task, expected in (0, 222), (1, 296):
        learner = make("er+snapshot", memory=80, replay_size=64, precision="fp32")
        rows = images(0, 0, 100)
        learner.memory.add(rows.x, rows.y, rng=torch.Generator())
        learner.seen[:2] = learner.new[:2] = True
        learner.clock.batches = learner.since = 1
        step, _, _ = one_step(learner, task, n=10)
        assert step.student.images == [74] and 3 * 74 + sum(step.teacher.images) == expected


def test_beside_another_method_it_sees_views_of_its_own() -> None:
    learner = make("gsa+snapshot")
    for i, task in enumerate(TASKS[:5]):
        learner.observe(images(i, task))
    step, base, loss = one_step(learner, 1)
    own = ("mkd:aug(replay)", "mkd:aug(stream)")
    assert step.student.calls[2:] == [own] == step.teacher.calls
    kl = slow_kl(step.teacher(step.aug(step.both, "mkd", step.full)).logits.tolist(),
                 step.student(step.aug(step.both, "mkd", step.full)).logits.tolist())  # fmt: skip
    assert loss.item() - base.item() == pytest.approx(0.01 * 16 * kl, rel=1e-6, abs=1e-12) and kl > 0


def test_a_blurry_stream_is_refused_without_a_rule_and_run_with_one() -> None:
    config = replace(recipe("er+snapshot", CIFAR, stream="blurry"), **SMALL, precision="fp32")
    with pytest.raises(Refused, match=r"`Snapshot` cannot be run on a `Blurry` stream.*the student at the end of a task.*NewClass"):
        config.learner(SPEC, sharp=False)
    learner = replace(config, boundaries=NewClass(lag=2)).learner(SPEC, sharp=False)
    ready = []
    for i, task in enumerate(TASKS):
        found = learner.observe(images(i, task))
        assert i == 0 or found["loss"].isfinite()
        ready.append(learner.followers["teacher"].ready)
    assert ready == [t > 0 for t in TASKS]
