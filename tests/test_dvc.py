"""DVC: two views that agree, and replay chosen by the stream's own gradient.

Properties h1 to h6 are those of section 5 of the method notes.  Where these contradict a decision:

- (b) candidates are augmented first, scored in training mode so that running statistics move, and their views trained on.  Decided
  (section 16 of the design): scored on the raw view by the batch's statistics, running statistics put back, listed as `peeks`.
- (a) pool of 50: decided, 128; with 50 (`published`) all are kept and nobody scores them.
- (a) the virtual step's rate is the learning rate: decided, 0.01 by default for both; 0.1 with unit logits (`published`).
- (e) 200 images without gradient (and a copy of the network) in the authors' code: they choose nothing there, so `published` spares
  them: 360 units and not 560.
- h2's "hash before and after" holds for running statistics too, by the decision above.
- First batch: trained on (sections 12.12 and 5), with MKD as well; the authors' order, teacher before step, is not reproduced.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onepass.methods.dvc
from onepass.augment import Partial
from onepass.data import source
from onepass.distill import MKD
from onepass.learner import SGD, Learner
from onepass.methods.dvc import DVC, size
from onepass.nets import Custom, Linear, ResNet18, UnitLinear
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Spec

CLASSES = 5
SPEC = Spec(CLASSES, (3, 8, 8))
SMALL = DVC(weight=2.0, rate=0.3, candidates=14)  # of a memory of 30, for a replay of 6


class Core(nn.Module):
    def __init__(self, classes: int, image: tuple[int, int, int], unit: bool = False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(image[0], 3, 3, 3), nn.BatchNorm2d(3)
        self.classifier = (UnitLinear() if unit else Linear()).build(12, classes)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).flatten(1)


def unit_core(classes: int, image: tuple[int, int, int]) -> nn.Module:
    return Core(classes, image, unit=True)


class Frozen(Core):
    """Someone's pretrained first layer."""

    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__(classes, image)
        self.conv.requires_grad_(False)


def images(seed: int, n: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(CLASSES, (n,), generator=generator), name="stream")


def make(method: DVC = SMALL, spec: Spec = SPEC, **more: Any) -> Learner:
    net = Custom(unit_core if method.unit else Core)
    more = {"net": net, "memory": 30, "replay_size": 6, "precision": "fp64", "optim": SGD(lr=0.05, momentum=0.0)} | more
    return Learner(spec, method, **more)


def filled(method: DVC = SMALL, **more: Any) -> Learner:
    """A learner that has seen six batches, whose teacher is not its student."""
    learner = make(method, **more)
    for i in range(6):
        learner.observe(images(i))
    return learner


def begin(learner: Learner, seed: int = 50) -> Step:
    rows = images(seed)
    return learner.step(rows, learner.meet(rows))


def loss_of(learner: Learner, step: Step) -> Tensor:
    loss = learner.method.loss(step)
    assert loss is not None
    return loss if learner.distill is None else learner.distill.loss(step, loss)


def gradient(loss: Tensor, net: nn.Module) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(net.parameters(), found, strict=True)]


def drawn(learner: Learner) -> list[Batch]:
    """Whatever is drawn from the memory from now on."""
    found: list[Batch] = []
    draw = learner.memory.draw

    def record(*args: Any, **kwargs: Any) -> Batch:
        found.append(draw(*args, **kwargs))
        return found[-1]

    learner.memory.draw = record  # pyright: ignore[reportAttributeAccessIssue]
    return found


def plain(rows: Batch) -> Tensor:
    return rows.x.double() / 255


# ---- written out


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    total = z.new_zeros(())
    for i in range(len(y)):
        total = total + torch.stack([z[i, c].exp() for c in range(z.shape[1])]).sum().log() - z[i, y[i]]
    return total / len(y)


def softmax(z: Tensor) -> list[list[Tensor]]:
    exps = [[z[i, c].exp() for c in range(z.shape[1])] for i in range(len(z))]
    return [[e / torch.stack(row).sum() for e in row] for row in exps]


def information(*logits: Tensor) -> Tensor:
    """L_MI: a third of the sum over the three of sum_c P_c ln P_c, P the probabilities summed over the batch over their total."""
    loss = logits[0].new_zeros(())
    for z in logits:
        p = softmax(z)
        summed = [torch.stack([row[c] for row in p]).sum() for c in range(z.shape[1])]
        whole = torch.stack(summed).sum()
        for s in summed:
            loss = loss + s / whole * (s / whole).log() / 3
    return loss


def distance(one: Tensor, other: Tensor, both: Tensor) -> Tensor:
    """L_DL over w: the mean over 2N rows and C classes of |q - p|."""
    q, total = softmax(both), one.new_zeros(())
    for p in softmax(one), softmax(other):
        for i in range(len(q)):
            for c in range(one.shape[1]):
                total = total + (q[i][c] - p[i][c]).abs()
    return total / (2 * one.shape[0] * one.shape[1])


def agreement(net: Any, raw: Tensor, aug: Tensor, y: Tensor, weight: float) -> Tensor:
    """The loss of one batch; its views are one batch-norm group."""
    z = net(torch.cat([raw, aug]))
    one, other = z[: len(y)], z[len(y) :]
    both = net.heads["pair"](torch.cat([one, other], 1))
    ce = (cross_entropy(one, y) + cross_entropy(other, y)) / 2
    return ce + information(one, other, both) + weight * distance(one, other, both)


def terms(net: Any, step: Step, weight: float) -> list[Tensor]:
    """The loss of the stream, and that of the replay if there is any."""
    batches = [step.stream, *([step.replay] if len(step.replay) else [])]
    return [agreement(net, step.raw(b).x, step.aug(b).x, b.y, weight) for b in batches]


def divergence(student: Tensor, teacher: Tensor, tau: float = 4.0) -> Tensor:
    total = student.new_zeros(())
    for i in range(len(student)):
        p, q = (teacher[i] / tau).softmax(0), (student[i] / tau).softmax(0)
        for c in range(student.shape[1]):
            total = total + p[c] * (p[c].log() - q[c].log())
    return tau**2 * total / len(student)


def norms(net: Any, rows: Batch) -> list[float]:
    """The L1 norm of d CE / d W of the classifier, image by image, by autograd; the batch is normalised by its own statistics."""
    h, found = net.features(plain(rows)), list[float]()
    for i in range(len(rows)):
        ce = cross_entropy(net.classifier(h[i : i + 1]), rows.y[i : i + 1])
        found.append(torch.autograd.grad(ce, net.classifier.weight, retain_graph=True)[0].abs().sum().item())
    return found


def interference(net: nn.Module, loss: Tensor, pool: Batch, rate: float) -> list[float]:
    """How much a plain step of SGD down the stream's gradient raises each image's norm, on copies of the network."""
    stepped, slopes = deepcopy(net), gradient(loss, net)
    with torch.no_grad():
        for p, g in zip(stepped.parameters(), slopes, strict=True):
            p -= rate * g
    return [after - before for after, before in zip(norms(stepped, pool), norms(deepcopy(net), pool), strict=True)]


@pytest.mark.parametrize(
    "method",
    [
        SMALL,
        DVC(weight=4.0, rate=0.1, candidates=14),
        DVC(weight=3.0, candidates=6),
        DVC(weight=2.0, candidates=4, unit=True),
    ],
)
def test_dvc_is_its_equation_written_out(method: DVC) -> None:
    learner = filled(method, augment=Partial(padding=1))
    copy, step = deepcopy(learner.student), begin(learner)
    loss = loss_of(learner, step)
    assert len(step.replay) == min(6, method.candidates)
    parts = terms(copy, step, method.weight)
    torch.testing.assert_close(loss, parts[0] + parts[1], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient(loss, learner.student), gradient(parts[0] + parts[1], copy), rtol=1e-7, atol=1e-11)


def test_the_two_views_of_the_stream_are_one_batch_norm_group_and_those_of_the_replay_another() -> None:
    learner = filled()
    step = begin(learner)
    loss_of(learner, step)
    assert step.student.calls == [("raw(stream)", "aug(stream)"), ("raw(replay)", "aug(replay)")]
    assert step.student.images == [10, 12]


# ---- the properties of the notes


@torch.no_grad()
def told(spec: Spec, logits: list[float], pair: list[float], weight: float, n: int) -> float:
    """The loss of n images of class 0 where every logit is what it is told to be."""
    learner = make(DVC(weight=weight), spec)
    for module, bias in (learner.student.classifier, logits), (list(learner.student.heads["pair"].children())[-1], pair):
        assert isinstance(module, nn.Linear)
        module.weight.zero_()
        module.bias.copy_(torch.tensor(bias))
    rows = Batch(images(0, n).x, torch.zeros(n, dtype=torch.int64), name="stream")
    step = learner.step(rows, learner.meet(rows))
    assert isinstance(learner.method, DVC)
    return learner.method.agree(step, step.stream).item()


def test_h1_uniform_logits_have_the_values_of_the_notes() -> None:
    for classes in 2, 5, 10:
        z, ln = torch.zeros(3, classes, dtype=torch.float64), math.log(classes)
        assert cross_entropy(z, torch.zeros(3, dtype=torch.int64)).item() == pytest.approx(ln, rel=1e-12)
        assert information(z, z, z).item() == pytest.approx(-ln, rel=1e-12) and distance(z, z, z) == 0.0
        spec, even, sure = Spec(classes, (3, 8, 8)), [0.0] * classes, [1e3] + [0.0] * (classes - 1)
        assert told(spec, even, even, 2.0, 3) == pytest.approx(0.0, abs=1e-12), "ln C - ln C + 0"
        assert told(spec, even, sure, 0.0, 3) == pytest.approx(ln - 2 / 3 * ln, abs=1e-12), "the pair's entropy is none"
        assert told(spec, sure, even, 0.0, 3) == pytest.approx(0.0 - ln / 3, abs=1e-12), "and here only the pair has one"


def observed(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The sizes that are computed from now on: after the virtual step, before it."""
    found: list[Tensor] = []

    def record(*args: Any) -> Tensor:
        found.append(size(*args))
        return found[-1]

    monkeypatch.setattr(onepass.methods.dvc, "size", record)
    return found


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
def test_h2_a_virtual_step_of_rate_0_scores_everything_0(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, found = filled(replace(SMALL, rate=0.0), precision=precision, net=ResNet18(width=2)), observed(monkeypatch)
    loss_of(learner, begin(learner))
    assert len(found) == 2 and len(found[0]) == 14
    assert torch.equal(*found) and found[0].all()


def test_h2_scoring_leaves_weights_statistics_gradients_and_modes_alone() -> None:
    learner = filled()
    learner.student.core.get_submodule("norm").eval()  # a module somebody put into another mode
    pool = learner.memory.draw(14, rng=torch.Generator(), name="pool")
    step = begin(learner)
    assert isinstance(learner.method, DVC)
    loss = learner.method.agree(step, step.stream)
    net = learner.student
    tensors = {k: v.clone() for k, v in net.state_dict().items()}
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    objects, modes = [id(p) for p in net.parameters()], [m.training for m in net.modules()]
    chosen = learner.method.interfered(step, loss, pool)
    assert len(chosen) == 6 and any(g is not None for g in gradients)
    assert all(torch.equal(v, tensors[k]) for k, v in net.state_dict().items())
    assert objects == [id(p) for p in net.parameters()] and modes == [m.training for m in net.modules()]
    assert all(p.requires_grad for p in net.parameters())
    for before, p in zip(gradients, net.parameters(), strict=True):
        assert (before is None and p.grad is None) or (before is not None and p.grad is not None and torch.equal(before, p.grad))


def test_h2_running_statistics_move_by_the_two_forwards_and_by_nothing_else() -> None:
    learner = filled()
    copy: Any = deepcopy(learner.student)
    step = begin(learner)
    loss_of(learner, step)
    for batch in step.stream, step.replay:
        copy(torch.cat([step.raw(batch).x, step.aug(batch).x]))
    for name, buffer in learner.student.named_buffers():
        torch.testing.assert_close(buffer, dict(copy.named_buffers())[name], rtol=1e-12, atol=0.0)


def test_h3_the_size_is_the_norm_of_each_images_gradient_at_the_classifiers_weights() -> None:
    learner = filled()
    step = begin(learner)
    rows = learner.memory.all()
    out = step.student.peek(step.raw(rows))
    net: Any = deepcopy(learner.student)
    p = out.logits.softmax(1)
    for i, (found, hand) in enumerate(zip(size(out, rows.y).tolist(), norms(net, rows), strict=True)):
        missed = sum(abs(p[i, c].item() - float(c == rows.y[i])) for c in range(CLASSES))
        assert missed == pytest.approx(2 * (1 - p[i, rows.y[i]].item()), rel=1e-10)
        assert found == pytest.approx(missed * out.features[i].abs().sum().item(), rel=1e-10)
        assert found == pytest.approx(hand, rel=1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.3, 2.0])
def test_h3_the_rows_chosen_are_those_whose_gradient_grows_most(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = filled(replace(SMALL, rate=rate))
    copy, found, scores, step = deepcopy(learner.student), drawn(learner), observed(monkeypatch), begin(learner)
    loss_of(learner, step)
    (pool,) = found
    hand = interference(copy, agreement(copy, *(v(step.stream).x for v in (step.raw, step.aug)), step.stream.y, 2.0), pool, rate)
    assert (scores[0] - scores[1]).tolist() == pytest.approx(hand, rel=1e-6, abs=1e-9)
    order = sorted(range(14), key=lambda i: -hand[i])[:6]
    assert torch.equal(step.replay.x, pool.x[order]) and torch.equal(step.replay.y, pool.y[order])
    assert len({round(s, 9) for s in hand}) == 14 and order != list(range(6))


def test_scoring_is_listed_and_is_no_launch_of_the_step() -> None:
    learner = filled()
    step = begin(learner)
    loss_of(learner, step)
    assert step.student.peeks == [("raw(draw0)", 14), ("raw(draw0)", 14)]
    assert sum(step.student.images) == 22 and step.replay.name == "replay"


def test_h4_the_gradient_is_the_sum_of_the_streams_and_the_memorys_and_the_optimiser_steps_once() -> None:
    learner = filled()
    copy, other = deepcopy(learner.student), deepcopy(learner)
    step = begin(learner)
    loss = loss_of(learner, step)
    stream, replay = (gradient(part, copy) for part in terms(copy, step, 2.0))
    summed = [a + b for a, b in zip(stream, replay, strict=True)]
    torch.testing.assert_close(gradient(loss, learner.student), summed, rtol=1e-7, atol=1e-11)
    steps: list[int] = []
    other.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    before = [p.detach().clone() for p in other.student.parameters()]
    other.observe(images(50))
    assert len(steps) == 1
    for p, b, g in zip(other.student.parameters(), before, summed, strict=True):
        torch.testing.assert_close(p.detach(), b - 0.05 * g, rtol=1e-7, atol=1e-11)


def test_h5_prediction_does_not_depend_on_the_pairs_head() -> None:
    learner = filled()
    before = learner.logits(images(99).x)
    with torch.no_grad():
        for p in learner.student.heads["pair"].parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, learner.logits(images(99).x))


def test_the_pairs_head_goes_from_both_logits_through_128_to_the_classes_and_is_learnt() -> None:
    learner = make()
    layers = list(learner.student.heads["pair"].children())
    assert [type(m) for m in layers] == [nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(p.shape) for p in learner.student.heads["pair"].parameters()] == [(128, 10), (128,), (5, 128), (5,)]
    before = [p.detach().clone() for p in learner.student.heads["pair"].parameters()]
    learner.observe(images(0))
    assert not any(torch.equal(a, b) for a, b in zip(before, learner.student.heads["pair"].parameters(), strict=True))


def test_h6_the_distance_is_a_mean_over_classes() -> None:
    """p = p' = (1, 0) and q = (.5, .5) with w = 4 are 2; a sum over the classes would be 8."""
    spec, sure, even = Spec(2, (3, 8, 8)), [1e3, 0.0], [0.0, 0.0]
    value = told(spec, sure, even, 4.0, 1) - told(spec, sure, even, 0.0, 1)
    assert value == pytest.approx(2.0, abs=1e-12)
    z = torch.tensor([sure], dtype=torch.float64) / 2
    assert 4 * distance(z, z, torch.zeros(1, 2, dtype=torch.float64)).item() == pytest.approx(2.0)


# ---- the first batches


@pytest.mark.parametrize("word", ["dvc", "dvc+mkd"])
@pytest.mark.parametrize("family", ["default", "published"])
def test_the_first_batch_is_learnt_from_and_remembered(word: str, family: Any) -> None:
    config = recipe(word, source("cifar10"), family=family)
    assert isinstance(config.method, DVC)
    learner = make(config.method, teacher=config.teacher, distill=config.distill)
    copy, step = deepcopy(learner.student), begin(deepcopy(learner), 0)
    before = [p.detach().clone() for p in learner.student.parameters()]
    base = learner.method.loss(step)
    assert base is not None and len(step.replay) == 0 and step.both is step.stream and step.student.peeks == []
    (hand,) = terms(copy, step, 2.0)
    torch.testing.assert_close(base, hand, rtol=1e-10, atol=1e-12)
    learner.observe(images(0))
    assert not any(torch.equal(a, b) for a, b in zip(before, learner.student.parameters(), strict=True) if a.dim() > 1)
    assert len(learner.memory) == 5


def test_as_many_as_are_replayed_are_all_kept_without_scoring() -> None:
    learner = make()
    for i in range(1, 4):
        found, step = drawn(learner), begin(learner)
        loss_of(learner, step)
        held = len(learner.memory)
        assert (step.student.peeks == []) == (held <= 6) and len(step.replay) == min(held, 6)
        assert (step.replay is found[-1]) == (held <= 6)
        learner.observe(images(i))


def test_a_network_with_frozen_weights_can_be_scored() -> None:
    learner = filled(net=Custom(Frozen))
    step = begin(learner)
    assert loss_of(learner, step).isfinite() and len(step.student.peeks) == 2


# ---- published


def test_published_keeps_fifty_candidates_without_scoring_and_has_unit_logits() -> None:
    config = recipe("dvc", source("cifar10"), family="published")
    assert config.method == DVC(weight=2.0, rate=0.1, candidates=50, unit=True) and config.optim == SGD(lr=0.1, momentum=0.9)
    assert isinstance(config.method, DVC)
    learner = make(config.method, memory=80, replay_size=64)
    rows = images(0, 80)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    found, step = drawn(learner), begin(learner)
    loss_of(learner, step)
    assert step.replay is found[0] and len(found) == 1 and len(step.replay) == 50 and step.student.peeks == []
    assert step.student.calls == [("raw(stream)", "aug(stream)"), ("raw(draw0)", "aug(draw0)")]
    for z in (
        learner.logits(rows.x),
        step.student.joint(step.raw(step.stream), step.aug(step.stream))[0].logits,
        step.student.joint(step.raw(step.replay), step.aug(step.replay))[1].logits,
    ):
        torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z), dtype=torch.float64), rtol=1e-12, atol=0.0)
    assert float(learner.logits(rows.x).softmax(1).max()) < math.e / (math.e + CLASSES - 1)


@pytest.mark.parametrize(("data", "weight"), [("cifar10", 2.0), ("digits", 2.0), ("cifar100", 4.0)])
def test_the_weight_is_2_for_ten_classes_and_4_for_more(data: str, weight: float) -> None:
    for family in "default", "published":
        config = recipe("dvc", source(data), family=family)  # pyright: ignore[reportArgumentType]
        assert isinstance(config.method, DVC) and config.method.weight == weight
        assert isinstance(config.optim, SGD) and config.method.rate == config.optim.lr, "the virtual step is at the learning rate"
        assert (config.method.candidates, config.method.unit) == ((50, True) if family == "published" else (128, False))


# ---- with MKD


@pytest.mark.parametrize("family", ["default", "published"])
def test_with_mkd_a_cross_entropy_and_the_distillation_of_the_chosen_rows_are_added(family: Any) -> None:
    config = recipe("dvc+mkd", source("cifar10"), family=family)
    assert isinstance(config.method, DVC) and isinstance(config.distill, MKD)
    assert config.distill.doubled == (family == "published") and config.distill.weight is None
    method = replace(config.method, candidates=6 if family == "published" else 14)
    learner = filled(method, teacher=config.teacher, distill=config.distill, augment=Partial(padding=1))
    student, teacher = deepcopy(learner.student), deepcopy(learner.followers["teacher"].net)
    step = begin(learner)
    loss = loss_of(learner, step)
    assert step.both.atoms == (step.replay, step.stream) and len(step.both) == 11
    aug, raw = step.aug(step.both, "mkd", learner.full).x, step.raw(step.both, "mkd").x
    z_aug, z_raw, target = student(aug), student(raw), teacher(aug)
    hand = sum(terms(student, step, 2.0)) + cross_entropy(z_aug, step.both.y)
    hand = hand + 5.5 * (divergence(z_raw, target) + divergence(z_aug, target)) / 2
    torch.testing.assert_close(loss, hand, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(gradient(loss, learner.student), gradient(hand, student), rtol=1e-6, atol=1e-10)


def test_doubled_puts_every_image_through_twice_in_one_group_and_gives_the_same_logits() -> None:
    config = recipe("dvc+mkd", source("cifar10"), family="published")
    assert isinstance(config.method, DVC) and isinstance(config.distill, MKD)
    found: list[Step] = []
    losses: list[Tensor] = []
    for doubled in True, False:
        distill = replace(config.distill, doubled=doubled)
        learner = filled(config.method, teacher=config.teacher, distill=config.distill)
        learner.distill = distill
        found.append(begin(learner))
        losses.append(loss_of(learner, found[-1]))
    twice, once = found
    assert once.student.images == [10, 12, 11, 11] and once.teacher.images == [11]
    assert twice.student.images == [10, 12, 22, 22] and twice.teacher.images == [22]
    torch.testing.assert_close(*losses, rtol=1e-9, atol=0.0)
    for step in found:
        step.views = {  # pyright: ignore[reportAttributeAccessIssue]
            "raw": step.raw(step.both, "mkd"),
            "aug": step.aug(step.both, "mkd", step.full),
        }
    for which in "raw", "aug":
        one, two = once.views[which], twice.views[which]  # pyright: ignore[reportAttributeAccessIssue]
        assert torch.equal(one.x, two.x)
        pair = twice.student.joint(two, twice.raw(two, "double"))
        torch.testing.assert_close(once.student(one).logits, pair[0].logits, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(pair[0].logits, pair[1].logits, rtol=1e-9, atol=1e-12)
    target = twice.teacher.joint(twice.views["aug"], twice.raw(twice.views["aug"], "double"))[0].logits  # pyright: ignore
    torch.testing.assert_close(once.teacher(once.views["aug"]).logits, target, rtol=1e-9, atol=1e-12)  # pyright: ignore


class Recorder:
    """An augmentation, and all it gave."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        self.given.append(Partial(padding=2)(x, rng))
        return self.given[-1]


@pytest.mark.parametrize("family", ["default", "published"])
def test_adding_mkd_moves_no_draw_of_dvc(family: Any) -> None:
    """Which of the candidates are kept is no draw: by default it depends on the weights, so only the candidates are the same."""
    config = recipe("dvc+mkd", source("cifar10"), family=family)
    assert isinstance(config.method, DVC)
    method = replace(config.method, candidates=6 if family == "published" else 14)
    recorders = Recorder(), Recorder()
    alone = make(method, augment=recorders[0], full=Recorder())
    together = make(method, augment=recorders[1], full=Recorder(), teacher=config.teacher, distill=config.distill)
    found = drawn(alone), drawn(together)
    for i in range(12):
        for learner in alone, together:
            learner.observe(images(i))
        one, other = alone.memory.state_dict(), together.memory.state_dict()
        assert all(torch.equal(one[k], other[k]) for k in one)
    assert len(found[0]) == len(found[1]) == 12 and len(recorders[0].given) == len(recorders[1].given) == 23
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    streams = slice(None) if family == "published" else slice(1, None, 2)
    for one, other in zip(recorders[0].given[streams], recorders[1].given[streams], strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(next(alone.student.parameters()), next(together.student.parameters())), "what is learnt differs"


@pytest.mark.parametrize(
    ("word", "family", "doubled", "student", "teacher", "peeked", "units"),
    [
        ("dvc", "default", False, [20, 128], [], 256, 444),
        ("dvc+mkd", "default", False, [20, 128, 74, 74], [74], 256, 444 + 518),
        ("dvc", "published", False, [20, 100], [], 0, 360),
        ("dvc+mkd", "published", True, [20, 100, 120, 120], [120], 0, 1200),
        ("dvc+mkd", "published", False, [20, 100, 60, 60], [60], 0, 780),
    ],
)
def test_the_images_of_a_step_are_those_of_the_table(
    word: str, family: Any, doubled: bool, student: list[int], teacher: list[int], peeked: int, units: int
) -> None:
    config = recipe(word, source("cifar10"), family=family)
    distill = replace(config.distill, doubled=doubled) if isinstance(config.distill, MKD) else None
    assert isinstance(config.method, DVC)
    learner = make(config.method, teacher=config.teacher, distill=distill, memory=130, replay_size=64)
    rows = images(0, 130)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    step = learner.step(images(1, 10), learner.meet(images(1, 10)))
    loss_of(learner, step)
    assert step.student.images == student and (step.teacher.images if distill is not None else []) == teacher
    assert sum(n for _, n in step.student.peeks) == peeked
    assert 3 * sum(student) + sum(teacher) == units
