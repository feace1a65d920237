"""DER++: three terms in three batch-norm groups, and the logits an image had when it was stored.

Properties h1 to h5 are those of section 3 of the method notes.  Where these contradict themselves or a decision:

- First batch.  The notes' general advice (section 12) is to skip training while the memory is empty, and the authors' DER++ + MKD
  does; the authors' DER++ trains.  Decided (section 5 of the design, whose list of `published` has no such switch): DER++ trains on
  the stream alone, with and without MKD.
- h2 "recompute with a snapshot: exact": so it is in single precision, the type of the column; in double the column rounds.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.augment import Partial
from onepass.data import source
from onepass.learner import SGD, Adam, Learner
from onepass.methods.derpp import DERpp
from onepass.nets import Custom, ResNet18
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Spec
from onepass.teachers import EMA

CLASSES = 5
SPEC = Spec(CLASSES, (3, 8, 8))


class Core(nn.Module):
    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(image[0], 3, 3, 3), nn.BatchNorm2d(3)
        self.classifier = nn.Linear(12, classes)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).flatten(1)


def images(seed: int, n: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(CLASSES, (n,), generator=generator), name="stream")


def make(method: DERpp | None = None, **more: Any) -> Learner:
    more = {"net": Custom(Core), "memory": 30, "replay_size": 8, "precision": "fp64", "optim": SGD(lr=0.05)} | more
    return Learner(SPEC, method or DERpp(), **more)


def filled(method: DERpp | None = None, **more: Any) -> Learner:
    """A learner that has seen five batches, whose teacher is not its student."""
    learner = make(method, **more)
    for i in range(5):
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
    return list(torch.autograd.grad(loss, list(net.parameters())))


def parameters(learner: Learner) -> list[Tensor]:
    return [p.detach().clone() for p in learner.student.parameters()]


# ---- written out


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    total = z.new_zeros(())
    for i in range(len(y)):
        total = total + torch.stack([z[i, c].exp() for c in range(z.shape[1])]).sum().log() - z[i, y[i]]
    return total / len(y)


def squares(z: Tensor, old: Tensor) -> Tensor:
    total = z.new_zeros(())
    for i in range(len(z)):
        for c in range(z.shape[1]):
            total = total + (z[i, c] - old[i, c]) ** 2
    return total / (len(z) * z.shape[1])


def divergence(student: Tensor, teacher: Tensor, tau: float = 4.0) -> Tensor:
    total = student.new_zeros(())
    for i in range(len(student)):
        p, q = (teacher[i] / tau).softmax(0), (student[i] / tau).softmax(0)
        for c in range(student.shape[1]):
            total = total + p[c] * (p[c].log() - q[c].log())
    return tau**2 * total / len(student)


def naive(net: nn.Module, step: Step, old: Batch | None, alpha: float, beta: float) -> Tensor:
    loss = cross_entropy(net(step.aug(step.stream).x), step.stream.y)
    if old is not None:
        loss = loss + alpha * squares(net(step.aug(old).x), old.extra["logits"].double())
        loss = loss + beta * cross_entropy(net(step.aug(step.replay).x), step.replay.y)
    return loss


def drawn(learner: Learner) -> list[Batch]:
    """Whatever is drawn from the memory from now on."""
    found: list[Batch] = []
    draw = learner.memory.draw

    def record(*args: Any, **kwargs: Any) -> Batch:
        found.append(draw(*args, **kwargs))
        return found[-1]

    learner.memory.draw = record  # pyright: ignore[reportAttributeAccessIssue]
    return found


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 1.0), (0.7, 0.3), (1.0, 0.0), (0.0, 1.0)])
def test_derpp_is_its_equation_written_out(alpha: float, beta: float) -> None:
    learner = filled(DERpp(alpha=alpha, beta=beta), augment=Partial(padding=1))
    copy, found, step = deepcopy(learner.student), drawn(learner), begin(learner)
    loss = loss_of(learner, step)
    assert [b.name for b in found] == ["draw0", "replay"] and [len(b) for b in found] == [8, 8]
    hand = naive(copy, step, found[0], alpha, beta)
    torch.testing.assert_close(loss, hand, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(gradient(loss, learner.student), gradient(hand, copy), rtol=1e-8, atol=1e-12)


def test_stream_and_the_two_draws_are_three_batch_norm_groups_in_this_order() -> None:
    learner = filled()
    step = begin(learner)
    loss_of(learner, step)
    assert step.student.calls == [("aug(stream)",), ("aug(draw0)",), ("aug(replay)",)]
    assert step.student.images == [6, 8, 8]


# ---- the properties of the notes


class Given(Step):
    """A step whose networks say what they are told."""

    def __init__(self, said: dict[str, Tensor], old: Batch, replay: Batch, stream: Batch):
        self.said, self.old, self.stream, self._replay, self.replay_size = said, old, stream, replay, len(replay)
        self._memory, self.asked = [0], set[str]()  # pyright: ignore[reportAttributeAccessIssue]

    def draw(self, n: int, classes: Tensor | None = None, replace: bool = False) -> Batch:
        return self.old

    def aug(self, of: Any, draw: str = "main", using: Any = None) -> Any:
        return of

    def student(self, of: Batch) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return type("Said", (), {"logits": self.said[of.name]})


def test_h1_a_difference_of_one_everywhere_is_a_squared_error_of_one() -> None:
    """Four classes, two rows: a sum over the classes would give 4."""
    x, y = torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    sure = torch.tensor([[1e3, 0.0, 0.0, 0.0]] * 2)  # of the right class: no cross-entropy
    step = Given(
        {"stream": sure, "replay": sure, "old": torch.ones(2, 4)},
        Batch(x, y, {"logits": torch.zeros(2, 4)}, "old"),
        Batch(x, y, name="replay"),
        Batch(x, y, name="stream"),
    )
    loss = DERpp(alpha=1.0, beta=1.0).loss(step)
    assert loss is not None and loss.item() == pytest.approx(1.0, abs=1e-6)
    loss = DERpp(alpha=0.2, beta=1.0).loss(step)
    assert loss is not None and loss.item() == pytest.approx(0.2, abs=1e-6)


def test_h2_stored_logits_are_those_of_the_first_forward_before_the_update() -> None:
    learner = filled(memory=100, precision="fp32")
    before, rows = deepcopy(learner.student), images(50)
    update, slots = learner.clock.updates, slice(len(learner.memory), len(learner.memory) + 6)
    step = begin(deepcopy(learner))  # the same update: the same views
    learner.observe(rows)
    assert learner.clock.updates == update + 1
    stored = learner.memory.extra["logits"][slots]
    view = step.aug(step.stream).x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(stored, before(view)), "of the weights before"
    assert (stored - learner.student(view)).abs().max() > 1e-3, "not of those after"
    assert (stored - before(rows.x / 255)).abs().max() > 1e-3, "of the augmented images, not of the raw ones"
    assert (stored - before.eval()(view)).abs().max() > 1e-3, "by the batch's statistics, not by the running ones"


def test_h2_stored_pixels_are_raw() -> None:
    learner = make(memory=100, augment=Partial(padding=3))
    for i in range(5):
        learner.observe(images(i))
        assert torch.equal(learner.memory.x[6 * i : 6 * i + 6], images(i).x)
        assert torch.equal(learner.memory.y[6 * i : 6 * i + 6], images(i).y)


def test_h3_with_alpha_0_and_beta_1_the_gradient_is_that_of_two_cross_entropies() -> None:
    learner = filled(DERpp(alpha=0.0, beta=1.0))
    copy, step = deepcopy(learner.student), begin(learner)
    loss = loss_of(learner, step)
    hand = F.cross_entropy(copy(step.aug(step.stream).x), step.stream.y)
    hand = hand + F.cross_entropy(copy(step.aug(step.replay).x), step.replay.y)
    torch.testing.assert_close(gradient(loss, learner.student), gradient(hand, copy), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.0), (0.0, 1.0), (0.2, 1.0)])
def test_h3_without_beta_labels_of_the_memory_and_without_alpha_its_logits_are_of_no_effect(alpha: float, beta: float) -> None:
    def learn(spoil: str) -> list[Tensor]:
        learner = filled(DERpp(alpha=alpha, beta=beta))
        if spoil == "labels":
            learner.memory.y.copy_((learner.memory.y + 1) % CLASSES)
        if spoil == "logits":
            learner.memory.extra["logits"].mul_(-3.0)
        return gradient(loss_of(learner, begin(learner)), learner.student)

    kept = learn("")
    for spoil, weight in ("labels", beta), ("logits", alpha):
        same = all(torch.equal(a, b) for a, b in zip(kept, learn(spoil), strict=True))
        assert same == (weight == 0.0), spoil


def test_h4_the_two_draws_are_independent() -> None:
    """Their overlap is K / |memory| of their rows on average: 8/30, over 400 steps."""
    learner = filled()
    learner.memory.x[:, 0, 0, 0] = torch.arange(30, dtype=torch.uint8)  # a name for each row
    found, shared = drawn(learner), []
    for update in range(400):
        learner.clock.updates = update
        step = begin(learner)
        old, replay = step.draw(8), step.replay
        one, other = (set(b.x[:, 0, 0, 0].tolist()) for b in (old, replay))
        assert len(one) == len(other) == 8
        shared.append(len(one & other) / 8)
    assert len(found) == 800
    mean, sigma = sum(shared) / 400, (8 / 30 * 22 / 30 / 8 * 22 / 29 / 400) ** 0.5  # hypergeometric
    assert abs(mean - 8 / 30) < 4 * sigma


def test_h5_stored_logits_have_no_graph_and_are_never_refreshed() -> None:
    learner = make(memory=12, replay_size=4)
    for i in range(100):
        extra, x = learner.memory.extra["logits"].clone(), learner.memory.x.clone()
        learner.observe(images(i, 2))
        logits = learner.memory.extra["logits"]
        assert not logits.requires_grad and logits.grad_fn is None
        kept = (learner.memory.x == x).flatten(1).all(1)
        assert kept.sum() >= 10 and torch.equal(logits[kept], extra[kept])
    assert learner.memory.count == 200


def test_h5_what_is_to_be_remembered_has_no_graph() -> None:
    learner = filled()
    step = begin(learner)
    loss_of(learner, step)
    step.close()
    found = learner.method.remember(step)["logits"]
    assert not found.requires_grad and found.grad_fn is None
    assert step.student.images == [6, 8, 8], "and costs no forward"


# ---- the first batch


@pytest.mark.parametrize("word", ["derpp", "derpp+mkd"])
def test_the_first_batch_is_learnt_from_and_remembered(word: str) -> None:
    config = recipe(word, source("cifar10"))
    learner = make(teacher=config.teacher, distill=config.distill)
    before, copy = parameters(learner), deepcopy(learner.student)
    step = begin(deepcopy(learner), 0)
    learner.observe(images(0))
    assert not any(torch.equal(a, b) for a, b in zip(before, parameters(learner), strict=True) if a.dim() > 1)
    logits = copy(step.aug(step.stream).x)
    torch.testing.assert_close(learner.memory.extra["logits"][:6], logits.detach().float(), rtol=1e-6, atol=1e-7)
    plain = make()
    plain_loss = loss_of(plain, begin(plain, 0))
    torch.testing.assert_close(plain_loss, naive(copy, step, None, 0.2, 1.0), rtol=1e-10, atol=0.0)


# ---- with MKD


@pytest.mark.parametrize("family", ["default", "published"])
def test_with_mkd_a_cross_entropy_and_the_distillation_of_the_second_draw_are_added(family: Any) -> None:
    config = recipe("derpp+mkd", source("cifar10"), family=family)
    assert config.method == DERpp(alpha=0.2, beta=1.0) and config.optim == Adam(lr=1e-4)
    learner = filled(teacher=config.teacher, distill=config.distill, augment=Partial(padding=1))
    student, teacher = deepcopy(learner.student), deepcopy(learner.followers["teacher"].net)
    found, step = drawn(learner), begin(learner)
    loss = loss_of(learner, step)
    assert len(found) == 2, "no draw of its own"
    assert step.both.atoms == (step.replay, step.stream), "the second draw, then the stream"
    aug, raw = step.aug(step.both, "mkd", learner.full).x, step.raw(step.both, "mkd").x
    z_aug, z_raw, target = student(aug), student(raw), teacher(aug)
    hand = naive(student, step, found[0], 0.2, 1.0) + cross_entropy(z_aug, step.both.y)
    hand = hand + 5.5 * (divergence(z_raw, target) + divergence(z_aug, target)) / 2
    torch.testing.assert_close(loss, hand, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(gradient(loss, learner.student), gradient(hand, student), rtol=1e-6, atol=1e-10)
    assert step.student.calls[3:] == [("mkd:raw(replay)", "mkd:raw(stream)"), ("mkd:aug(replay)", "mkd:aug(stream)")]


class Recorder:
    """An augmentation, and all it gave."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        self.given.append(Partial(padding=2)(x, rng))
        return self.given[-1]


def test_adding_mkd_moves_no_draw_of_derpp() -> None:
    config = recipe("derpp+mkd", source("cifar10"))
    recorders = Recorder(), Recorder()
    alone = make(augment=recorders[0], full=Recorder())
    together = make(augment=recorders[1], full=Recorder(), teacher=config.teacher, distill=config.distill)
    found = drawn(alone), drawn(together)
    for i in range(12):
        for learner in alone, together:
            learner.observe(images(i))
        for name in "x", "y", "count":
            assert torch.equal(alone.memory.state_dict()[name], together.memory.state_dict()[name])
    rows = [[b for b in f if len(b)] for f in found]  # from the empty memory there is nothing to draw
    assert len(rows[0]) == len(rows[1]) == 22 and len(recorders[0].given) == len(recorders[1].given) == 34
    for one, other in zip(*rows, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    assert all(torch.equal(a, b) for a, b in zip(recorders[0].given, recorders[1].given, strict=True))
    assert not torch.equal(alone.memory.extra["logits"], together.memory.extra["logits"]), "what is learnt differs"


@pytest.mark.parametrize("family", ["default", "published"])
@pytest.mark.parametrize(("word", "launches", "units"), [("derpp", [10, 64, 64], 414), ("derpp+mkd", [10, 64, 64, 74, 74], 932)])
def test_the_images_of_a_step_are_those_of_the_table(word: str, launches: list[int], units: int, family: Any) -> None:
    config = recipe(word, source("cifar10"), family=family)
    learner = make(config.method, teacher=config.teacher, distill=config.distill, memory=128, replay_size=64)  # pyright: ignore
    rows = images(0, 128)
    learner.memory.add(rows.x, rows.y, {"logits": torch.zeros(128, CLASSES)}, rng=torch.Generator())
    step = learner.step(images(1, 10), learner.meet(images(1, 10)))
    loss_of(learner, step)
    teacher = step.teacher.images if config.distill is not None else []
    assert step.student.images == launches and step.student.peeks == []
    assert teacher == ([74] if config.distill is not None else [])
    assert 3 * sum(launches) + sum(teacher) == units


def test_derpp_learns_with_a_resnet_in_every_precision() -> None:
    for precision in "fp32", "bf16":
        learner = make(net=ResNet18(width=2), precision=precision, teacher=EMA(0.1))
        for i in range(3):
            loss = learner.observe(images(i))["loss"]
        assert loss.dtype == torch.float32 and loss.isfinite()
        assert learner.memory.extra["logits"].dtype == torch.float32
