"""PCR: images against the proxies of the classes in the batch.

Properties h1 to h6 are those of section 8 of the method notes.  Where these contradict a decision:

- h6, "empty memory: zero gradient (BN buffers may change)": decided (section 5 of the design, and skipping of section 12.12): there
  is no loss, hence no forward, no step and nothing that moves.  The authors' teacher follows the student at that batch, ours does
  not (1 of 5,000 updates, and of no effect where the teacher starts as a copy).
- (b) "classes not yet seen masked at test": decided (section 12.5), no mask.
- (b) "drop_last": decided (section 16, clear streams), the last batch of a task is short.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.augment import Partial
from onepass.data import source
from onepass.distill import MKD
from onepass.learner import SGD, Adam, Learner
from onepass.losses import proxy_contrast
from onepass.methods.pcr import PCR
from onepass.nets import Cosine, CosineClassifier, Custom, ResNet18
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Spec

CLASSES = 5
SPEC = Spec(CLASSES, (3, 8, 8))


class Core(nn.Module):
    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(image[0], 3, 3, 3), nn.BatchNorm2d(3)
        self.classifier = Cosine(0.09).build(12, classes)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).flatten(1)


class Plane(nn.Module):
    """The first two pixels are the features; cosines at temperature 1, to proxies (3, 0) and (0, 5)."""

    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__()
        self.classifier = CosineClassifier(2, classes, 1.0)
        with torch.no_grad():
            self.classifier.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 5.0]]))

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :2]


class Same:
    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return x


def images(seed: int, n: int = 6, classes: int = CLASSES) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(classes, (n,), generator=generator), name="stream")


def make(**more: Any) -> Learner:
    more = {"net": Custom(Core), "memory": 30, "replay_size": 8, "precision": "fp64", "optim": SGD(lr=0.02)} | more
    return Learner(SPEC, PCR(), **more)


def filled(classes: int = CLASSES, **more: Any) -> Learner:
    """A learner that has seen five batches, whose teacher is not its student."""
    learner = make(**more)
    for i in range(5):
        learner.observe(images(i, classes=classes))
    return learner


def begin(learner: Learner, classes: int = CLASSES) -> Step:
    rows = images(50, classes=classes)
    return learner.step(rows, learner.meet(rows))


def loss_of(learner: Learner, step: Step) -> Tensor:
    loss = learner.method.loss(step)
    assert loss is not None
    return loss if learner.distill is None else learner.distill.loss(step, loss)


def gradient(loss: Tensor, net: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters())))


def views(step: Step, net: Any) -> tuple[Tensor, Tensor]:
    """Features of raw and augmented stream, as one group, and of raw and augmented replay, as another; and their labels."""
    stream = net.features(torch.cat([step.raw(step.stream).x, step.aug(step.stream).x]))
    replay = net.features(torch.cat([step.raw(step.replay).x, step.aug(step.replay).x]))
    return torch.cat([stream, replay]), torch.cat([step.stream.y, step.stream.y, step.replay.y, step.replay.y])


# ---- written out


def cosine(h: Tensor, w: Tensor) -> Tensor:
    return (h * w).sum() / ((h.square().sum().sqrt() + 1e-6) * (w.square().sum().sqrt() + 1e-6))


def table(h: Tensor, w: Tensor, tau: float) -> Tensor:
    return torch.stack([torch.stack([cosine(h[i], w[c]) / tau for c in range(len(w))]) for i in range(len(h))])


def double_loop(s: Tensor, y: Tensor) -> Tensor:
    """-1/|P(i)| sum over j in P(i) of ln [exp(s(i, y_j)) / sum over samples k of exp(s(i, y_k))], averaged over i."""
    total = s.new_zeros(())
    for i in range(len(y)):
        positives = [j for j in range(len(y)) if y[j] == y[i]]
        for j in positives:
            rivals = torch.stack([s[i, y[k]].exp() for k in range(len(y))]).sum()
            total = total - (s[i, y[j]].exp() / rivals).log() / len(positives)
    return total / len(y)


def naive(net: Any, step: Step) -> Tensor:
    h, y = views(step, net)
    return double_loop(table(h, net.classifier.weight, 0.09), y)


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    total = z.new_zeros(())
    for i in range(len(y)):
        total = total + torch.stack([z[i, c].exp() for c in range(z.shape[1])]).sum().log() - z[i, y[i]]
    return total / len(y)


def divergence(student: Tensor, teacher: Tensor, tau: float = 4.0) -> Tensor:
    total = student.new_zeros(())
    for i in range(len(student)):
        p, q = (teacher[i] / tau).softmax(0), (student[i] / tau).softmax(0)
        for c in range(student.shape[1]):
            total = total + p[c] * (p[c].log() - q[c].log())
    return tau**2 * total / len(student)


def test_pcr_is_its_equation_written_out() -> None:
    learner = filled(augment=Partial(padding=1), replay_size=4)
    copy, step = deepcopy(learner.student), begin(learner)
    loss, hand = loss_of(learner, step), naive(copy, step)
    assert len(step.replay) == 4
    torch.testing.assert_close(loss, hand, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(gradient(loss, learner.student), gradient(hand, copy), rtol=1e-7, atol=1e-11)


def test_the_double_loop_over_samples_equals_the_counts_of_classes_and_so_do_their_gradients() -> None:
    s = 3 * torch.randn(9, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 0, 1, 3, 3, 3, 3, 1, 0])
    slow, fast = s.clone().requires_grad_(), s.clone().requires_grad_()
    losses = double_loop(slow, y), proxy_contrast(fast, y).mean()
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0.0)
    for loss in losses:
        loss.backward()
    assert slow.grad is not None and fast.grad is not None
    torch.testing.assert_close(slow.grad, fast.grad, rtol=1e-9, atol=1e-14)


def test_streams_views_are_one_batch_norm_group_and_the_replays_another() -> None:
    learner = filled()
    step = begin(learner)
    loss_of(learner, step)
    assert step.student.calls == [("raw(stream)", "aug(stream)"), ("raw(replay)", "aug(replay)")]
    assert step.student.images == [12, 16]


def test_the_classifier_is_of_cosines_over_009_without_bias() -> None:
    classifier = make(net=ResNet18(width=2)).student.classifier
    assert PCR().classifier == Cosine(0.09)
    assert isinstance(classifier, CosineClassifier) and classifier.temperature == 0.09
    assert [name for name, _ in classifier.named_parameters()] == ["weight"]
    h = torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(classifier(h), table(h, classifier.weight, 0.09), rtol=1e-12, atol=1e-13)


# ---- the properties of the notes


def test_h1_the_value_of_the_notes() -> None:
    """Each of its three images is here four times, as two views of stream and of replay: by h5 that adds ln 4."""
    x = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    x[:, 0, 0] = torch.tensor([[127, 0], [0, 127], [0, 254]])
    y = torch.tensor([0, 0, 1])
    spec = Spec(2, (1, 2, 2))
    learner = Learner(spec, PCR(), net=Custom(Plane), memory=3, replay_size=3, precision="fp64", augment=Same())
    learner.memory.add(x, y, rng=torch.Generator())
    rows = Batch(x, y, name="stream")
    value = loss_of(learner, learner.step(rows, learner.meet(rows))).item() - math.log(4)
    e = math.e
    exact = (math.log(2 * e + 1) - 1 + 2 * math.log(2 + e) - 1) / 3
    assert value == pytest.approx(exact, abs=2e-6), "the norms have 1e-6 added"
    assert value == pytest.approx(0.988295, abs=3e-6)


def test_h2_the_gradient_is_that_of_the_cross_entropy_of_scores_and_log_counts_over_the_classes_present() -> None:
    learner = filled(classes=3)
    step, copy = begin(learner, 3), deepcopy(learner.student)
    loss = loss_of(learner, step)
    h, y = views(step, copy)
    count = torch.bincount(y, minlength=CLASSES).double()
    present = count.nonzero()[:, 0]
    assert 1 < len(present) < CLASSES
    scores = (copy.classifier(h) + count.log())[:, present]
    hand = F.cross_entropy(scores, torch.searchsorted(present, y))
    torch.testing.assert_close(gradient(loss, learner.student), gradient(hand, copy), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(loss, hand + count[y].log().mean(), rtol=1e-10, atol=0.0)


def test_h3_proxies_of_absent_classes_have_no_gradient() -> None:
    learner = filled(classes=3)
    step = begin(learner, 3)
    loss = loss_of(learner, step)
    weight = learner.student.classifier.weight
    assert isinstance(weight, Tensor)
    slope = torch.autograd.grad(loss, weight)[0]
    present = {*step.stream.y.tolist(), *step.replay.y.tolist()}
    assert {c for c in range(CLASSES) if slope[c].any()} == present and present <= {0, 1, 2}


def test_h4_the_lengths_of_features_and_proxies_do_not_matter() -> None:
    learner = filled()
    classifier = learner.student.classifier
    assert isinstance(classifier, CosineClassifier)
    generator = torch.Generator().manual_seed(0)
    h, y = views(begin(learner), learner.student)
    loss = proxy_contrast(classifier(h), y).mean()
    stretched = proxy_contrast(classifier(h * (1 + 9 * torch.rand(len(h), 1, generator=generator, dtype=torch.float64))), y).mean()
    assert stretched.item() == pytest.approx(loss.item(), abs=1e-4), "1e-6 of a norm is 1e-5 of a score at most"
    before = loss_of(learner, begin(learner)).item()
    with torch.no_grad():
        classifier.weight.mul_(1 + 9 * torch.rand(CLASSES, 1, generator=generator, dtype=torch.float64))
    assert loss_of(learner, begin(learner)).item() == pytest.approx(before, abs=1e-4)
    with torch.no_grad():
        classifier.weight.mul_(100)  # the longer, the less the 1e-6 weighs
        before = loss_of(learner, begin(learner)).item()
        classifier.weight.mul_(3)
    assert loss_of(learner, begin(learner)).item() == pytest.approx(before, abs=1e-6)


def test_h5_every_image_twice_raises_the_loss_by_ln_2_and_leaves_the_gradient() -> None:
    def found(times: int) -> tuple[Tensor, list[Tensor]]:
        learner = filled(augment=Same())
        rows, old = images(50), learner.memory.at(torch.arange(8), "replay")
        rows = Batch(rows.x.repeat(times, 1, 1, 1), rows.y.repeat(times), name="stream")
        step = learner.step(rows, learner.meet(rows))
        step.replay = Batch(old.x.repeat(times, 1, 1, 1), old.y.repeat(times), name="replay")
        loss = loss_of(learner, step)
        return loss, gradient(loss, learner.student)

    (once, slope), (twice, same) = found(1), found(2)
    torch.testing.assert_close(twice, once + math.log(2), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(slope, same, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("word", ["pcr", "pcr+mkd"])
def test_h6_with_an_empty_memory_nothing_is_learnt_and_nothing_moves(word: str) -> None:
    config = recipe(word, source("cifar10"))
    learner = make(teacher=config.teacher, distill=config.distill, memory=100)
    before = {k: v.clone() for k, v in learner.state_dict().items()}
    step = begin(deepcopy(learner))
    assert learner.method.loss(step) is None and step.student.calls == []
    assert learner.observe(images(0)) == {}
    after = learner.state_dict()
    assert {k for k in before if not torch.equal(before[k], after[k])} <= {
        "memory.x",
        "memory.y",
        "memory.count",
        "clock",
        "seen",
        "new",
    }
    assert torch.equal(learner.memory.x[:6], images(0).x), "but the images are remembered"
    assert "loss" in learner.observe(images(1))


def test_prediction_is_over_all_classes_met_or_not() -> None:
    learner = filled(classes=2)
    with torch.no_grad():
        weight = learner.student.classifier.weight
        assert isinstance(weight, Tensor)
        net: Any = deepcopy(learner.student).eval()
        weight[4] = net.features(images(0).x.double() / 255).mean(0)
    assert learner.logits(images(0).x).isfinite().all()
    assert (learner.predict(images(0).x) == 4).any() and not learner.seen[4]


# ---- with MKD


@pytest.mark.parametrize(("family", "weight"), [("default", 5.5), ("published", 8.0)])
def test_with_mkd_a_cross_entropy_and_the_distillation_are_added(family: Any, weight: float) -> None:
    config = recipe("pcr+mkd", source("cifar10"), family=family)
    assert config.optim == Adam(lr=5e-4) and isinstance(config.distill, MKD)
    assert config.distill.weight == (8.0 if family == "published" else None)
    learner = filled(teacher=config.teacher, distill=config.distill, augment=Partial(padding=1), replay_size=4)
    student, teacher = deepcopy(learner.student), deepcopy(learner.followers["teacher"].net)
    step = begin(learner)
    loss = loss_of(learner, step)
    aug, raw = step.aug(step.both, "mkd", learner.full).x, step.raw(step.both, "mkd").x
    z_aug, z_raw, target = student(aug), student(raw), teacher(aug)
    hand = naive(student, step) + cross_entropy(z_aug, step.both.y)
    hand = hand + weight * (divergence(z_raw, target) + divergence(z_aug, target)) / 2
    torch.testing.assert_close(loss, hand, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(gradient(loss, learner.student), gradient(hand, student), rtol=1e-6, atol=1e-10)
    own = [("mkd:aug(replay)", "mkd:aug(stream)"), ("mkd:raw(replay)", "mkd:raw(stream)")]
    assert step.student.calls[2:] == own, "first the augmented images, then the raw ones"
    assert step.teacher.calls == own[:1]


class Recorder:
    """An augmentation, and all it gave."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        self.given.append(Partial(padding=2)(x, rng))
        return self.given[-1]


def drawn(learner: Learner) -> list[Batch]:
    """Whatever is drawn from the memory from now on."""
    found: list[Batch] = []
    draw = learner.memory.draw

    def record(*args: Any, **kwargs: Any) -> Batch:
        found.append(draw(*args, **kwargs))
        return found[-1]

    learner.memory.draw = record  # pyright: ignore[reportAttributeAccessIssue]
    return found


def test_adding_mkd_moves_no_draw_of_pcr() -> None:
    config = recipe("pcr+mkd", source("cifar10"))
    recorders = Recorder(), Recorder()
    alone = make(augment=recorders[0], full=Recorder())
    together = make(augment=recorders[1], full=Recorder(), teacher=config.teacher, distill=config.distill)
    found = drawn(alone), drawn(together)
    for i in range(12):
        for learner in alone, together:
            learner.observe(images(i))
        one, other = alone.memory.state_dict(), together.memory.state_dict()
        assert all(torch.equal(one[k], other[k]) for k in one)
    assert len(found[0]) == len(found[1]) == 12 and len(recorders[0].given) == len(recorders[1].given) == 22
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    assert all(torch.equal(a, b) for a, b in zip(recorders[0].given, recorders[1].given, strict=True))
    assert not torch.equal(next(alone.student.parameters()), next(together.student.parameters())), "what is learnt differs"


@pytest.mark.parametrize("family", ["default", "published"])
@pytest.mark.parametrize(("word", "launches", "units"), [("pcr", [20, 128], 444), ("pcr+mkd", [20, 128, 74, 74], 962)])
def test_the_images_of_a_step_are_those_of_the_table(word: str, launches: list[int], units: int, family: Any) -> None:
    config = recipe(word, source("cifar10"), family=family)
    learner = make(teacher=config.teacher, distill=config.distill, memory=128, replay_size=64)
    rows = images(0, 128)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    step = learner.step(images(1, 10), learner.meet(images(1, 10)))
    loss_of(learner, step)
    teacher = step.teacher.images if config.distill is not None else []
    assert step.student.images == launches and step.student.peeks == []
    assert teacher == ([74] if config.distill is not None else [])
    assert 3 * sum(launches) + sum(teacher) == units
