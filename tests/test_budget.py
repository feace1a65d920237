"""The forwards of one update: which views each network sees, together with which, and how many images that is."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from onepass.data import source
from onepass.distill import EQUATION_3, MKD, SINGLE_VIEW, Distiller
from onepass.learner import Learner
from onepass.method import Method
from onepass.methods.er import ER
from onepass.nets import ResNet18
from onepass.recipes import recipe
from onepass.step import Forward, Step
from onepass.stream import Batch, Spec
from onepass.teachers import EMA

STREAM, REPLAY = 10, 64
Calls = list[tuple[str, ...]]


@dataclass(frozen=True)
class Row:
    """What a method, alone or with a distiller, launches at one update, in this order."""

    method: Method
    distill: Distiller | None
    student: Calls
    teacher: Calls
    images: tuple[int, int]  # through the student (forward and backward), through the teacher
    units: int  # 3 x the first + 1 x the second


AUG, RAW = ("aug(replay)", "aug(stream)"), ("raw(replay)", "raw(stream)")
OWN_AUG, OWN_RAW = ("mkd:aug(replay)", "mkd:aug(stream)"), ("mkd:raw(replay)", "mkd:raw(stream)")

ROWS = {  # the table of section 4 of the design; first what the recipes run, by their words
    "er": Row(ER(), None, [AUG], [], (74, 0), 222),
    "er+mkd": Row(ER(), MKD(cross_entropy=False, draw="main"), [AUG, RAW], [AUG], (148, 74), 518),
    "er+mkd, Eq. 3": Row(ER(), MKD(cross_entropy=False, draw="main", pairs=EQUATION_3), [AUG], [RAW, AUG], (74, 148), 370),
    "er+mkd, one view": Row(ER(), MKD(cross_entropy=False, draw="main", pairs=SINGLE_VIEW), [AUG], [AUG], (74, 74), 296),
    "er+mkd, own views": Row(ER(), MKD(), [AUG, OWN_RAW, OWN_AUG], [OWN_AUG], (222, 74), 740),
    "er+mkd, own views, Eq. 3": Row(ER(), MKD(pairs=EQUATION_3), [AUG, OWN_AUG], [OWN_RAW, OWN_AUG], (148, 148), 592),
    "er+mkd, own view, one": Row(ER(), MKD(pairs=SINGLE_VIEW), [AUG, OWN_AUG], [OWN_AUG], (148, 74), 518),
    "er+mkd, own views, no CE": Row(ER(), MKD(cross_entropy=False), [AUG, OWN_RAW, OWN_AUG], [OWN_AUG], (222, 74), 740),
}
WORDS = [name for name in ROWS if "," not in name]


def images(seed: int, n: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(4, (n,), generator=generator), name="stream")


def make(row: Row) -> Learner:
    """A learner whose memory has more than it replays."""
    learner = Learner(
        Spec(4, (3, 8, 8)),
        row.method,
        teacher=EMA(0.01) if row.distill is not None else None,
        distill=row.distill,
        net=ResNet18(width=2),
        memory=REPLAY + 16,
        replay_size=REPLAY,
        precision="fp32",
    )
    rows = images(0, 200)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    assert len(learner.memory) == REPLAY + 16
    return learner


def one_step(learner: Learner, row: Row, n: int = STREAM) -> Step:
    """The part of `Learner.observe` that computes a loss."""
    rows = images(1, n)
    step = learner.step(rows, learner.meet(rows))
    loss = row.method.loss(step)
    assert loss is not None
    if row.distill is not None:
        loss = row.distill.loss(step, loss)
    step.close()
    return step


def count(forwards: list[Forward], grad: bool) -> int:
    return sum(sum(f.images) for f in forwards if f.grad == grad)


def through(net: nn.Module) -> list[int]:
    """How many images its first convolution is given, launch by launch, from now on."""
    seen: list[int] = []
    conv = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    conv.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    return seen


@pytest.mark.parametrize("name", ROWS)
def test_each_network_launches_exactly_these_views_in_this_order(name: str) -> None:
    row = ROWS[name]
    step = one_step(make(row), row)
    assert step.student.calls == row.student
    assert (step.teacher.calls if row.distill is not None else []) == row.teacher


@pytest.mark.parametrize("name", ROWS)
def test_the_images_of_a_step_are_those_of_the_table(name: str) -> None:
    row = ROWS[name]
    step = one_step(make(row), row)
    students, teachers = count(step.forwards, True), count(step.forwards, False)
    assert (students, teachers) == row.images
    assert 3 * students + teachers == row.units


@pytest.mark.parametrize("name", ROWS)
def test_nothing_but_the_recorded_launches_goes_through_the_networks(name: str) -> None:
    """Counted by the networks themselves, during a whole `observe`."""
    row = ROWS[name]
    learner = make(row)
    seen = {who: through(learner.network(who)) for who in ("student", "teacher") if who in learner.networks}
    learner.observe(images(1, STREAM))
    step = one_step(make(row), row)
    assert seen["student"] == step.student.images and sum(seen["student"]) == row.images[0]
    assert sum(seen.get("teacher", [])) == row.images[1]


@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_budgeted_as_its_recipe_is_run(name: str) -> None:
    config = recipe(name, source("digits"))
    assert (config.method, config.distill) == (ROWS[name].method, ROWS[name].distill)


@pytest.mark.parametrize("name", ROWS)
def test_a_short_memory_and_a_short_batch_cost_what_they_hold(name: str) -> None:
    row = ROWS[name]
    learner = make(row)
    learner.memory.count = 7
    step = one_step(learner, row, 3)
    assert step.student.calls == row.student
    share = (7 + 3) / (REPLAY + STREAM)
    assert (count(step.forwards, True), count(step.forwards, False)) == tuple(share * n for n in row.images)
