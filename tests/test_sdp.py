"""SDP against a slow rewriting of its equations, the values worked out by hand, and the properties asked of it.

The teacher by itself, (h) 1 to 3 of `spec/methods.md` section 10, is in `test_teachers.py`; its weights are summed once more below.
Where the specification says otherwise, these were decided (`design.md`, section 16; `methods.md`, section 12):
- (h) 5: no learning-rate schedule, so w = 0 leaves the rate alone and there is no "lr 0" at w = 1; with the factor K / (K + 1),
  w never exceeds (K - 1) / (K + 1), so that there is always some cross-entropy.
- (h) 6: the memory is the one reservoir of all methods, so it is not balanced by class.
- (a) w comes from the student on the augmented batch, in evaluation mode, not from the teacher on incoming images; the
  cross-entropy that (1 - w) scales is the method's own loss, and for GSA one of its own beside an untouched base.
"""

from __future__ import annotations

import math
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.augment import Partial
from onepass.data import source
from onepass.distill import SDP, feature_slope
from onepass.learner import Adam, Learner
from onepass.method import Method
from onepass.methods.er import ER
from onepass.nets import Cosine, CosineClassifier, ResNet18
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Spec
from onepass.teachers import HypoExponential

f64 = torch.float64
SPEC = Spec(4, (3, 8, 8), tasks=((0, 1), (2, 3)))
PAPER = HypoExponential(mu=100, c2=0.75)


@dataclass(frozen=True)
class CosineER(Method):
    """ER with a cosine classifier."""

    classifier: ClassVar[Any] = Cosine(temperature=0.2)

    def loss(self, step: Step) -> Tensor | None:
        return ER().loss(step) if len(step.replay) else None


def images(seed: int, labels: list[int]) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(64, (len(labels), 3, 8, 8), dtype=torch.uint8, generator=generator)
    y = torch.tensor(labels)
    return Batch(x + (64 * y).to(torch.uint8)[:, None, None, None], y, name="stream")  # easy to tell apart


def make(method: Method | None = None, distill: SDP | None = None, **more: Any) -> Learner:
    more = {"teacher": HypoExponential(mu=10, c2=0.5), "memory": 20, "replay_size": 8, "precision": "fp64"} | more
    return Learner(SPEC, method or ER(), net=ResNet18(width=2), distill=distill or SDP(), optim=Adam(lr=0.01), **more)


def begin(learner: Learner, labels: list[int], seed: int = 50) -> Step:
    rows = images(seed, labels)
    return learner.step(rows, learner.meet(rows))


# ---- the equations, slowly


class Slow:
    """The last probabilities of each class, one image after the other."""

    def __init__(self, window: int = 100):
        self.last: dict[int, deque[float]] = {}
        self.window = window

    def w(self, confidences: list[float], y: list[int], classes: int) -> float:
        for p, c in zip(confidences, y, strict=True):
            self.last.setdefault(c, deque(maxlen=self.window)).append(p)
        m = sum(sum(d) / len(d) for d in self.last.values()) / classes
        return min(max(m - 1 / classes, 0), 1) * classes / (classes + 1)


def softmax(z: list[float]) -> list[float]:
    total = sum(map(math.exp, z))
    return [math.exp(v) / total for v in z]


def slow_slope(classifier: nn.Module, h: Tensor, y: int) -> list[float]:
    """d CE / d h of one image: (p - e) W for a linear classifier, by differences for another."""
    if isinstance(classifier, nn.Linear):
        d = softmax(classifier(h[None])[0].tolist())
        d[y] -= 1
        weight = classifier.weight.tolist()
        return [sum(d[c] * weight[c][k] for c in range(len(d))) for k in range(len(h))]
    slope = []
    for k in range(len(h)):
        up, down = h.clone(), h.clone()
        up[k] += 1e-5
        down[k] -= 1e-5
        above, below = (-math.log(softmax(classifier(v[None])[0].tolist())[y]) for v in (up, down))
        slope.append((above - below) / 2e-5)
    return slope


@torch.no_grad()
def slow_parts(student: Any, teacher: Any, x: Tensor, y: list[int], slow: Slow, classes: int) -> tuple[float, float, float, float]:
    """Cross-entropy, the mean of D, beta and w.  The networks are given as they were before the step."""
    student.train()
    h, h_teacher = student.features(x), teacher.net.features(x)
    z = student.classifier(h)
    ce = sum(-math.log(softmax(row)[c]) for row, c in zip(z.tolist(), y, strict=True)) / len(y)
    gaps = [sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for p, q in zip(h.tolist(), h_teacher.tolist(), strict=True)]
    slopes = [slow_slope(student.classifier, h[i], y[i]) for i in range(len(y))]
    beta = sum(math.sqrt(sum(s * s for s in g) / (4 * d + 1e-8)) for g, d in zip(slopes, gaps, strict=True)) / len(y)
    student.eval()  # by running statistics that this forward has moved
    confidences = [softmax(student(x[i : i + 1])[0].tolist())[y[i]] for i in range(len(y))]
    return ce, sum(gaps) / len(gaps), beta, slow.w(confidences, y, classes)


STREAM = [[0, 0, 1], [0, 1, 1], [2, 0, 1], [2, 2, 0], [2, 3, 3], [3, 2, 3]]


@pytest.mark.parametrize("method", [ER(), CosineER()], ids=["linear", "cosine"])
def test_the_loss_is_its_equation_along_a_stream(method: Method) -> None:
    learner, slow, met, largest = make(method), Slow(), set[int](), 0.0
    for c in (0, 1):  # as if these had been known for long
        slow.last[c] = deque([0.9] * 100, maxlen=100)
        learner.state[learner.distill]["ring"][c, :100] = 0.9
        learner.state[learner.distill]["count"][c] = 100
    assert isinstance(learner.student.classifier, CosineClassifier if method == CosineER() else nn.Linear)
    for i, labels in enumerate(STREAM):
        met |= set(labels)
        again = deepcopy(learner)
        student, teacher = deepcopy(learner.student), deepcopy(learner.followers["teacher"])
        step = begin(again, labels, i)
        base = again.method.loss(step)
        assert (base is None) == (i == 0)
        if base is not None:
            assert again.distill is not None
            loss = again.distill.loss(step, base)
            view = step.aug(step.both)
            ce, gap, beta, w = slow_parts(student, teacher, view.x, view.y.tolist(), slow, len(met))
            assert base.item() == pytest.approx(ce, rel=1e-9) and (i == 1 or gap > 0)
            assert loss.item() == pytest.approx((1 - w) * ce + beta * w * gap, rel=1e-5, abs=1e-9)
            largest = max(largest, w)
        found = learner.observe(images(i, labels))
        assert base is None or found["loss"].item() == pytest.approx(loss.item(), rel=1e-9)
    assert largest > 0.2


def skewed(w: float, **more: Any) -> Learner:
    """A learner that has learnt a little, and whose ring is full of such probabilities that its w is about this."""
    learner = make(**more)
    for i in range(4):
        learner.observe(images(i, [0, 1, 2, 3]))
    learner.state[learner.distill]["ring"][:] = w * 5 / 4 + 1 / 4
    learner.state[learner.distill]["count"][:] = 100_000
    return learner


@pytest.mark.parametrize("method", [ER(), CosineER()], ids=["linear", "cosine"])
def test_its_gradient_takes_beta_and_w_for_numbers(method: Method) -> None:
    learner = skewed(0.3, method=method)
    student, teacher = deepcopy(learner.student), deepcopy(learner.followers["teacher"])
    step = begin(learner, [0, 1, 2])
    base = learner.method.loss(step)
    assert base is not None and learner.distill is not None
    loss = learner.distill.loss(step, base)
    learner.student.zero_grad(set_to_none=True)
    loss.backward()
    view = step.aug(step.both)
    _, gap, beta, _ = slow_parts(deepcopy(student), deepcopy(teacher), view.x, view.y.tolist(), Slow(), 4)
    w = (base.item() - loss.item()) / (base.item() - beta * gap)
    assert 0.2 < w < 0.4
    h = student.features(view.x)
    d = (h - teacher.net.features(view.x).detach()).square().sum(1).mean()
    ((1 - w) * F.cross_entropy(student.classifier(h), view.y) + beta * w * d).backward()
    for mine, theirs in zip(learner.student.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    assert all(p.grad is None for p in learner.followers["teacher"].parameters())


@pytest.mark.parametrize("bias", [True, False])
def test_the_slope_of_a_linear_classifier_is_its_closed_form(bias: bool) -> None:
    torch.manual_seed(0)
    classifier, h, y = nn.Linear(3, 5, bias=bias).double(), torch.randn(4, 3, dtype=f64), torch.tensor([0, 4, 2, 0])
    found = feature_slope(classifier, h, y)
    expected = (classifier(h).softmax(1) - F.one_hot(y, 5)) @ classifier.weight
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
    assert not found.requires_grad and classifier.weight.grad is None


def test_the_slope_of_a_cosine_classifier_is_along_the_sphere() -> None:
    torch.manual_seed(0)
    classifier, h = CosineClassifier(3, 5, 0.2).double(), torch.randn(4, 3, dtype=f64)
    found = feature_slope(classifier, h, torch.tensor([0, 4, 2, 0]))
    for i, c in enumerate((0, 4, 2, 0)):
        assert found[i].tolist() == pytest.approx(slow_slope(classifier, h[i].detach(), c), abs=1e-6)
    assert (found * h).sum(1).abs().max() < 1e-5 < found.norm(dim=1).min()


# ---- (h) 1


def test_h1_the_weights_of_past_students_sum_to_1_with_mean_100_and_variance_7500() -> None:
    a1, a2 = PAPER.rates
    ages = [a1 * a2 / (a2 - a1) * ((1 - a1) ** k - (1 - a2) ** k) for k in range(20_000)]
    mean = sum((k + 1) * w for k, w in enumerate(ages))
    assert sum(ages) == pytest.approx(1, abs=1e-9) and mean == pytest.approx(100, abs=1e-6)
    assert sum((k + 1 - mean) ** 2 * w for k, w in enumerate(ages)) == pytest.approx(7500, abs=1e-4)
    teacher = recipe("er+sdp", source("cifar10")).teacher
    assert isinstance(teacher, HypoExponential) and (teacher.mu, teacher.c2) == (100, 0.75)


# ---- (h) 4


class Stub:
    """A step of two images, worked out by hand: W = I, z = (1, 0) of class 1 and (0, 1) of class 0, and D = 1."""

    def __init__(self, confidence: float):
        self.classifier = nn.Linear(2, 2, bias=False, dtype=f64)
        with torch.no_grad():
            self.classifier.weight.copy_(torch.eye(2))
        self.h = torch.eye(2, dtype=f64).requires_grad_()
        self.far = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=f64)  # from either, by 1
        y = torch.tensor([1, 0])
        log = math.log(confidence / (1 - confidence))
        sure = torch.tensor([[0.0, log], [log, 0.0]], dtype=f64)
        peek = SimpleNamespace(logits=sure)
        out = SimpleNamespace(features=self.h, logits=self.classifier(self.h))
        self.ready, self.both, self.seen = True, None, torch.tensor([True, True])
        self.student = type("S", (), {"__call__": lambda *_: out, "peek": lambda *_, **__: peek, "splits": lambda *_: False})()
        self.student.net = SimpleNamespace(classifier=self.classifier)
        self.teacher = lambda _: SimpleNamespace(features=self.far)
        self.aug = lambda *_: SimpleNamespace(y=y)
        self.there = lambda mask: mask
        self.sdp = SDP()
        self.state = {self.sdp: self.sdp.state(Spec(2, (1, 1, 1)))}

    def loss(self, base: Tensor) -> Tensor:
        return self.sdp.loss(self, base)  # type: ignore[arg-type]


def test_h4_beta_has_the_value_of_the_specification() -> None:
    stub = Stub(0.9)
    slope = feature_slope(stub.classifier, stub.h, torch.tensor([1, 0]))
    assert slope.norm(dim=1).tolist() == pytest.approx([1.033873] * 2, abs=1e-6)
    w = (0.9 - 1 / 2) * 2 / 3
    loss = stub.loss(torch.tensor(7.0, dtype=f64))
    assert (loss.item() - (1 - w) * 7) / w == pytest.approx(0.516936, abs=1e-6)


def test_h4_beta_and_w_have_no_gradient() -> None:
    stub = Stub(0.9)
    (slope,) = torch.autograd.grad(stub.loss(torch.tensor(7.0, dtype=f64)), stub.h)
    w = (0.9 - 1 / 2) * 2 / 3
    torch.testing.assert_close(slope, 0.516936 * w * 2 * (stub.h - stub.far).detach() / 2, rtol=1e-5, atol=1e-7)


def test_h4_the_gradients_of_both_terms_on_the_features_are_of_one_size() -> None:
    stub = Stub(0.9)
    slope = feature_slope(stub.classifier, stub.h, torch.tensor([1, 0])).norm(dim=1)
    far = (2 * (stub.h - stub.far)).norm(dim=1)
    assert (0.516936 * far).tolist() == pytest.approx(slope.tolist(), abs=2e-6)


# ---- (h) 5, and the schedule


def schedule(state: dict[str, Tensor], confidences: list[float], y: list[int], seen: list[int], window: int = 100) -> float:
    mask = torch.zeros(len(state["count"]), dtype=torch.bool)
    mask[seen] = True
    return SDP(window=window).schedule(state, torch.tensor(confidences), torch.tensor(y), mask).item()


def test_h5_w_by_hand() -> None:
    state = SDP().state(SPEC)
    assert schedule(state, [1.0, 1.0], [0, 0], [0]) == 0, "with one class there is nothing to guess"
    assert schedule(state, [0.6, 0.8], [1, 1], [0, 1]) == pytest.approx((0.85 - 0.5) * 2 / 3)
    assert schedule(state, [0.1], [2], [0, 1, 2]) == pytest.approx((1.8 / 3 - 1 / 3) * 3 / 4)
    assert schedule(state, [0.0] * 10, [0] * 10, [0, 1, 2]) == 0, "(2/12 + 0.7 + 0.1) / 3 is below chance"


def test_h5_without_w_the_loss_is_the_base_alone() -> None:
    stub = Stub(0.4)
    assert stub.loss(torch.tensor(7.0, dtype=f64)).item() == 7
    learner = make()
    learner.observe(images(0, [0, 0, 0]))
    step = begin(learner, [0, 0])
    base = learner.method.loss(step)
    assert base is not None and learner.distill is not None
    assert learner.distill.loss(step, base).item() == pytest.approx(base.item(), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_h5_a_perfect_student_has_the_largest_w_and_still_some_cross_entropy(classes: int) -> None:
    state = SDP().state(Spec(classes, (1, 1, 1)))
    w = schedule(state, [1.0] * classes, list(range(classes)), list(range(classes)))
    assert w == pytest.approx((classes - 1) / (classes + 1)) and w < 1


def test_h5_a_new_class_enters_with_its_first_probability() -> None:
    state = SDP().state(SPEC)
    schedule(state, [0.9] * 120, [0, 1] * 60, [0, 1])
    assert schedule(state, [0.3], [2], [0, 1, 2]) == pytest.approx((2.1 / 3 - 1 / 3) * 3 / 4)


def test_h5_a_class_that_was_met_and_not_yet_looked_at_gives_no_nan() -> None:
    state = SDP().state(SPEC)
    assert schedule(state, [0.9, 0.9], [0, 1], [0, 1, 2]) == pytest.approx((1.8 / 3 - 1 / 3) * 3 / 4)


# ---- the ring


@pytest.mark.parametrize(("window", "most"), [(100, 74), (100, 300), (5, 4), (5, 23), (1, 3)])
def test_the_ring_keeps_the_last_probabilities_of_each_class(window: int, most: int) -> None:
    generator = torch.Generator().manual_seed(most)
    state, slow = SDP(window=window).state(SPEC), Slow(window)
    for i in range(40):
        n = int(torch.randint(1, most + 1, (), generator=generator))
        y = torch.randint(4, (n,), generator=generator) if i % 3 else torch.full((n,), i % 4)
        p = torch.rand(n, generator=generator)
        w = schedule(state, p.tolist(), y.tolist(), [0, 1, 2, 3], window)
        assert w == pytest.approx(slow.w(p.tolist(), y.tolist(), 4), abs=1e-5)
        for c, kept in slow.last.items():
            count = int(state["count"][c])
            ring = state["ring"][c, : min(count, window)]
            assert sorted(ring.tolist()) == pytest.approx(sorted(kept), abs=1e-6)


def test_a_batch_of_more_than_100_of_a_class_leaves_its_last_100() -> None:
    state = SDP().state(SPEC)
    schedule(state, [0.0] * 30, [2] * 30, [2])
    p = [i / 250 for i in range(250)]
    schedule(state, p, [2] * 250, [2])
    assert sorted(state["ring"][2, :100].tolist()) == pytest.approx(p[-100:])
    assert int(state["count"][2]) == 280 and state["ring"][[0, 1, 3]].abs().sum() == 0
    schedule(state, [9.0], [2], [2])
    assert sorted(state["ring"][2, :100].tolist()) == pytest.approx([*p[-99:], 9.0]), "the oldest goes first"


# ---- confidences


def test_confidences_are_the_students_in_evaluation_mode_at_one_look() -> None:
    learner = skewed(0.3)
    learner.state[learner.distill]["count"][:] = 0
    learner.state[learner.distill]["ring"][:] = 0
    before = {k: b.clone() for k, b in learner.student.named_buffers()}
    step = begin(learner, [0, 1, 2])
    base = learner.method.loss(step)
    assert base is not None and learner.distill is not None
    moved = {k: b.clone() for k, b in learner.student.named_buffers()}
    learner.distill.loss(step, base)
    assert step.student.peeks == [(step.aug(step.both).name, 11)] and step.teacher.peeks == []
    assert not all(torch.equal(before[k], moved[k]) for k in before)
    assert all(torch.equal(b, moved[k]) for k, b in learner.student.named_buffers()), "a look moves nothing"
    view, alone = step.aug(step.both), deepcopy(learner.student).eval()
    expected: dict[int, list[float]] = {}
    for i in range(len(view)):
        c = int(view.y[i])
        expected.setdefault(c, []).append(alone(view.x[i : i + 1]).softmax(1)[0, c].item())
    state = step.state[learner.distill]
    for c, values in expected.items():
        assert state["ring"][c, : len(values)].tolist() == pytest.approx(values, rel=1e-5), "of all four classes' softmax"


# ---- a teacher that has nothing to teach yet


def test_a_debiased_teacher_is_asked_when_it_is_ready() -> None:
    learner = make(teacher=HypoExponential(mu=10, c2=0.5, start="debiased"))
    plain = Learner(SPEC, ER(), net=ResNet18(width=2), optim=Adam(lr=0.01), memory=20, replay_size=8, precision="fp64")
    for i in range(3):  # nothing is learnt from the first
        learner.observe(images(i, [0, 1, 2, 3]))
        plain.observe(images(i, [0, 1, 2, 3]))
    for mine, theirs in zip(learner.student.parameters(), plain.student.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert learner.followers["teacher"].updates == 2 and learner.state[learner.distill]["count"].sum() == 0
    step = begin(learner, [0, 1])
    base = learner.method.loss(step)
    assert base is not None and learner.distill is not None
    learner.distill.loss(step, base)
    assert step.ready and len(step.teacher.calls) == 1 and learner.state[learner.distill]["count"].sum() == 10


# ---- recipes

CIFAR = source("cifar10")


def paper(word: str, family: Any = "default") -> Learner:
    config = replace(recipe(word, CIFAR, family=family), net=ResNet18(width=2), memory=80, precision="fp32")
    learner = config.learner(SPEC, sharp=True)
    rows = images(0, [0, 1, 2, 3] * 50)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    learner.clock.batches = learner.task = learner.since = 1
    learner.seen[:] = True
    learner.new[2:] = True
    return learner


def step_of(learner: Learner) -> tuple[Step, Tensor, Tensor]:
    step = begin(learner, [2, 3] * 5)
    base = learner.method.loss(step)
    assert base is not None and learner.distill is not None
    return step, base, learner.distill.loss(step, base)


def test_the_recipes_have_the_authors_numbers() -> None:
    er = recipe("er+sdp", CIFAR)
    assert er.distill == SDP(scale_base=True, draw="main", window=100) and er.optim == Adam(lr=3e-4) and er.infer == "student"
    assert er.teacher == HypoExponential(100, 0.75, start="copy", statistics="batch", buffers="own")
    published = recipe("er+sdp", CIFAR, family="published")
    assert published.teacher == HypoExponential(100, 0.75, start="zero") and published.optim == Adam(lr=5e-4)
    gsa = recipe("gsa+sdp", CIFAR, family="published")
    assert gsa.teacher == HypoExponential(100, 0.75, start="zero", frozen=True) and gsa.infer == "student"
    assert gsa.distill == SDP(scale_base=False, draw="sdp")
    assert recipe("gsa+sdp", CIFAR).teacher == HypoExponential(100, 0.75, start="copy", frozen=False)


def test_er_and_sdp_cost_370_by_one_launch_each_and_one_look() -> None:
    step, _, _ = step_of(paper("er+sdp"))
    aug = ("aug(replay)", "aug(stream)")
    assert step.student.calls == [aug] and step.teacher.calls == [aug]
    assert (step.student.images, step.teacher.images) == ([74], [74])
    assert [n for _, n in step.student.peeks] == [74]
    assert 3 * 74 + 74 + 74 == 370


def test_published_er_and_sdp_start_with_a_teacher_of_nothing() -> None:
    learner = paper("er+sdp", "published")
    assert all(p.abs().max() < 1e-7 for p in learner.followers["teacher"].net.parameters()), "but for rounding"
    step, _, loss = step_of(learner)
    assert step.teacher(step.aug(step.both)).features.abs().max() < 1e-6 and loss.isfinite()
    for i in range(3):
        learner.observe(images(i, [2, 3, 2]))
    assert any(p.abs().max() > 1e-4 for p in learner.followers["teacher"].net.parameters())


def test_published_gsa_and_sdp_have_a_teacher_of_nothing_for_ever() -> None:
    learner = paper("gsa+sdp", "published")
    for i in range(4):
        assert learner.observe(images(i, [2, 3, 2]))["loss"].isfinite()
    teacher = learner.followers["teacher"]
    assert all(p.abs().max() < 1e-7 for p in teacher.net.parameters()), "but for rounding"
    moving = paper("gsa+sdp")
    before = [p.clone() for p in moving.followers["teacher"].net.parameters()]
    for i in range(4):
        moving.observe(images(i, [2, 3, 2]))
    assert not all(torch.equal(a, b) for a, b in zip(before, moving.followers["teacher"].net.parameters(), strict=True))


@pytest.mark.parametrize("family", ["default", "published"])
def test_gsas_loss_is_not_scaled_and_sdp_has_views_of_its_own(family: Any) -> None:
    learner = paper("gsa+sdp", family)
    learner.state[learner.distill]["ring"][:] = 0.8
    learner.state[learner.distill]["count"][:] = 100_000
    student, teacher = deepcopy(learner.student), deepcopy(learner.followers["teacher"])
    student.double()
    teacher.double()
    step, base, loss = step_of(learner)
    assert step.student.calls[2:] == [("sdp:aug(replay)", "sdp:aug(stream)")] == step.teacher.calls
    assert len(step.replay) == 64 == len(step.replay.x.unique(dim=0))
    view = step.aug(step.both, "sdp")
    ce, gap, beta, _ = slow_parts(student, teacher, view.x.double(), view.y.tolist(), Slow(), 4)
    w = (ce - (loss.item() - base.item())) / (ce - beta * gap)
    assert 0.1 < w < 0.6 * 1.01, "of (0.8 - 1/4) 4/5, and of what came in"
    assert loss.item() - base.item() == pytest.approx((1 - w) * ce + beta * w * gap, rel=1e-4)


def test_sdp_changes_no_draw_of_er() -> None:
    plain = Learner(SPEC, ER(), net=ResNet18(width=2), memory=20, replay_size=8, precision="fp64", augment=Partial())
    other = make(augment=Partial())
    seen: list[list[Tensor]] = [[], []]
    for learner, given in zip((plain, other), seen, strict=True):
        conv = next(m for m in learner.student.modules() if isinstance(m, nn.Conv2d))
        conv.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0].detach().clone()))
        for i in range(4):
            learner.observe(images(i, [0, 1, 2, 3]))
    launches, looks = seen[1][::2], seen[1][1::2]
    assert all(torch.equal(a, b) for a, b in zip(seen[0], launches, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(seen[0], looks, strict=True)), "SDP looks at the same images"
    first, second = plain.memory.state_dict(), other.memory.state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
