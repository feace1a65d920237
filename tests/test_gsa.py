"""GSA against a slow rewriting of its equations, the values worked out by hand, and the properties asked of it.

Where `spec/methods.md` (section 7) says otherwise, these were decided (`design.md`, section 16; `methods.md`, section 12):
- (a) the columns are the classes met, not those of whole tasks, which `authors` has; so in (h) 1 a class of this task that was not
  met yet has no part either.
- (b) no flip doubling, one augmentation; the 22 and the mix are drawn without replacement, but with `authors`.
- (a) the weights are those of the released code, w(1) = 1, not those of the paper's Eq. 13.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.augment import Partial
from onepass.boundaries import NewClass, Oracle
from onepass.data import source
from onepass.distill import MKD, SDP
from onepass.errors import Refused
from onepass.learner import SGD, Learner
from onepass.methods.gsa import GSA
from onepass.nets import Custom, ResNet18
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Blurry, Spec
from onepass.teachers import EMA

f64 = torch.float64
SPEC = Spec(6, (3, 8, 8), tasks=((0, 1, 2), (3, 4, 5)))
STILL = Partial(padding=0, flip=0.0)
"""The augmentation that changes nothing."""


class Core(nn.Module):
    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(image[0], 5, 3, padding=1), nn.BatchNorm2d(5)
        self.classifier = nn.Linear(5, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu().mean((2, 3))


def images(seed: int, labels: list[int]) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (len(labels), 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.tensor(labels), name="stream")


def make(method: GSA | None = None, spec: Spec = SPEC, **more: Any) -> Learner:
    more = {"memory": 40, "replay_size": 12, "precision": "fp64", "boundaries": Oracle(), "augment": STILL} | more
    return Learner(spec, method or GSA(current_rows=5), net=Custom(Core), **more)


def remember(learner: Learner, labels: list[int], seed: int = 90) -> None:
    rows = images(seed, labels)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())


def begin(learner: Learner, labels: list[int], seed: int = 50) -> Step:
    rows = images(seed, labels)
    return learner.step(rows, learner.meet(rows))


def in_task_1(learner: Learner, old: int = 3, new: int = 0) -> None:
    """As if the first classes had been learnt long ago, and the next ones since; without these, at the end of the first task."""
    learner.task, learner.since, learner.clock.batches = int(new > 0), 1, 1
    learner.seen[: old + new] = True
    learner.new[:] = False
    learner.new[old : old + new] = True


@dataclass
class Drawn:
    """What a step drew from the memory, in its order: rows of the current classes, then of the older ones."""

    rows: list[Batch]
    asked: list[tuple[int, bool]]


def watch(step: Step) -> Drawn:
    drawn, draw = Drawn([], []), step.draw

    def noted(n: int, classes: Tensor | None = None, replace: bool = False) -> Batch:
        drawn.rows.append(draw(n, classes, replace))
        drawn.asked.append((n, replace))
        return drawn.rows[-1]

    step.draw = noted  # type: ignore[method-assign]
    return drawn


# ---- the equations, slowly


class Slow:
    """Per-class sums in plain numbers, over all updates."""

    def __init__(self, classes: int):
        self.pull, self.push = [0.0] * classes, [0.0] * classes

    def mixed(self, logits: list[list[float]], y: list[int], since: int) -> float:
        """L_w, after these images were counted."""
        p = [[math.exp(v) / sum(map(math.exp, z)) for v in z] for z in logits]
        for row, label in zip(p, y, strict=True):
            for c, value in enumerate(row):
                if c == label:
                    self.pull[c] += 1 - value
                else:
                    self.push[c] += value
        total = 0.0
        for row, label in zip(p, y, strict=True):
            w = 1.0 if since < 5 else 2 / (1 + math.exp(1 - self.pull[label] / self.push[label]))
            total -= w * math.log(row[label])
        return total / len(y)


def slow_ce(logits: list[list[float]], y: list[int]) -> float:
    return sum(math.log(sum(map(math.exp, z))) - z[c] for z, c in zip(logits, y, strict=True)) / len(y)


def logits_of(net: Any, x: Tensor) -> list[list[float]]:
    return net(x.to(f64) / 255).tolist()


STREAM = [[0, 0, 1], [1, 0, 1], [2, 0, 1], *[[0, 1, 2]] * 6, [3, 3, 3], [3, 4, 3], *[[3, 4, 5], [5, 4, 3]] * 3]
"""Labels of batches: in either task the last class comes late."""


@pytest.mark.parametrize("authors", [False, True])
def test_the_loss_is_its_equation_along_two_tasks(authors: bool) -> None:
    learner = make(GSA(current_rows=5, authors=authors))
    slow, since, task, met, met_before = Slow(6), 0, 0, set[int](), set[int]()
    for i, labels in enumerate(STREAM):
        if max(labels) > 2 and task == 0:
            since, task, met_before = 0, 1, set(met)
        met |= set(labels)
        again = deepcopy(learner)
        step = begin(again, labels, i)
        drawn, net = watch(step), deepcopy(again.student)
        loss = again.method.loss(step)
        if i == 0:
            assert loss is None, "there is nothing to draw"
        else:
            assert loss is not None
            own, older = drawn.rows
            share = len(met - met_before) / len(met)
            assert drawn.asked == [(5, authors), (int(12 * (1 - share)), authors)]
            x, y = torch.cat([step.stream.x, own.x]), labels + own.y.tolist()
            k = int(12 * share)
            first, end = (3 * task, 3 * task + 3) if authors else (len(met_before), len(met))
            z = logits_of(net, torch.cat([older.x, x[:k]]))
            mixed = slow.mixed([row[:end] for row in z], older.y.tolist() + y[:k], since)
            current = slow_ce([row[first:end] for row in logits_of(net, x)], [c - first for c in y])
            assert loss.item() == pytest.approx(2 * mixed + current, rel=1e-6)
            state = step.state[again.method]
            assert (state["count"] - state["positive"]).tolist() == pytest.approx(slow.pull, abs=1e-4)
            assert state["negative"].tolist() == pytest.approx(slow.push, abs=1e-4)
        learner.observe(images(i, labels))
        assert learner.task == task
        since += 1
    assert since > 5 and task == 1


def test_its_gradient_is_that_of_the_equation_with_weights_that_are_constants() -> None:
    learner = make()
    remember(learner, [0, 1, 2] * 6)
    in_task_1(learner)
    learner.since = 5
    learner.state[learner.method] = {
        "count": torch.full((6,), 9.0), "positive": torch.arange(6.0), "negative": torch.arange(6.0) + 1
    }  # fmt: skip
    rows = images(50, [3, 3])
    present = learner.meet(rows)
    learner.since = 5  # meeting class 3 began a task
    step = learner.step(rows, present)
    drawn, net = watch(step), deepcopy(learner.student)
    loss = learner.method.loss(step)
    assert loss is not None
    loss.backward()
    own, older = drawn.rows
    mixed = older + (step.stream + own)[: int(12 / 4)]
    w = GSA().weights(step.state[learner.method])[mixed.y]
    log_p = net(mixed.x.to(f64) / 255)[:, :4].log_softmax(1)
    expected = 2 * (w * F.nll_loss(log_p, mixed.y, reduction="none")).mean()  # class 3 alone: the other term is 0
    expected.backward()
    for mine, theirs in zip(learner.student.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-9)


# ---- (h) 1


@pytest.mark.parametrize("authors", [False, True])
def test_h1_the_current_term_has_no_gradient_on_any_other_column(authors: bool) -> None:
    learner = make(GSA(authors=authors))
    remember(learner, [0, 1, 2] * 6)
    in_task_1(learner, new=1)
    step = begin(learner, [3, 4, 3])
    method = learner.method
    assert isinstance(method, GSA)
    first, end = method.columns_of(step)
    assert (first, end) == (3, 6 if authors else 5), "class 5 was not met"
    method.current_loss(step, step.stream, first, end).backward()
    slope = learner.student.classifier.weight.grad.abs().sum(1)  # type: ignore[union-attr]
    assert slope[:first].max() == 0 and slope[first:end].min() > 0 and (authors or slope[end:].max() == 0)


# ---- (h) 2 and 3


def sums(*rows: tuple[int, list[float]], classes: int = 3) -> dict[str, Tensor]:
    state = {k: torch.zeros(classes, dtype=f64) for k in ("count", "positive", "negative")}
    for y, p in rows:
        GSA().count(state, torch.tensor([p], dtype=f64), torch.tensor([y]))
    return state


def test_h2_the_sums_of_the_specification() -> None:
    state = sums((0, [0.7, 0.2, 0.1]))
    assert (state["count"] - state["positive"]).tolist() == pytest.approx([0.3, 0, 0])
    assert state["negative"].tolist() == pytest.approx([0, 0.2, 0.1])
    state = sums((0, [0.7, 0.2, 0.1]), (1, [0.4, 0.5, 0.1]))
    pull = state["count"] - state["positive"]
    assert pull.tolist() == pytest.approx([0.3, 0.5, 0]) and state["negative"].tolist() == pytest.approx([0.4, 0.2, 0.2])
    ratio = pull / state["negative"]
    assert ratio[:2].tolist() == pytest.approx([0.75, 2.5])
    assert GSA().weights(state)[:2].tolist() == pytest.approx([2 / (1 + math.exp(0.25)), 2 / (1 + math.exp(-1.5))])


def test_h2_a_batch_counts_as_its_images_one_by_one() -> None:
    rows = [(0, [0.7, 0.2, 0.1]), (1, [0.4, 0.5, 0.1]), (0, [0.1, 0.3, 0.6])]
    state = {k: torch.zeros(3, dtype=f64) for k in ("count", "positive", "negative")}
    GSA().count(state, torch.tensor([p for _, p in rows], dtype=f64), torch.tensor([y for y, _ in rows]))
    for name, value in sums(*rows).items():
        torch.testing.assert_close(state[name], value)


def test_h3_the_sum_of_all_pulls_is_the_sum_of_all_pushes() -> None:
    learner = make()
    for i, labels in enumerate(STREAM):
        learner.observe(images(i, labels))
        state = learner.state[learner.method]
        pull, push = (state["count"] - state["positive"]).sum(), state["negative"].sum()
        assert pull.item() == pytest.approx(push.item(), abs=1e-4) and (i == 0 or push > 0)
        assert state["negative"][~learner.seen].abs().sum() == 0 and state["count"][~learner.seen].sum() == 0
    assert push > 20


# ---- (h) 4


def weight_of(ratio: float) -> float:
    state = {"count": torch.tensor([ratio], dtype=f64), "positive": torch.zeros(1, dtype=f64)}
    return GSA().weights(state | {"negative": torch.ones(1, dtype=f64)}).item()


def test_h4_the_weight_is_1_at_balance_and_grows_from_0_54_to_2() -> None:
    ratios = [0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 20.0]
    found = [weight_of(r) for r in ratios]
    assert found == sorted(found) and len(set(found)) == len(found)
    assert found[0] == pytest.approx(0.5379, abs=5e-5) == pytest.approx(2 / (1 + math.e), abs=5e-5)
    assert weight_of(1.0) == 1.0 and weight_of(2.0) == pytest.approx(1.4621, abs=5e-5)
    assert 1.99 < found[-1] < 2 and weight_of(1e9) == 2


def test_h4_weights_are_1_in_the_first_5_batches_of_a_task_while_the_sums_go_on() -> None:
    learner = make()
    remember(learner, [0, 1, 2] * 6)
    in_task_1(learner, new=2)
    method = learner.method
    assert isinstance(method, GSA)
    skewed = {"count": torch.full((6,), 50.0), "positive": torch.zeros(6), "negative": torch.full((6,), 5.0)}  # ratio 10
    for since in range(8):
        again = deepcopy(learner)
        again.since = since
        again.state[method].update({k: v.clone() for k, v in skewed.items()})
        step = begin(again, [3, 4, 3])
        batch = step.stream
        loss = method.mixed_loss(step, batch, 5)
        plain = F.cross_entropy(step.student(step.aug(batch)).logits[:, :5], batch.y)
        assert (loss.item() == pytest.approx(plain.item(), rel=1e-9)) == (since < 5)
        assert step.state[method]["count"].sum() == 303
        if since >= 5:
            assert loss > 1.9 * plain


def test_h4_the_sums_outlive_the_boundary() -> None:
    learner = make()
    for i, labels in enumerate(STREAM[:9]):
        learner.observe(images(i, labels))
    before = {k: v.clone() for k, v in learner.state[learner.method].items()}
    learner.observe(images(9, [3, 3, 3]))
    assert learner.task == 1 and learner.since == 1
    assert all((learner.state[learner.method][k][:3] >= before[k][:3]).all() and before[k][:3].min() > 0 for k in before)


# ---- (h) 5


def test_h5_the_mix_is_half_old_and_half_current_when_half_of_the_classes_are_new() -> None:
    spec = Spec(100, (3, 8, 8), tasks=tuple(tuple(range(t, t + 10)) for t in range(0, 100, 10)))
    learner = make(GSA(), spec, memory=300, replay_size=64)
    remember(learner, [i % 20 for i in range(300)])
    in_task_1(learner, old=10, new=10)
    step = begin(learner, [10 + i for i in range(10)])
    drawn = watch(step)
    assert learner.method.loss(step) is not None
    own, older = drawn.rows
    assert drawn.asked == [(22, False), (32, False)] and (len(own), len(older)) == (22, 32)
    assert own.y.min() >= 10 and older.y.max() < 10, "no image of the current task in the memory's part"
    assert sorted(step.student.images) == [32, 64]
    assert learner.state[learner.method]["count"][:10].sum() == 32 == learner.state[learner.method]["count"][10:].sum()


@pytest.mark.parametrize(("old", "new", "stream", "expected"), [(0, 4, 10, (0, 32)), (3, 1, 10, (48, 16)), (3, 3, 4, (32, 26))])
def test_h5_the_mix_has_what_there_is(old: int, new: int, stream: int, expected: tuple[int, int]) -> None:
    learner = make(GSA(), memory=300, replay_size=64)
    remember(learner, [i % (old + new) for i in range(300)])
    in_task_1(learner, old, new)
    step = begin(learner, [old] * stream)
    drawn = watch(step)
    learner.method.loss(step)
    assert len(drawn.rows[1]) == expected[0]
    count = learner.state[learner.method]["count"]
    assert (count[:old].sum(), count[old:].sum()) == expected


def test_h5_the_stream_comes_first_in_the_mix() -> None:
    learner = make(GSA(), memory=300, replay_size=16)
    remember(learner, [0, 1, 2, 3] * 75)
    in_task_1(learner, 3, 1)
    step = begin(learner, [3] * 6)
    learner.method.loss(step)
    names = {name for call in step.student.calls for name in call}
    assert "aug(draw1)" in names and any(name.startswith("aug(stream+draw0[0:4]") for name in names)


def test_the_mix_has_augmentations_of_its_own() -> None:
    learner = make(GSA(), memory=300, replay_size=64, augment=Partial(padding=4))
    remember(learner, [0, 1] * 100)
    step_labels = [0, 1, 0, 1]
    in_task_1(learner, 0, 2)
    step = begin(learner, step_labels)
    given: list[Tensor] = []
    learner.student.core.conv.register_forward_pre_hook(lambda _, args: given.append(args[0].detach().clone()))  # type: ignore
    learner.method.loss(step)
    one, two = given
    assert len(one) == len(two) == 26 and not torch.equal(one, two)


# ---- (h) 6


def test_h6_with_weights_of_1_it_is_twice_cross_entropy_and_cross_entropy() -> None:
    learner = make()
    remember(learner, [0, 1, 2, 3, 4] * 6)
    in_task_1(learner, new=2)
    step = begin(learner, [3, 4])
    drawn, net = watch(step), deepcopy(learner.student)
    loss = learner.method.loss(step)
    assert loss is not None
    own, older = drawn.rows
    x, y = torch.cat([step.stream.x, own.x]), torch.cat([step.stream.y, own.y])
    k = int(12 * 2 / 5)
    seen = F.cross_entropy(net(torch.cat([older.x, x[:k]]).to(f64) / 255)[:, :5], torch.cat([older.y, y[:k]]))
    current = F.cross_entropy(net(x.to(f64) / 255)[:, 3:5], y - 3)
    assert loss.item() == pytest.approx((2 * seen + current).item(), rel=1e-10)


def test_h6_the_rows_of_new_classes_move_with_the_first_step() -> None:
    for authors, moved in (False, [0, 1, 2, 3, 4]), (True, [0, 1, 2, 3, 4, 5]):
        learner = make(GSA(current_rows=5, authors=authors), optim=SGD(lr=0.1))
        remember(learner, [0, 1, 2] * 6)
        in_task_1(learner)
        before = learner.student.classifier.weight.detach().clone()
        learner.observe(images(50, [3, 4, 3]))
        change = (learner.student.classifier.weight.detach() - before).abs().sum(1)
        assert change.nonzero().squeeze(1).tolist() == moved, "class 5 was not met"


# ---- columns and draws


def test_columns_are_the_classes_met_and_whole_tasks_for_the_authors() -> None:
    for authors, first, second in (False, (0, 2), (3, 4)), (True, (0, 3), (3, 6)):
        learner = make(GSA(authors=authors))
        method = learner.method
        assert isinstance(method, GSA)
        assert method.columns_of(begin(learner, [0, 1])) == first
        learner.observe(images(0, [0, 1, 2]))
        assert method.columns_of(begin(learner, [3])) == second


def test_only_the_authors_draw_an_image_twice() -> None:
    for authors in False, True:
        learner = make(GSA(authors=authors), memory=200)
        remember(learner, [0] * 3 + [3] * 4)
        in_task_1(learner, 3, 1)
        step = begin(learner, [3, 3])
        drawn = watch(step)
        learner.method.loss(step)
        own, older = drawn.rows
        assert (len(own), len(older)) == ((22, 9) if authors else (4, 3))
        assert len(own.x.unique(dim=0)) <= 4 and len(older.x.unique(dim=0)) <= 3
    cifar = source("cifar10")
    assert recipe("gsa", cifar).method == GSA(authors=False) and recipe("gsa", cifar, family="published").method == GSA(
        authors=True
    )


def test_nothing_is_learnt_from_the_very_first_batch() -> None:
    learner = make()
    before = learner.student.classifier.weight.detach().clone()
    assert learner.observe(images(0, [0, 0, 1])) == {} and torch.equal(before, learner.student.classifier.weight)
    assert len(learner.memory) == 3 and "loss" in learner.observe(images(1, [0, 1, 1]))


def test_a_class_whose_rivals_were_never_seen_gives_no_nan() -> None:
    learner = make(GSA(patience=0))
    for i in range(4):
        learner.observe(images(i, [0, 0]))
        assert all(p.isfinite().all() for p in learner.student.parameters())
    state = learner.state[learner.method]
    assert state["negative"].sum() == 0 and state["count"][0] > 0
    learner.observe(images(9, [0, 1]))
    assert all(p.isfinite().all() for p in learner.student.parameters())
    assert GSA().weights(state).isfinite().all()


def test_weights_where_nothing_was_counted_or_nobody_pushed_are_finite() -> None:
    zero = {k: torch.zeros(2) for k in ("count", "positive", "negative")}
    assert GSA().weights(zero).tolist() == pytest.approx([0.5379, 0.5379], abs=5e-5)
    assert GSA().weights(zero | {"count": torch.ones(2)}).tolist() == [2, 2]


def test_a_replay_too_small_for_its_shares_gives_no_nan() -> None:
    learner = make(replay_size=1)
    remember(learner, [0, 1, 2] * 6)
    in_task_1(learner, 3, 2)
    found = learner.observe(images(0, [3, 4]))
    assert all(v.isfinite().all() for v in found.values()) and learner.student.classifier.weight.isfinite().all()


# ---- blurry streams


def blurry(**more: Any) -> Learner:
    config = recipe("gsa", source("cifar10"), stream="blurry", family=more.pop("family", "default"))
    assert isinstance(config.stream, Blurry) and config.boundaries is None
    small = {"net": Custom(Core), "memory": 40, "replay_size": 12, "precision": "fp32"}
    return replace(config, **(small | more)).learner(SPEC, sharp=False)


def test_blurry_streams_are_refused_with_the_papers_reason() -> None:
    with pytest.raises(Refused, match=r"`GSA` cannot be run on a `Blurry` stream.*the paper leaves it out there.*NewClass"):
        blurry()


@pytest.mark.parametrize("family", ["default", "published"])
def test_with_a_rule_they_are_run(family: Any) -> None:
    """Classes arrive before and after the tasks that the stream has on paper."""
    learner = blurry(boundaries=NewClass(lag=2), family=family)
    for i, labels in enumerate([[0, 1], [0, 2], [1, 3], [0, 3], [3, 1], [4, 2], [0, 4], [1, 5], [5, 0], [3, 5]]):
        found = learner.observe(images(i, labels))
        assert i == 0 or found["loss"].isfinite()
    assert learner.task == 3 and all(p.isfinite().all() for p in learner.student.parameters())


def test_an_image_of_an_old_class_has_no_part_in_the_current_term() -> None:
    learner = make(boundaries=NewClass(lag=1))
    remember(learner, [0, 1, 2, 3, 4] * 4)
    in_task_1(learner, new=2)
    step = begin(learner, [0, 3, 2, 4])
    method = learner.method
    assert isinstance(method, GSA) and step.task == 1
    loss = method.current_loss(step, step.stream, 3, 5)
    z = step.student(step.aug(step.stream)).logits
    assert loss.item() == pytest.approx(slow_ce(z[[1, 3], 3:5].tolist(), [0, 1]), rel=1e-12)
    alone = begin(learner, [0, 1])
    assert method.current_loss(alone, alone.stream, 3, 5).item() == 0, "nor does it give a NaN when there is no other"


# ---- what is forwarded, alone and with MKD


def paper(word: str, *, family: Any = "default", **more: Any) -> Learner:
    """The recipe's learner on small images, at the beginning of its second task's tenth batch, with 80 images remembered."""
    spec = Spec(4, (3, 8, 8), tasks=((0, 1), (2, 3)))
    config = recipe(word, source("cifar10"), family=family)
    config = replace(config, **({"net": ResNet18(width=2), "memory": 200, "precision": "fp32"} | more))
    learner = config.learner(spec, sharp=True)
    remember(learner, [0, 1, 2, 3] * 50)
    in_task_1(learner, 2, 2)
    return learner


BUDGETS = {  # images of the student, of its teacher, units
    ("gsa", "default"): ([32, 64], [], 288),
    ("gsa", "published"): ([32, 64], [], 288),
    ("gsa+mkd", "default"): ([32, 64, 74, 74], [74], 806),
    ("gsa+mkd", "published"): ([32, 64, 74, 74], [74], 806),
    ("gsa+sdp", "default"): ([32, 64, 74], [74], 584),
    ("gsa+sdp", "published"): ([32, 64, 74], [74], 584),
}


@pytest.mark.parametrize("key", BUDGETS, ids=str)
def test_a_step_costs_what_the_table_says(key: tuple[str, Any]) -> None:
    student, teacher, units = BUDGETS[key]
    learner = paper(key[0], family=key[1])
    step = begin(learner, [2, 3] * 5)
    loss = learner.method.loss(step)
    assert loss is not None
    if learner.distill is not None:
        learner.distill.loss(step, loss)
    assert sorted(step.student.images[:2]) == student[:2] and step.student.images[2:] == student[2:]
    assert (step.teacher.images if learner.followers else []) == teacher
    assert 3 * sum(student) + sum(teacher) == units
    assert [n for _, n in step.student.peeks] == ([74] if "sdp" in key[0] else [])


def test_the_current_images_go_through_before_the_mix_as_in_the_authors_code() -> None:
    """Running statistics depend on it: "Inference 1" and "Inference 2" of `baselines/gsa.py`."""
    step = begin(learner := paper("gsa"), [2, 3] * 5)
    learner.method.loss(step)
    assert step.student.images == [32, 64]


def test_mkd_replays_64_rows_of_its_own() -> None:
    learner = paper("gsa+mkd")
    step = begin(learner, [2, 3] * 5)
    loss = learner.method.loss(step)
    assert loss is not None and learner.distill is not None
    learner.distill.loss(step, loss)
    own = ("mkd:raw(replay)", "mkd:raw(stream)"), ("mkd:aug(replay)", "mkd:aug(stream)")
    assert step.student.calls[2:] == list(own) and step.teacher.calls == [own[1]]
    assert len(step.replay) == 64 == len(step.replay.x.unique(dim=0))


def inputs(learner: Learner, batches: list[Batch]) -> list[list[Tensor]]:
    """Whatever the student's first convolution is given, batch by batch."""
    given: list[Tensor] = []
    conv = next(m for m in learner.student.modules() if isinstance(m, nn.Conv2d))
    conv.register_forward_pre_hook(lambda _, args: given.append(args[0].detach().clone()))
    found = []
    for batch in batches:
        given.clear()
        learner.observe(batch)
        found.append(list(given))
    return found


def test_mkd_changes_no_draw_of_gsa() -> None:
    batches = [images(i, [2, 3, 2]) for i in range(4)]
    learners = [paper(word, replay_size=8) for word in ("gsa", "gsa+mkd")]
    plain, with_mkd = (inputs(learner, batches) for learner in learners)
    for ours, theirs in zip(plain, with_mkd, strict=True):
        assert (len(ours), len(theirs)) == (2, 4)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs[:2], strict=True))
    first, second = (learner.memory.state_dict() for learner in learners)
    assert all(torch.equal(first[k], second[k]) for k in first)
    a, b = (learner.student.classifier.weight for learner in learners)
    assert not torch.equal(a, b), "though it learnt something else"


@pytest.mark.parametrize(("distill", "own"), [(MKD(draw="main"), "mkd"), (SDP(draw="main"), "sdp")])
def test_a_distiller_cannot_take_gsas_views_and_says_which_to_take(distill: MKD | SDP, own: str) -> None:
    learner = Learner(SPEC, GSA(), teacher=EMA(0.01), distill=distill, net=ResNet18(width=2), memory=20, boundaries=Oracle())
    rows = Batch(torch.zeros(6, *SPEC.image, dtype=torch.uint8), torch.tensor([0, 1] * 3))
    learner.observe(rows)
    with pytest.raises(Refused, match=f"`draw=main` takes the method's own views.*--distill.draw {own}"):
        learner.observe(rows)
