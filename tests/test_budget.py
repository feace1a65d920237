"""The forwards of one update: which views each network sees, together with which, and how many images that is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn

from onepass.boundaries import Oracle
from onepass.data import source
from onepass.distill import EQUATION_3, MKD, SINGLE_VIEW, Distiller
from onepass.learner import Learner
from onepass.method import Method
from onepass.methods.er import ER
from onepass.methods.er_ace import ERACE
from onepass.methods.pcr import PCR
from onepass.nets import ResNet18
from onepass.recipes import Family, recipe
from onepass.step import Forward, Step
from onepass.stream import Batch, Spec
from onepass.teachers import EMA, Teacher

STREAM, REPLAY, ROOM = 10, 64, 144
Calls = list[tuple[str, ...]]
SPEC = Spec(4, (3, 8, 8), tasks=((0, 1), (2, 3)), original=(0, 1, 2, 3))


@dataclass(frozen=True)
class Row:
    """What a method, alone or with a distiller, launches at one update, in this order."""

    method: Method
    distill: Distiller | None
    student: Calls
    teacher: Calls
    images: tuple[int, int]  # through the student (forward and backward), through the teacher and the method's own teachers
    units: int  # 3 x the first + 1 x the second
    nets: dict[str, Calls] = field(default_factory=dict[str, Calls])  # the method's own teachers
    peeks: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # of the student, without gradient; not in `units`
    task: int = 0  # boundaries so far
    follow: Teacher | None = None  # None: an EMA if something is distilled

    @property
    def rule(self) -> Teacher | None:
        return self.follow or (EMA(0.01) if self.distill is not None else None)


def row(
    word: str,
    student: Calls,
    teacher: Calls,
    images: tuple[int, int],
    units: int,
    *,
    family: Family = "default",
    distill: dict[str, Any] | None = None,
    **more: Any,
) -> Row:
    """A row whose method, distiller and teacher are those of a recipe; `distill`: with these fields of the distiller changed."""
    config = recipe(word, source("cifar10"), family=family)
    changed = replace(config.distill, **distill) if distill else config.distill  # pyright: ignore
    return Row(config.method, changed, student, teacher, images, units, follow=config.teacher, **more)


AUG, RAW = ("aug(replay)", "aug(stream)"), ("raw(replay)", "raw(stream)")
OWN_AUG, OWN_RAW = ("mkd:aug(replay)", "mkd:aug(stream)"), ("mkd:raw(replay)", "mkd:raw(stream)")

BOTH_OWN = [OWN_RAW, OWN_AUG]
APART = [("aug(stream)",), ("aug(replay)",)]
DERPP = [("aug(stream)",), ("aug(draw0)",), ("aug(replay)",)]
PAIRS = [("raw(stream)", "aug(stream)"), ("raw(replay)", "aug(replay)")]
SCORED = [("raw(draw0)", 128), ("raw(draw0)", 128)]
KEPT = [("raw(stream)", "aug(stream)"), ("raw(draw0)", "aug(draw0)")]
KEPT_AUG, KEPT_RAW = ("mkd:aug(draw0)", "mkd:aug(stream)"), ("mkd:raw(draw0)", "mkd:raw(stream)")
TWICE_AUG = KEPT_AUG + tuple(f"double:raw({name})" for name in KEPT_AUG)
TWICE_RAW = KEPT_RAW + tuple(f"double:raw({name})" for name in KEPT_RAW)
GSA = [("aug(stream)", "aug(draw0)"), ("aug(draw1)", "aug(stream+draw0[0:32])")]  # half of the classes seen are new
SDP_AUG = ("sdp:aug(replay)", "sdp:aug(stream)")
OCM_FIRST = [("rotations(stream)", "aug(rotations(stream))"), ("aug(stream)",)]
OCM = [("rotations(stream)", "aug(rotations(stream))", "rotations(replay)", "aug(rotations(replay))"), ("aug(replay)",)]
PREVIOUS = {"previous": [("rotations(replay)",), ("aug(replay)",)]}
PREVIOUS_TWO_VIEWS = {"previous": [("rotations(replay)",), ("previous:aug(replay)",)]}
AGAIN = ("again:raw(mkd:aug(replay))", "again:raw(mkd:aug(stream))")

ROWS = {  # the table of section 4 of the design; first what the recipes run, by their words
    "er": Row(ER(), None, [AUG], [], (74, 0), 222),
    "er+mkd": Row(ER(), MKD(cross_entropy=False, draw="main"), [AUG, RAW], [AUG], (148, 74), 518),
    "er+mkd, Eq. 3": Row(ER(), MKD(cross_entropy=False, draw="main", pairs=EQUATION_3), [AUG], [RAW, AUG], (74, 148), 370),
    "er+mkd, one view": Row(ER(), MKD(cross_entropy=False, draw="main", pairs=SINGLE_VIEW), [AUG], [AUG], (74, 74), 296),
    "er+mkd, own views": Row(ER(), MKD(), [AUG, OWN_RAW, OWN_AUG], [OWN_AUG], (222, 74), 740),
    "er+mkd, own views, Eq. 3": Row(ER(), MKD(pairs=EQUATION_3), [AUG, OWN_AUG], [OWN_RAW, OWN_AUG], (148, 148), 592),
    "er+mkd, own view, one": Row(ER(), MKD(pairs=SINGLE_VIEW), [AUG, OWN_AUG], [OWN_AUG], (148, 74), 518),
    "er+mkd, own views, no CE": Row(ER(), MKD(cross_entropy=False), [AUG, OWN_RAW, OWN_AUG], [OWN_AUG], (222, 74), 740),
    "derpp": row("derpp", DERPP, [], (138, 0), 414),
    "derpp+mkd": row("derpp+mkd", DERPP + BOTH_OWN, [OWN_AUG], (286, 74), 932),
    "er-ace": row("er-ace", APART, [], (74, 0), 222),
    "er-ace+mkd": row("er-ace+mkd", APART + BOTH_OWN, [OWN_AUG], (222, 74), 740),
    "pcr": row("pcr", PAIRS, [], (148, 0), 444),
    "pcr+mkd": row("pcr+mkd", [*PAIRS, OWN_AUG, OWN_RAW], [OWN_AUG], (296, 74), 962),
    "dvc": row("dvc", PAIRS, [], (148, 0), 444, peeks=SCORED),
    "dvc+mkd": row("dvc+mkd", PAIRS + BOTH_OWN, [OWN_AUG], (296, 74), 962, peeks=SCORED),
    "dvc, published": row("dvc", KEPT, [], (120, 0), 360, family="published"),
    "dvc+mkd, published": row("dvc+mkd", [*KEPT, TWICE_RAW, TWICE_AUG], [TWICE_AUG], (360, 120), 1200, family="published"),
    "dvc+mkd, published, not doubled": row(
        "dvc+mkd", [*KEPT, KEPT_RAW, KEPT_AUG], [KEPT_AUG], (240, 60), 780, family="published", distill={"doubled": False}
    ),
    "gsa": row("gsa", GSA, [], (96, 0), 288, task=1),
    "gsa, published": row("gsa", GSA, [], (96, 0), 288, task=1, family="published"),
    "gsa+mkd": row("gsa+mkd", GSA + BOTH_OWN, [OWN_AUG], (244, 74), 806, task=1),
    "gsa+sdp": row("gsa+sdp", [*GSA, SDP_AUG], [SDP_AUG], (170, 74), 584, task=1, peeks=[("sdp:aug(replay+stream)", 74)]),
    "ocm, first task": row("ocm", OCM_FIRST, [], (330, 0), 990, nets={"previous": []}),
    "ocm": row("ocm", OCM, [], (2432, 1088), 8384, nets=PREVIOUS, task=1),
    "ocm, published": row("ocm", OCM, [], (2432, 1088), 8384, nets=PREVIOUS_TWO_VIEWS, task=1, family="published"),
    "ocm+mkd, first task": row(
        "ocm+mkd",
        [*OCM_FIRST, ("mkd:raw(stream)",), ("mkd:aug(stream)",)],
        [("mkd:aug(stream)",)],
        (350, 10),
        1060,
        nets={"previous": []},
    ),
    "ocm+mkd": row("ocm+mkd", OCM + BOTH_OWN, [OWN_AUG], (2580, 1162), 8902, nets=PREVIOUS, task=1),
    "ocm+mkd, published": row(
        "ocm+mkd", [*OCM, AGAIN, OWN_AUG], [OWN_AUG], (2580, 1162), 8902, nets=PREVIOUS, task=1, family="published"
    ),
    "er+sdp": row("er+sdp", [AUG], [AUG], (74, 74), 296, peeks=[("aug(replay+stream)", 74)]),
    "er+te": row("er+te", [AUG], [], (74, 0), 222),
    "er+te, published": row("er+te", [AUG], [AUG], (74, 74), 296, family="published"),
    "er+snapshot, first task": row("er+snapshot", [AUG], [], (74, 0), 222),
    "er+snapshot": row("er+snapshot", [AUG], [AUG], (74, 74), 296, task=1),
    "er+ce": row("er+ce", [AUG, OWN_AUG], [OWN_AUG], (148, 74), 518),
    "er+kd": row("er+kd", [AUG, RAW], [AUG], (148, 74), 518),
    "er+ema": row("er+ema", [AUG], [], (74, 0), 222),
    "er+rawpass": row("er+rawpass", [AUG, RAW], [RAW], (148, 74), 518),
}
WORDS = [name for name in ROWS if "," not in name]


def images(seed: int, n: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(4, (n,), generator=generator), name="stream")


def make(row: Row) -> Learner:
    """A learner whose memory has more than it replays; in a later task the first two classes are old."""
    learner = Learner(
        SPEC,
        row.method,
        teacher=row.rule,
        distill=row.distill,
        net=ResNet18(width=2),
        memory=ROOM,
        replay_size=REPLAY,
        boundaries=Oracle(),
        precision="fp32",
    )
    rows = images(0, 200)
    extra = {"logits": torch.zeros(200, 4)} if row.method.columns else {}
    learner.memory.add(rows.x, rows.y, extra, rng=torch.Generator())
    assert len(learner.memory) == ROOM
    for _ in range(row.task):
        learner.task += 1
        learner.seen[:2] = True
        for follower in learner.followers.values():
            follower.boundary(learner.student)
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
    assert (step.teacher.calls if row.rule is not None else []) == row.teacher
    assert {name: step.net(name).calls for name in row.method.teachers} == row.nets
    assert step.student.peeks == row.peeks
    assert not any(forward.peeks for forward in step.forwards if forward is not step.student)


@pytest.mark.parametrize("name", ROWS)
def test_the_images_of_a_step_are_those_of_the_table(name: str) -> None:
    row = ROWS[name]
    step = one_step(make(row), row)
    students, teachers = count(step.forwards, True), count(step.forwards, False)
    assert (students, teachers) == row.images
    assert 3 * students + teachers == row.units


@pytest.mark.parametrize("name", ROWS)
def test_nothing_but_the_recorded_launches_goes_through_the_networks(name: str) -> None:
    """Counted by the networks themselves, during a whole `observe`.  A peek comes amid the launches; they are put first here."""
    row = ROWS[name]
    learner = make(row)
    seen = {"student": through(learner.student)} | {who: through(f.net) for who, f in learner.followers.items()}
    learner.observe(images(1, STREAM))
    step = one_step(make(row), row)
    assert sorted(seen["student"]) == sorted(step.student.images + [n for _, n in row.peeks])
    assert sum(seen.pop("student")) == row.images[0] + sum(n for _, n in row.peeks)
    assert sum(map(sum, seen.values())) == row.images[1]
    assert all(seen[who] == step.net(who).images for who in row.method.teachers)


@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_budgeted_as_its_recipe_is_run(name: str) -> None:
    config = recipe(name, source("digits"))
    assert (config.method, config.distill) == (ROWS[name].method, ROWS[name].distill)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if isinstance(row.method, ER | ERACE | PCR)])
def test_a_short_memory_and_a_short_batch_cost_what_they_hold(name: str) -> None:
    row = ROWS[name]
    learner = make(row)
    learner.memory.count = 7
    step = one_step(learner, row, 3)
    assert step.student.calls == row.student
    share = (7 + 3) / (REPLAY + STREAM)
    assert (count(step.forwards, True), count(step.forwards, False)) == tuple(share * n for n in row.images)


SHORT = {  # 7 rows in memory, 4 of them of the new classes 2 and 3, and 3 of the stream: images
    "derpp": (3 + 7 + 7, 0),
    "derpp+mkd": (3 + 7 + 7 + 20, 10),
    "dvc": (2 * 3 + 2 * 7, 0),  # nothing to choose among
    "dvc+mkd": (2 * 3 + 2 * 7 + 20, 10),
    "dvc+mkd, published": (2 * 3 + 2 * 7 + 40, 20),
    "gsa": (3 + 4 + 3 + 7, 0),  # all of the current batch is in the mixed one
    "gsa+mkd": (3 + 4 + 3 + 7 + 20, 10),
    "ocm": (32 * (3 + 7) + 7, 16 * 7 + 7),
    "ocm+mkd": (32 * (3 + 7) + 7 + 20, 16 * 7 + 7 + 10),
}


@pytest.mark.parametrize("name", SHORT)
def test_so_do_methods_that_do_not_go_through_stream_and_replay_alike(name: str) -> None:
    row = ROWS[name]
    learner = make(row)
    learner.memory.count = 7
    learner.memory.y[:7] = torch.tensor([0, 1, 2, 3, 2, 0, 3])
    step = one_step(learner, row, 3)
    assert (count(step.forwards, True), count(step.forwards, False)) == SHORT[name]
    assert not step.student.peeks
