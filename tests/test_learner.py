"""The learner: what it does with a batch and in which order, what it predicts by, what it saves, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.augment import Partial
from onepass.boundaries import NewClass, Oracle
from onepass.distill import MKD
from onepass.errors import Refused
from onepass.learner import SGD, Adam, Learner
from onepass.memory import Column
from onepass.method import Method
from onepass.methods.er import ER
from onepass.nets import Custom, ResNet18
from onepass.seeds import Seeds
from onepass.step import Step
from onepass.stream import Batch, Clear, Spec
from onepass.teachers import EMA, EMAFollower

SPEC = Spec(4, (3, 8, 8), tasks=((0, 1), (2, 3)))
MKD_ON_ER = MKD(cross_entropy=False, draw="main")


class Core(nn.Module):
    """Convolution, batch-norm, dropout, classifier."""

    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(image[0], 6, 3, padding=1), nn.BatchNorm2d(6), nn.Dropout(0.3)
        self.classifier = nn.Linear(6, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x)).relu().mean((2, 3)))


def images(seed: int, n: int = 6, classes: tuple[int, ...] = (0, 1, 2, 3)) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.tensor(classes)[torch.randint(len(classes), (n,), generator=generator)], name="stream")


def make(method: Method | None = None, mkd: bool = False, **more: Any) -> Learner:
    more = {"net": ResNet18(width=2), "memory": 20, "replay_size": 12, "precision": "fp32", "optim": Adam(lr=0.01)} | more
    parts = {"teacher": EMA(0.1), "distill": MKD_ON_ER} if mkd else {}
    return Learner(SPEC, method or ER(), **(parts | more))


def after(n: int, learner: Learner) -> Learner:
    for i in range(n):
        learner.observe(images(i))
    return learner


def snapshot(learner: Learner) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in learner.state_dict().items()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    assert a.keys() == b.keys()
    return [k for k in a if not torch.equal(a[k], b[k])]


def parameters(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True, eq=False)
class Seen(Method):
    """Learns from the stream alone, and notes what the learner shows it."""

    notes: list[dict[str, Any]] = field(default_factory=list)
    asks: bool = False

    def loss(self, step: Step) -> Tensor:
        note = {
            "memory": step.memory.x[: len(step.memory)].clone(),
            "weight": step.student.net.core.conv.weight.detach().clone(),
            "aug": step.aug(step.stream).x,
            "replay": step.replay.x,
            "seen": step.seen.tolist(),
        }
        if self.asks:
            note |= {"task": step.task, "since": step.since, "new": step.new.tolist()}
        self.notes.append(note)
        return F.cross_entropy(step.student(step.aug(step.stream)).logits, step.stream.y)


# ---- one batch


@pytest.mark.parametrize("mkd", [False, True])
def test_er_does_not_learn_from_the_first_batch_and_remembers_it(mkd: bool) -> None:
    learner = make(mkd=mkd)
    before, batch = snapshot(learner), images(0)
    assert learner.observe(batch) == {}
    changed = differing(before, snapshot(learner))
    assert {k.partition(".")[0] for k in changed} <= {"memory", "clock", "seen", "new"}
    assert torch.equal(learner.memory.x[:6], batch.x) and torch.equal(learner.memory.y[:6], batch.y)
    learner.observe(images(1))
    changed = differing(before, {k: v for k, v in snapshot(learner).items() if k in before})
    assert {f"student.{k}" for k, _ in learner.student.named_parameters()} <= set(changed), "from the second it does"


def test_the_loss_it_returns_is_a_detached_scalar() -> None:
    learner = after(1, make())
    out = learner.observe(images(1))
    assert out.keys() == {"loss"} and out["loss"].shape == () and not out["loss"].requires_grad
    assert out["loss"].isfinite() and out["loss"] > 0


def test_a_batch_enters_memory_after_the_update_from_it() -> None:
    """So the replay of an update never holds the batch it is replayed with."""
    notes: list[dict[str, Any]] = []
    learner = make(Seen(notes))
    for i in range(3):
        learner.observe(images(i))
    assert [len(n["memory"]) for n in notes] == [0, 6, 12]
    assert torch.equal(notes[2]["memory"], torch.cat([images(0).x, images(1).x]))
    assert torch.equal(learner.memory.x[:18], torch.cat([images(i).x for i in range(3)]))


def test_memory_keeps_raw_pixels_bit_for_bit_with_their_labels() -> None:
    learner = after(20, make(mkd=True))
    came = {tuple(x.flatten().tolist()): int(y) for i in range(20) for x, y in zip(images(i).x, images(i).y, strict=True)}
    kept = [(tuple(x.flatten().tolist()), int(y)) for x, y in zip(learner.memory.x, learner.memory.y, strict=True)]
    assert len(learner.memory) == 20 == len(set(kept)) and learner.memory.count == 120
    assert all(came[x] == y for x, y in kept)


def test_the_batch_given_is_left_as_it_was() -> None:
    learner, batch = after(2, make(mkd=True)), images(5)
    x, y = batch.x.clone(), batch.y.clone()
    learner.observe(batch)
    assert torch.equal(batch.x, x) and torch.equal(batch.y, y)


def test_the_update_is_one_step_of_the_optimiser_down_the_gradient() -> None:
    learner = after(2, make(optim=SGD(lr=0.5, momentum=0.0), precision="fp64"))
    before = parameters(learner.student)
    learner.observe(images(9))
    for p, old in zip(learner.student.parameters(), before, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.detach(), old - 0.5 * p.grad, rtol=1e-12, atol=1e-14)


def test_the_teacher_follows_after_the_optimisers_step() -> None:
    learner = after(3, make(mkd=True, precision="fp64"))
    old = parameters(learner.followers["teacher"].net)
    learner.observe(images(9))
    for mine, before, theirs in zip(parameters(learner.network("teacher")), old, parameters(learner.student), strict=True):
        torch.testing.assert_close(mine, 0.9 * before + 0.1 * theirs, rtol=1e-12, atol=1e-14)


def test_the_teacher_is_not_updated_where_the_student_is_not() -> None:
    learner = after(1, make(mkd=True))
    assert learner.followers["teacher"].updates == 0
    assert after(4, learner).followers["teacher"].updates == 4


@dataclass(frozen=True)
class Columns(Method):
    """Keeps, with each image, the logits it had when it came."""

    columns: ClassVar[Any] = {"logits": Column("classes")}

    def loss(self, step: Step) -> Tensor:
        return F.cross_entropy(step.student(step.raw(step.stream)).logits, step.stream.y)

    def remember(self, step: Step) -> dict[str, Tensor]:
        return {"logits": step.student(step.raw(step.stream)).logits.detach()}


def test_what_a_method_remembers_is_kept_with_the_image_as_it_was_before_the_update() -> None:
    learner = make(Columns(), memory=100, net=ResNet18(width=2))
    for i in range(3):
        batch = images(i)
        copy = deepcopy(learner)
        step = copy.step(batch, copy.meet(batch))
        expected = step.student(step.raw(step.stream)).logits.detach()
        learner.observe(batch)
        assert torch.equal(learner.memory.extra["logits"][6 * i : 6 * i + 6], expected)
    assert not torch.equal(learner.logits(images(0).x), learner.memory.extra["logits"][:6])


# ---- its clock


@pytest.mark.parametrize("updates", [1, 3])
def test_the_clock_counts_images_batches_and_updates_the_skipped_ones_too(updates: int) -> None:
    learner = make(updates=updates)
    for i, n in enumerate((6, 6, 2)):
        learner.observe(images(i, n))
    assert (learner.clock.samples, learner.clock.batches, learner.clock.updates) == (14, 3, 3 * updates)


def test_two_updates_draw_twice_and_remember_once() -> None:
    notes: list[dict[str, Any]] = []
    learner = after(3, make(Seen(notes), updates=2, teacher=EMA(0.1)))
    first, second = notes[4], notes[5]
    assert len(notes) == 6 and learner.followers["teacher"].updates == 6
    assert not torch.equal(first["aug"], second["aug"]) and not torch.equal(first["replay"], second["replay"])
    assert not torch.equal(first["weight"], second["weight"]), "the second starts from where the first ended"
    assert torch.equal(first["memory"], second["memory"]) and learner.memory.count == 18


def test_two_updates_differ_from_one() -> None:
    assert not equal(parameters(after(3, make()).student), parameters(after(3, make(updates=2)).student))


# ---- its classes and tasks


STREAM = [(0,), (0, 1), (1,), (0, 1), (2, 1), (2,), (3,), (0, 3)]


def told(rule: Any, batches: list[tuple[int, ...]] = STREAM) -> list[dict[str, Any]]:
    notes: list[dict[str, Any]] = []
    learner = make(Seen(notes, asks=True), boundaries=rule, net=Custom(Core))
    for i, classes in enumerate(batches):
        learner.observe(Batch(images(i, len(classes) + 1).x, torch.tensor([*classes, classes[0]])))
    return notes


def test_under_oracle_tasks_start_where_the_stream_says() -> None:
    notes = told(Oracle())
    assert [n["task"] for n in notes] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [n["since"] for n in notes] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_new_classes_are_those_first_met_since_the_boundary_and_seen_ones_include_this_batch() -> None:
    notes = told(Oracle())
    assert [n["seen"] for n in notes] == [_mask(s) for s in ("0", "01", "01", "01", "012", "012", "0123", "0123")]
    assert [n["new"] for n in notes] == [_mask(s) for s in ("0", "01", "01", "01", "2", "2", "23", "23")]


def _mask(classes: str) -> list[bool]:
    return [str(c) in classes for c in range(4)]


def test_under_new_class_a_task_starts_with_a_class_that_comes_late_enough() -> None:
    """The second class comes one batch after the first: too soon.  The third after four, the fourth after two more."""
    notes = told(NewClass(lag=2))
    assert [n["task"] for n in notes] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert [n["since"] for n in notes] == [0, 1, 2, 3, 0, 1, 0, 1]
    assert [n["new"] for n in notes][4:] == [_mask("2"), _mask("2"), _mask("3"), _mask("3")]


def test_a_boundary_is_not_asked_about_on_the_first_batch() -> None:
    @dataclass(frozen=True)
    class Always:
        def __call__(self, present: Tensor, seen: Tensor, since: int, spec: Spec) -> bool:
            assert seen.any(), "the classes it is told of are those of earlier batches"
            return True

    assert [n["task"] for n in told(Always(), [(0,), (0,), (1,)])] == [0, 1, 2]


def test_followers_hear_of_a_boundary_before_the_batch_is_learnt() -> None:
    heard: list[tuple[int, Tensor]] = []

    class Listener(EMAFollower):
        def boundary(self, student: nn.Module) -> None:
            heard.append((self.updates, student.core.conv.weight.detach().clone()))

    @dataclass(frozen=True)
    class Listening:
        alpha: float = 0.5

        def follow(self, student: nn.Module) -> Listener:
            return Listener(student, EMA(self.alpha))

    notes: list[dict[str, Any]] = []
    learner = make(Seen(notes), boundaries=Oracle(), teacher=Listening(), net=Custom(Core))
    for i, classes in enumerate(STREAM):
        learner.observe(Batch(images(i, len(classes)).x, torch.tensor(classes)))
    ((updates, weight),) = heard
    assert updates == 4 and torch.equal(weight, notes[4]["weight"])


# ---- what predicts


class Hand:
    """The network of `Core` in evaluation mode, by hand."""

    def __init__(self, values: dict[str, Tensor]):
        self.v = values

    def __call__(self, x: Tensor) -> Tensor:
        v = self.v
        h = F.conv2d(x.double() / 255, v["conv.weight"], v["conv.bias"], padding=1)
        mean, var, gamma, beta = (v[f"norm.{k}"][:, None, None] for k in ("running_mean", "running_var", "weight", "bias"))
        h = ((h - mean) / (var + 1e-5).sqrt() * gamma + beta).relu().mean((2, 3))
        return h @ v["classifier.weight"].T + v["classifier.bias"]


def hands(learner: Learner) -> dict[str, Hand]:
    state = snapshot(learner)
    student = {k.removeprefix("student.core."): v for k, v in state.items() if k.startswith("student.core.")}
    teacher = {k: state[f"follower.teacher.net.core.{k}"] for k in student}
    average = {k: v if "running" in k or "tracked" in k else (v + teacher[k]) / 2 for k, v in student.items()}
    return {"student": Hand(student), "teacher": Hand(teacher), "average": Hand(average)}


def taught(**more: Any) -> Learner:
    return after(8, make(mkd=True, net=Custom(Core), optim=Adam(lr=0.05), **({"precision": "fp64"} | more)))


@pytest.mark.parametrize("which", ["student", "teacher", "average"])
def test_each_network_predicts_as_it_does_by_hand(which: Any) -> None:
    learner, x = taught(), images(99, 30).x
    hand = hands(learner)
    torch.testing.assert_close(learner.logits(x, which), hand[which](x), rtol=1e-10, atol=1e-12)
    assert torch.equal(learner.predict(x, which), hand[which](x).argmax(1))
    for other in hand.keys() - {which}:
        assert (hand[which](x) - hand[other](x)).abs().max() > 1e-3, "the three are different networks"


@pytest.mark.parametrize("which", ["student", "teacher", "average"])
def test_the_word_infer_says_which_predicts(which: Any) -> None:
    learner, x = taught(infer=which), images(99, 30).x
    assert torch.equal(learner.logits(x), learner.logits(x, which))
    assert torch.equal(learner.predict(x), learner.logits(x, which).argmax(1))
    assert learner.networks == ("student", "teacher", "average")


def test_without_a_teacher_the_student_alone_predicts() -> None:
    learner = make()
    assert learner.networks == ("student",)
    for which in "teacher", "average":
        with pytest.raises(Refused, match=f"`{which}`"):
            learner.predict(images(0).x, which)  # pyright: ignore[reportArgumentType]


def test_a_prediction_does_not_depend_on_the_images_beside_it() -> None:
    learner, x = taught(), images(99, 30).x
    alone = torch.cat([learner.logits(x[i : i + 1]) for i in range(30)])
    torch.testing.assert_close(learner.logits(x, rows=7), alone, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("which", ["student", "teacher", "average"])
def test_predicting_moves_nothing(which: Any) -> None:
    learner = taught(precision="bf16")
    learner.student.core.norm.eval()  # a mode of its own is put back too
    generator, state = torch.get_rng_state(), snapshot(learner)
    nets = [learner.student, learner.followers["teacher"]]
    modes = [[m.training for m in net.modules()] for net in nets]
    grads = [p.grad.clone() for p in learner.student.parameters() if p.grad is not None]
    x = images(99, 30).x
    kept = x.clone()
    one, two = learner.logits(x, which), learner.logits(x, which)
    learner.predict(x, which)
    assert torch.equal(one, two) and not one.requires_grad and torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), generator)
    assert differing(state, snapshot(learner)) == []
    assert [[m.training for m in net.modules()] for net in nets] == modes
    assert equal(grads, [p.grad for p in learner.student.parameters() if p.grad is not None])
    assert all(p.requires_grad for p in learner.student.parameters())


def test_a_learner_that_is_looked_at_learns_what_it_would_have_learnt() -> None:
    left, looked_at = make(mkd=True, net=Custom(Core)), make(mkd=True, net=Custom(Core))
    for i in range(6):
        left.observe(images(i))
        looked_at.observe(images(i))
        for which in looked_at.networks:
            looked_at.predict(images(50).x, which)
    assert differing(snapshot(left), snapshot(looked_at)) == []


# ---- saving and going on


def through_nothing(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in state.items()}


def through_safetensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As a checkpoint does: contiguous bytes."""
    return safetensors.torch.load(safetensors.torch.save({k: v.detach().contiguous() for k, v in state.items()}))


@dataclass(frozen=True)
class Counting(Method):
    """ER whose loss is weighted by how often each class was trained on: its state matters."""

    def state(self, spec: Spec) -> dict[str, Tensor]:
        return {"count": torch.ones(spec.classes)}

    def loss(self, step: Step) -> Tensor | None:
        if not len(step.replay):
            return None
        count = step.state[self]["count"]
        count.index_add_(0, step.both.y, torch.ones(len(step.both)))
        return F.cross_entropy(step.student(step.aug(step.both)).logits + count.log(), step.both.y)


ADAM, SGD_, BARE = Adam(lr=0.01), SGD(lr=0.05), SGD(lr=0.05, momentum=0.0)
LEARNERS: dict[str, Callable[[], Learner]] = {
    "er, Adam, fp32": lambda: make(optim=ADAM),
    "er, Adam, bf16": lambda: make(optim=ADAM, precision="bf16"),
    "er, SGD, fp32": lambda: make(optim=SGD_),
    "er, SGD, bf16": lambda: make(optim=SGD_, precision="bf16"),
    "er+mkd, Adam, fp32": lambda: make(mkd=True, optim=ADAM),
    "er+mkd, Adam, bf16": lambda: make(mkd=True, optim=ADAM, precision="bf16"),
    "er+mkd, SGD, fp32": lambda: make(mkd=True, optim=SGD_),
    "er+mkd, SGD, bf16": lambda: make(mkd=True, optim=SGD_, precision="bf16"),
    "er, AdamW, fp64": lambda: make(optim=replace(ADAM, weight_decay=0.1, decoupled=True), precision="fp64"),
    "er, SGD without momentum": lambda: make(optim=BARE),
    "er+mkd, debiased": lambda: make(mkd=True, teacher=EMA(0.1, start="debiased", buffers="average")),
    "dropout": lambda: make(mkd=True, net=Custom(Core), distill=MKD()),
    "two updates": lambda: make(updates=2),
    "a method with a state": lambda: make(Counting(), boundaries=Oracle()),
    "a method with a column": lambda: make(Columns()),
}


def gone_on(name: str, through: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> tuple[Learner, Learner]:
    """One learner that learns 12 batches, and one that had learnt something else and takes up the first's state after 7."""
    whole, other = LEARNERS[name](), LEARNERS[name]()
    for i in range(7):
        whole.observe(images(i, 6, (0, 1)))
    state = through(whole.state_dict())
    for i in range(3):
        other.observe(images(100 + i, 9, (1, 3)))
    other.load_state_dict(state)
    assert differing(snapshot(whole), snapshot(other)) == []
    for i in range(7, 12):
        mine, theirs = whole.observe(images(i)), other.observe(images(i))
        assert torch.equal(mine["loss"], theirs["loss"]), f"the loss of batch {i}"
    return whole, other


@pytest.mark.parametrize("name", LEARNERS)
def test_a_restored_learner_goes_on_bit_for_bit(name: str) -> None:
    whole, other = gone_on(name, through_nothing)
    assert differing(snapshot(whole), snapshot(other)) == []
    for which in whole.networks:
        assert torch.equal(whole.logits(images(50).x, which), other.logits(images(50).x, which))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_restored_from_the_bytes_of_a_checkpoint_goes_on_bit_for_bit(name: str) -> None:
    """Bytes know no memory format: moments must come back in that of their weights."""
    whole, other = gone_on(name, through_safetensors)
    assert differing(snapshot(whole), snapshot(other)) == []


@pytest.mark.parametrize("name", ["er, Adam, fp32", "er+mkd, SGD, fp32", "a method with a state"])
def test_a_restored_learner_shares_nothing_with_the_state_it_took_up(name: str) -> None:
    """Two learners that go different ways from one state, as one does that is compared with itself under other settings."""
    state = through_nothing(after(5, LEARNERS[name]()).state_dict())
    kept = through_nothing(state)
    restored = LEARNERS[name]()
    restored.load_state_dict(state)
    for i in range(3):
        restored.observe(images(60 + i))
    assert differing(state, kept) == []


def test_what_is_restored_stays_where_a_captured_graph_knows_it() -> None:
    learner = after(4, LEARNERS["a method with a state"]())
    state = through_nothing(learner.state_dict())
    before = {k: v.data_ptr() for k, v in learner.state_dict().items() if k.startswith(("student.", "memory.x", "state."))}
    after(3, learner).load_state_dict(state)
    assert before.keys() >= {"state.0.count"} and before == {k: learner.state_dict()[k].data_ptr() for k in before}
    assert differing(state, snapshot(learner)) == []


@pytest.mark.parametrize("name", LEARNERS)
def test_its_state_is_plain_tensors_by_name(name: str) -> None:
    learner = LEARNERS[name]()
    for state in learner.state_dict(), after(3, learner).state_dict():
        assert all(type(k) is str and type(v) is Tensor and not v.requires_grad for k, v in state.items())
        assert len(through_safetensors(state)) == len(state)


def test_a_learner_that_has_learnt_nothing_can_be_saved_and_restored() -> None:
    state = through_safetensors(make(mkd=True).state_dict())
    again = after(4, make(mkd=True))
    again.load_state_dict(state)
    assert differing(snapshot(after(4, again)), snapshot(after(4, make(mkd=True)))) == []


def test_the_seed_is_what_a_learner_is_made_with() -> None:
    one, two, other = (snapshot(after(3, make(seeds=Seeds(s)))) for s in (5, 5, 6))
    assert differing(one, two) == [] and "student.core.conv.weight" in differing(one, other)


# ---- precision and memory


def test_in_double_precision_everything_that_learns_is_double() -> None:
    learner = make(mkd=True, precision="fp64")
    losses = [learner.observe(images(i)).get("loss") for i in range(3)]
    assert all(v.dtype == torch.float64 for v in learner.student.state_dict().values() if v.is_floating_point())
    assert all(v.dtype == torch.float64 for v in learner.network("teacher").state_dict().values() if v.is_floating_point())
    assert losses[2] is not None and losses[2].dtype == torch.float64
    assert learner.logits(images(0).x).dtype == torch.float64
    single = make(mkd=True, precision="fp32")
    for i, loss in enumerate(losses[:2]):
        out = single.observe(images(i))
        if loss is not None:
            torch.testing.assert_close(out["loss"].double(), loss, rtol=1e-4, atol=0.0)


def test_in_bf16_weights_and_moments_stay_float32() -> None:
    learner = after(3, make(mkd=True, precision="bf16"))
    state = learner.state_dict()
    assert {v.dtype for k, v in state.items() if k.startswith(("student", "follower", "optimizer")) and v.is_floating_point()} == {
        torch.float32
    }
    assert learner.logits(images(0).x).dtype == torch.float32


@pytest.mark.parametrize("size", [1, 5])
def test_a_memory_smaller_than_the_replay_draws_what_there_is(size: int) -> None:
    notes: list[dict[str, Any]] = []
    learner = after(3, make(Seen(notes), memory=size, replay_size=64))
    assert [len(n["replay"]) for n in notes] == [0, size, size] and len(learner.memory) == size
    learner = after(2, make(memory=size, replay_size=64))
    batch = images(9)
    step = learner.step(batch, learner.meet(batch))
    learner.method.loss(step)
    assert step.student.images == [size + 6]


# ---- what it refuses


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"distill": MKD()}, ["`MKD`", "teacher=EMA(alpha=0.01)"]),
        ({"infer": "teacher"}, ["`infer=teacher`", "infer=student"]),
        ({"infer": "average"}, ["`infer=average`", "infer=student"]),
        ({"infer": "both", "teacher": EMA()}, ["`infer=both`", "average"]),
        ({"precision": "fp8"}, ["`precision=fp8`", "bf16"]),
        ({"replay_size": 0}, ["`replay_size=0`", "at least 1"]),
        ({"updates": 0}, ["`updates=0`", "at least 1"]),
        ({"memory": 0}, ["`memory=0`", "at least 1"]),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_what_would(more: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(Refused) as error:
        make(**more)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("kind", [Adam, SGD])
def test_a_rate_that_moves_nothing_is_refused(kind: Any, lr: float) -> None:
    with pytest.raises(Refused, match="`lr="):
        kind(lr=lr)


def test_the_published_default_rates() -> None:
    assert Adam().build(nn.Linear(1, 1)).param_groups[0]["lr"] == 5e-4


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (Batch(images(0).x, torch.tensor([0, 1, 2, 3, 4, 0])), ["label is 4", "0 to 3"]),
        (Batch(images(0).x, torch.tensor([0, 1, 2, -1, 3, 0])), ["label is -1", "0 to 3"]),
        (Batch(images(0).x[:, :, :7], images(0).y), ["(3, 7, 8)", "(3, 8, 8)"]),
        (Batch(images(0).x[:, :1], images(0).y), ["(1, 8, 8)", "(3, 8, 8)"]),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing(batch: Batch, words: list[str]) -> None:
    learner = after(2, make(mkd=True))
    before = snapshot(learner)
    with pytest.raises(Refused) as error:
        learner.observe(batch)
    assert all(word in str(error.value) for word in words)
    assert differing(before, snapshot(learner)) == []


# ---- it learns


def toy(n: int, seed: int) -> Batch:
    """Four classes: which quarter of the image is bright."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    x = torch.randint(0, 140, (n, 3, 8, 8), generator=generator)
    for i, c in enumerate(y.tolist()):
        x[i, :, 4 * (c // 2) : 4 * (c // 2) + 4, 4 * (c % 2) : 4 * (c % 2) + 4] += 110
    return Batch(x.to(torch.uint8), y)


@dataclass(frozen=True)
class Forgetful(Method):
    """Learns from the stream alone."""

    def loss(self, step: Step) -> Tensor:
        return F.cross_entropy(step.student(step.aug(step.stream)).logits, step.stream.y)


def accuracy_after_one_pass(method: Method, mkd: bool, infer: Any = "student") -> float:
    stream = Clear(2).over(toy(400, 0), ("a", "b", "c", "d"), Seeds(0))
    parts = {"teacher": EMA(0.2), "distill": MKD_ON_ER} if mkd else {}
    learner = Learner(
        stream.spec,
        method,
        net=ResNet18(width=4),
        optim=Adam(lr=0.01),
        memory=60,
        replay_size=20,
        augment=Partial(padding=1, flip=0.0),
        boundaries=Oracle(),
        precision="fp32",
        infer=infer,
        **parts,
    )
    for batch in stream.batches(4):
        learner.observe(batch)
    test = toy(200, 1)
    assert learner.task == 1 and learner.seen.all()
    return (learner.predict(test.x) == stream.number(test.y)).double().mean().item()


@pytest.mark.parametrize(("mkd", "infer"), [(False, "student"), (True, "average")], ids=["er", "er+mkd"])
def test_two_tasks_are_learnt_in_one_pass(mkd: bool, infer: str) -> None:
    assert accuracy_after_one_pass(ER(), mkd, infer) > 0.8


def test_without_replay_the_first_task_is_forgotten() -> None:
    """So the toy measures what it is meant to."""
    assert accuracy_after_one_pass(Forgetful(), False) < 0.6
