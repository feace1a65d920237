"""Temporal Ensembles: a moving average that predicts and teaches nothing, against its closed form and its properties.

The average by itself, (h) 1, 3 and 4 of `spec/methods.md` section 9, is in `test_teachers.py`; here it follows a run.  Where the
specification says otherwise, these were decided (`design.md`, section 16; `methods.md`, section 12):
- (b), (h) 1: one rate, alpha = 1 - lambda = 0.01, throughout: there is no ramp of two phases.
- (h) 3: lambda = 1 is `alpha=0`, which is no rate and is refused.
- (b): the average of the buffers is of the running statistics; the counter of batches is copied, not mixed as a float.
- (h) 4: `published` starts at alpha times the student, as the authors' code does: there a constant student has no constant
  average.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onepass.config import Config
from onepass.data import source
from onepass.distill import Warm
from onepass.learner import Learner
from onepass.loop import run
from onepass.methods.er import ER
from onepass.nets import ResNet18
from onepass.probes import Predictions
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Spec
from onepass.teachers import EMA

f64 = torch.float64
SPEC = Spec(4, (3, 8, 8), tasks=((0, 1), (2, 3)))
CIFAR = source("cifar10")
AUG = ("aug(replay)", "aug(stream)")
SMALL: dict[str, Any] = {"net": ResNet18(width=2), "memory": 30, "replay_size": 12}


def images(seed: int, n: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.arange(n) % (2 if seed < 3 else 4), name="stream")


def make(word: str, family: Any = "default", **more: Any) -> Learner:
    config = recipe(word, CIFAR, family=family)
    return replace(config, **(SMALL | {"precision": "fp64"} | more)).learner(SPEC, sharp=True)


def state(learner: Learner, start: str) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in learner.state_dict().items() if k.startswith(start)}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and len(a) > 0 and all(torch.equal(a[k], b[k]) for k in a)


def one_step(learner: Learner, seed: int = 50) -> Step:
    rows = images(seed, 10)
    step = learner.step(rows, learner.meet(rows))
    loss = learner.method.loss(step)
    assert loss is not None
    if learner.distill is not None:
        assert learner.distill.loss(step, loss) is loss
    return step


# ---- (h) 1: the closed form


def test_h1_the_teacher_is_the_closed_form_of_the_students_so_far() -> None:
    learner = make("er+te", teacher=EMA(0.3, buffers="average"))
    path: list[list[Tensor]] = [[v.clone() for v in learner.student.state_dict().values()]]
    for i in range(6):
        learner.observe(images(i))
        if i:  # nothing is learnt from the first batch
            path.append([v.clone() for v in learner.student.state_dict().values()])
    steps = len(path) - 1
    for k, (name, mine) in enumerate(learner.followers["teacher"].net.state_dict().items()):
        if not mine.is_floating_point():
            assert torch.equal(mine, path[-1][k])
            continue
        if name in ("mean", "std"):
            torch.testing.assert_close(mine, path[0][k])
            continue
        expected = 0.7**steps * path[0][k]
        for age in range(steps):
            expected = expected + 0.3 * 0.7**age * path[steps - age][k]
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_h1_the_rate_is_the_same_in_all_tasks() -> None:
    learner = make("er+te")
    assert learner.alpha == 0.01
    for i in range(6):
        before, teacher = learner.student.classifier, learner.followers["teacher"].net.classifier
        assert isinstance(before, nn.Linear) and isinstance(teacher, nn.Linear)
        old = teacher.weight.detach().clone()
        learner.observe(images(i))
        expected = 0.99 * old + 0.01 * before.weight.detach() if i else old
        torch.testing.assert_close(teacher.weight.detach(), expected, rtol=1e-12, atol=1e-14)
    assert learner.task == 1


# ---- (h) 2: training is that of the base method


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("family", ["default", "published"])
def test_h2_training_is_ers_bit_for_bit(family: Any, precision: Any) -> None:
    plain, followed = (make(word, family, precision=precision) for word in ("er", "er+te"))
    for i in range(5):
        assert same(plain.observe(images(i)), followed.observe(images(i))) or i == 0
        plain.logits(images(9).x)
        followed.logits(images(9).x)
    for start in "student.", "memory.", "optimizer.", "clock":
        assert same(state(plain, start), state(followed, start))


@pytest.mark.parametrize("word", ["derpp", "gsa", "pcr"])
def test_h2_so_it_is_with_other_methods(word: str) -> None:
    plain, followed = make(word), make(word + "+te")
    for i in range(4):
        assert same(plain.observe(images(i)), followed.observe(images(i))) or i == 0
    assert same(state(plain, "student."), state(followed, "student.")) and same(state(plain, "memory."), state(followed, "memory."))


def digits(word: str) -> Config:
    config = recipe(word, source("digits"), memory=30)
    return replace(
        config, net=ResNet18(width=2), batch_size=6, replay_size=12, per_class=6, limit=36, precision="fp32",
        probes=(Predictions(every=18),),
    )  # fmt: skip


def test_h2_the_log_of_a_run_is_ers(tmp_path: Path) -> None:
    plain, followed = (run(digits(word), tmp_path) for word in ("er", "er+te"))
    assert plain.path != followed.path
    assert len(plain.log) == 5 and plain.log == followed.log


# ---- (h) 3 and 4


def test_h3_at_alpha_1_the_teacher_is_the_student_with_its_running_statistics() -> None:
    learner = make("er+te", teacher=EMA(1.0, buffers="average"))
    for i in range(4):
        learner.observe(images(i))
    assert same(dict(learner.student.state_dict()), dict(learner.followers["teacher"].net.state_dict()))
    assert torch.equal(learner.logits(images(9).x, "teacher"), learner.logits(images(9).x, "student"))


def test_h4_a_constant_student_has_a_constant_average_but_for_the_published_start() -> None:
    for family, factor in ("default", 1.0), ("published", 0.01):
        learner = make("er+te", family)
        teacher, student = learner.followers["teacher"], learner.student
        for steps in range(4):
            expected = 1 - 0.99**steps * (1 - factor)
            for mine, theirs in zip(teacher.net.parameters(), student.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs * expected, rtol=1e-12, atol=1e-14)
            teacher.update(student)


# ---- (h) 5: evaluation


def test_h5_the_teacher_predicts_by_its_averaged_statistics_and_everything_is_put_back() -> None:
    learner = make("er+te")
    for i in range(5):
        learner.observe(images(i))
    x = images(9, 20).x
    modes = [m.training for m in learner.student.modules()], [m.training for m in learner.followers["teacher"].modules()]
    before = learner.state_dict()
    before = {k: v.clone() for k, v in before.items()}
    found = learner.logits(x)
    assert same(before, learner.state_dict())
    assert modes == ([m.training for m in learner.student.modules()], [m.training for m in learner.followers["teacher"].modules()])
    assert learner.student.training and learner.infer == "teacher"
    by_hand = deepcopy(learner.student)
    by_hand.load_state_dict(learner.followers["teacher"].net.state_dict())
    for module in by_hand.modules():  # by running statistics, whatever module it is
        module.training = False
    torch.testing.assert_close(found, by_hand(x.to(f64) / 255).detach(), rtol=1e-10, atol=1e-12)
    assert torch.equal(learner.predict(x), found.argmax(1))
    assert not torch.allclose(found, learner.logits(x, "student"))


# ---- what is forwarded


def filled(word: str, family: Any = "default") -> Learner:
    learner = make(word, family, memory=80, replay_size=64, precision="fp32")
    rows = images(0, 100)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    return learner


def test_it_costs_no_forward_and_222_units() -> None:
    config = recipe("er+te", CIFAR)
    assert config.teacher == EMA(0.01, start="copy", statistics="batch", buffers="average")
    assert (config.distill, config.infer, config.method) == (None, "teacher", ER())
    step = one_step(filled("er+te"))
    assert step.student.calls == [AUG] and step.teacher.calls == [] and step.student.peeks == []
    assert 3 * sum(step.student.images) == 222


def test_published_warms_its_own_statistics_for_296_units() -> None:
    config = recipe("er+te", CIFAR, family="published")
    assert config.teacher == EMA(0.01, start="alpha", buffers="own", correction=0)
    assert config.distill == Warm() and config.infer == "teacher"
    step = one_step(filled("er+te", "published"))
    assert step.student.calls == [AUG] and step.teacher.calls == [AUG]
    assert 3 * sum(step.student.images) + sum(step.teacher.images) == 296


def test_published_statistics_are_those_of_the_teachers_own_forwards() -> None:
    learner = make("er+te", "published")
    slow = deepcopy(learner.student)
    with torch.no_grad():
        for p in slow.parameters():
            p.mul_(0.01)
    for i in range(4):
        rows = images(i)
        if i:
            peeped = deepcopy(learner)
            step = peeped.step(rows, peeped.meet(rows))
            slow.train()
            with torch.no_grad():
                slow(step.aug(step.both).x)  # before the update
        learner.observe(rows)
        if i:
            with torch.no_grad():
                for mine, theirs in zip(slow.parameters(), learner.student.parameters(), strict=True):
                    mine.mul_(0.99).add_(theirs, alpha=0.01)
    found = learner.followers["teacher"].net.state_dict()
    for name, expected in slow.state_dict().items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-12)
    tracked = found["core.norm.num_batches_tracked"]
    assert int(tracked) == 3
