"""One update from inside: views that are themselves, forwards made at most once, draws keyed by their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from onepass.augment import Partial
from onepass.boundaries import Oracle
from onepass.distill import MKD
from onepass.errors import Refused
from onepass.learner import Learner
from onepass.method import Method
from onepass.methods.er import ER
from onepass.methods.er_ace import ERACE
from onepass.nets import Custom, Linear, ResNet18
from onepass.seeds import Seeds
from onepass.step import Forward, Step, View
from onepass.stream import Batch, Spec
from onepass.teachers import EMA

SPEC = Spec(4, (3, 8, 8), tasks=((0, 1), (2, 3)))


class Core(nn.Module):
    """Convolution, batch-norm, dropout in the body and, if asked, before the classifier."""

    def __init__(self, classes: int, image: tuple[int, int, int], body: float = 0.0, top: float = 0.0):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(image[0], 16, 3, padding=1), nn.BatchNorm2d(16)
        self.drop = nn.Dropout(body)
        self.classifier = nn.Sequential(nn.Dropout(top), nn.Linear(16, classes))

    def features(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x)).relu().mean((2, 3)))


def dropping_body(classes: int, image: tuple[int, int, int]) -> nn.Module:
    return Core(classes, image, body=0.5)


def dropping_top(classes: int, image: tuple[int, int, int]) -> nn.Module:
    return Core(classes, image, top=0.5)


@dataclass(frozen=True)
class Headed(Method):
    heads: ClassVar[Any] = {"proj": Linear(), "other": Linear()}

    def loss(self, step: Step) -> Tensor:
        return step.student(step.raw(step.stream)).head("proj").sum()


def images(seed: int, n: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.randint(2, (n,), generator=generator), name="stream")


def make(method: Method | None = None, build: Callable[..., nn.Module] = Core, **more: Any) -> Learner:
    """A learner with 20 images in its memory, of which a step replays 12."""
    more = {"teacher": EMA(0.1), "precision": "fp32"} | more
    learner = Learner(SPEC, method or ER(), net=Custom(build), memory=20, replay_size=12, **more)
    learner.memory.add(*_of(images(1, 20)), rng=torch.Generator())
    return learner


def _of(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.x, batch.y


def begin(learner: Learner | None = None, n: int = 10) -> Step:
    learner = learner or make()
    rows = images(2, n)
    return learner.step(rows, learner.meet(rows))


def inputs_of(module: nn.Module) -> list[Tensor]:
    """Whatever the module is given from now on."""
    given: list[Tensor] = []
    module.register_forward_pre_hook(lambda _, args: given.append(args[0].detach().clone()))
    return given


def rotations(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cat([x.rot90(k, (2, 3)) for k in range(4)]), torch.cat([y + 10 * k for k in range(4)])


def upside_down(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.flip(2), y


# ---- views have identity


@pytest.mark.parametrize("of", ["stream", "replay", "both"])
def test_a_view_asked_for_twice_is_the_same_object(of: str) -> None:
    step = begin()
    batch = getattr(step, of)
    assert step.raw(batch) is step.raw(batch)
    assert step.aug(batch) is step.aug(batch)
    assert step.aug(batch, "mkd") is step.aug(batch, "mkd")
    assert step.view(batch, upside_down) is step.view(batch, upside_down)
    assert step.aug(batch, using=Partial(padding=2)) is step.aug(batch, using=Partial(padding=2)), "rules are values"


def test_the_methods_own_augmentation_named_is_the_same_view() -> None:
    step = begin(make(augment=Partial(padding=2)))
    assert step.aug(step.stream, using=Partial(padding=2)) is step.aug(step.stream)


def test_another_draw_is_another_view_with_other_pixels() -> None:
    step = begin()
    main, own = step.aug(step.stream), step.aug(step.stream, "mkd")
    assert main is not own and not torch.equal(main.x, own.x)
    assert (main.name, own.name) == ("aug(stream)", "mkd:aug(stream)")


def test_another_draw_of_raw_is_another_view_and_another_forward_of_the_same_pixels() -> None:
    step = begin()
    main, own = step.raw(step.stream), step.raw(step.stream, "mkd")
    assert main is not own and torch.equal(main.x, own.x)
    step.student(main)
    step.student(own)
    assert step.student.calls == [("raw(stream)",), ("mkd:raw(stream)",)] and step.student.images == [10, 10]


def test_another_kind_rule_function_or_batch_is_another_view() -> None:
    step = begin()
    views = [
        step.raw(step.stream),
        step.aug(step.stream),
        step.aug(step.stream, using=Partial(padding=1)),
        step.view(step.stream, upside_down),
        step.view(step.stream, rotations),
        step.raw(step.replay),
        step.aug(step.raw(step.stream)),
    ]
    assert len(set(views)) == 7


def test_raw_is_the_pixels_over_255() -> None:
    for precision, dtype in ("fp32", torch.float32), ("fp64", torch.float64), ("bf16", torch.float32):
        step = begin(make(precision=precision))
        raw = step.raw(step.both).x
        assert raw.dtype == dtype
        assert torch.equal(raw, torch.cat([step.replay.x, step.stream.x]).to(dtype) / 255)


def test_a_view_leaves_the_images_of_its_batch_alone() -> None:
    step = begin()
    kept = step.stream.x.clone()
    for view in step.raw(step.stream), step.aug(step.stream), step.view(step.stream, upside_down):
        step.student(view)
    assert torch.equal(step.stream.x, kept) and torch.equal(step.raw(step.stream).x, kept / 255)


@dataclass(frozen=True)
class Noise:
    """Adds noise to a share of each image."""

    share: float

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return self.share * x + torch.rand(x.shape, generator=rng)


def test_an_augmentation_is_given_the_pixels_and_a_generator_that_depends_on_names_alone() -> None:
    noise, noisy = begin(make(augment=Noise(0))), begin(make(augment=Noise(1)))
    for draw in "main", "mkd":
        alone, both = noise.aug(noise.both, draw), noisy.aug(noisy.both, draw)
        torch.testing.assert_close(both.x - noisy.raw(noisy.both).x, alone.x)
        assert alone.x.std() > 0.25


def test_a_view_by_a_function_has_its_images_and_labels() -> None:
    step = begin()
    view = step.view(step.both, rotations)
    expected = [rotations(step.raw(b).x, b.y) for b in (step.replay, step.stream)]
    assert len(view) == 4 * 22
    assert torch.equal(view.x, torch.cat([x for x, _ in expected]))
    assert torch.equal(view.y, torch.cat([y for _, y in expected]))
    step.student(view)
    assert step.student.calls == [("rotations(replay)", "rotations(stream)")] and step.student.images == [88]


def test_a_view_of_a_view_starts_from_its_pixels() -> None:
    step = begin()
    turned = step.view(step.stream, rotations)
    again = step.view(turned, upside_down)
    assert torch.equal(again.x, turned.x.flip(2)) and torch.equal(again.y, turned.y)
    assert step.aug(turned) is step.aug(turned) and len(step.aug(turned)) == 40


# ---- atoms


@pytest.mark.parametrize("draw", ["main", "mkd"])
def test_a_view_of_both_is_made_of_the_views_of_its_parts(draw: str) -> None:
    step = begin()
    for view in step.aug, step.raw:
        both, parts = view(step.both, draw), (view(step.replay, draw), view(step.stream, draw))
        assert both.atoms == parts
        assert torch.equal(both.x, torch.cat([p.x for p in parts])) and len(both) == 22
        assert torch.equal(both.y, torch.cat([step.replay.y, step.stream.y]))


def test_both_is_replay_then_stream() -> None:
    step = begin()
    assert step.both is step.both and step.both.parts == (step.replay, step.stream)
    assert torch.equal(step.both.x, torch.cat([step.replay.x, step.stream.x]))


def test_what_was_forwarded_for_the_parts_is_known_for_both() -> None:
    step = begin()
    stream, replay = step.student(step.aug(step.stream)), step.student(step.aug(step.replay))
    both = step.student(step.aug(step.both))
    assert step.student.calls == [("aug(stream)",), ("aug(replay)",)] and step.student.images == [10, 12]
    assert torch.equal(both.features, torch.cat([replay.features, stream.features]))
    torch.testing.assert_close(both.logits, torch.cat([replay.logits, stream.logits]))


def test_what_was_forwarded_for_both_is_known_for_the_parts() -> None:
    step = begin()
    both = step.student(step.aug(step.both))
    replay, stream = step.student(step.aug(step.replay)), step.student(step.aug(step.stream))
    assert step.student.calls == [("aug(replay)", "aug(stream)")] and step.student.images == [22]
    assert torch.equal(both.features, torch.cat([replay.features, stream.features]))
    torch.testing.assert_close(both.logits, torch.cat([replay.logits, stream.logits]))


def test_a_slice_is_a_new_atom() -> None:
    step = begin()
    part = step.both[8:15]
    assert not part.parts and part.name == "replay+stream[8:15]"
    assert torch.equal(part.x, torch.cat([step.replay.x[8:], step.stream.x[:3]]))
    assert torch.equal(part.y, torch.cat([step.replay.y[8:], step.stream.y[:3]]))
    step.student(step.raw(step.both))
    step.student(step.raw(part))
    assert step.student.calls == [("raw(replay)", "raw(stream)"), ("raw(replay+stream[8:15])",)]
    assert step.student.images == [22, 7]


def test_a_slice_can_be_joined_to_whole_batches() -> None:
    step = begin()
    own = step.draw(4) + step.stream[2:5]
    step.student(step.aug(own))
    assert step.student.calls == [("aug(draw0)", "aug(stream[2:5])")] and step.student.images == [7]


def test_plus_keeps_the_extra_columns_both_have() -> None:
    def batch(name: str, *columns: str) -> Batch:
        rows = images(3, 4)
        return Batch(rows.x, rows.y, {c: torch.full((4, 2), float(ord(c[0]) + ord(name))) for c in columns}, name)

    a, b = batch("a", "logits", "age"), batch("b", "logits", "weight")
    both = a + b
    assert both.extra.keys() == {"logits"}
    assert torch.equal(both.extra["logits"], torch.cat([a.extra["logits"], b.extra["logits"]]))
    assert torch.equal(both[2:6].extra["logits"], both.extra["logits"][2:6])
    assert not (a + images(2, 3)).extra


def test_plus_with_nothing_is_the_other_batch_itself() -> None:
    step = begin()
    rows = step.stream
    assert rows + step.replay[:0] is rows and step.replay[:0] + rows is rows
    assert (step.replay + rows + step.draw(3)).parts[:2] == (step.replay, rows), "sums are flat"


# ---- forwards


def test_a_view_is_forwarded_once() -> None:
    learner = make()
    given, step = inputs_of(learner.student.core.conv), begin(learner)
    out = step.student(step.aug(step.both))
    assert step.student(step.aug(step.both)) is out and step.student.joint(step.aug(step.both))[0] is out
    assert out.logits is out.logits and len(given) == 1 and torch.equal(given[0], step.aug(step.both).x)


def test_joint_views_are_one_launch_and_each_gets_its_rows() -> None:
    learner = make()
    given, step = inputs_of(learner.student.core.conv), begin(learner)
    raw, aug = step.raw(step.stream), step.aug(step.replay)
    one, two = step.student.joint(raw, aug)
    assert step.student.calls == [("raw(stream)", "aug(replay)")] and step.student.images == [22]
    assert len(given) == 1 and torch.equal(given[0], torch.cat([raw.x, aug.x]))
    whole = learner.student.features(torch.cat([raw.x, aug.x]))
    torch.testing.assert_close(one.features, whole[:10])
    torch.testing.assert_close(two.features, whole[10:])


def test_a_group_is_known_afterwards_as_a_whole_and_in_parts() -> None:
    step = begin()
    raw, aug = step.raw(step.stream), step.aug(step.stream)
    one, two = step.student.joint(raw, aug)
    assert torch.equal(step.student(aug).features, two.features)
    again = step.student.joint(aug, raw)
    assert torch.equal(again[0].features, two.features) and torch.equal(again[1].features, one.features)
    assert len(step.student.calls) == 1


def test_an_atom_asked_for_twice_in_one_group_is_forwarded_once() -> None:
    step = begin()
    stream, both = step.student.joint(step.raw(step.stream), step.raw(step.both))
    assert step.student.calls == [("raw(stream)", "raw(replay)")] and step.student.images == [22]
    assert torch.equal(both.features[12:], stream.features) and len(both.features) == 22


def test_half_a_known_group_is_an_error_naming_it() -> None:
    learner = make()
    given, step = inputs_of(learner.student.core.conv), begin(learner)
    step.student(step.aug(step.stream))
    with pytest.raises(RuntimeError) as error:
        step.student(step.aug(step.both))
    for part in "`student`", "`aug(replay)`", "`aug(stream)`", "together", str([("aug(stream)",)]), "ask for":
        assert part in str(error.value)
    with pytest.raises(RuntimeError, match="together"):
        step.student.joint(step.aug(step.stream), step.raw(step.stream))
    assert len(given) == 1 and step.student.calls == [("aug(stream)",)], "an error launches nothing"
    step.student(step.aug(step.replay))
    assert len(step.student(step.aug(step.both)).logits) == 22


@pytest.mark.parametrize(("n", "memory", "view"), [(1, 20, "aug(stream)"), (4, 1, "aug(replay)")])
def test_a_single_image_that_batch_norm_cannot_normalise_is_refused_and_not_a_traceback(n: int, memory: int, view: str) -> None:
    learner = Learner(SPEC, ERACE(), net=ResNet18(width=2), memory=memory, replay_size=12, precision="fp32")
    learner.memory.add(*_of(images(1, memory)), rng=torch.Generator())
    with pytest.raises(Refused, match=re.escape(f"`{view}` is one image by itself")) as error:
        learner.observe(images(2, n))
    assert "`batch_size`" in str(error.value) and "\n" not in str(error.value)


def test_an_error_of_the_network_itself_is_left_as_it_is() -> None:
    learner = make()
    learner.student.core.norm.forward = fails  # pyright: ignore
    with pytest.raises(ValueError, match="of its own") as error:
        learner.observe(images(2, 4))
    assert not isinstance(error.value, Refused)


def fails(x: Tensor) -> Tensor:
    raise ValueError("of its own")


def test_student_and_teacher_know_nothing_of_each_others_forwards() -> None:
    step = begin()
    step.student(step.aug(step.stream))
    step.teacher(step.aug(step.both))
    assert step.student.calls == [("aug(stream)",)] and step.teacher.calls == [("aug(replay)", "aug(stream)")]


def test_the_student_has_a_gradient_and_the_teacher_none() -> None:
    step = begin()
    student, teacher = step.student(step.raw(step.stream)), step.teacher(step.raw(step.stream))
    assert student.logits.requires_grad and student.features.requires_grad
    assert not teacher.logits.requires_grad and not teacher.features.requires_grad
    assert torch.is_grad_enabled()


def test_a_step_without_a_teacher_says_which_field_to_set() -> None:
    step = begin(make(teacher=None))
    with pytest.raises(Refused, match=r"teacher=EMA\(alpha=0.01\)"):
        _ = step.teacher
    step.close()


# ---- a step closes


def closed(method: Method | None = None) -> Step:
    step = begin(make(method))
    step.student(step.raw(step.stream))
    step.teacher(step.raw(step.stream))
    step.close()
    return step


@pytest.mark.parametrize("who", ["student", "teacher"])
def test_a_forward_after_the_step_closed_is_an_error_naming_it(who: str) -> None:
    step = closed()
    forward: Forward = getattr(step, who)
    with pytest.raises(RuntimeError) as error:
        forward(step.aug(step.both))
    for part in f"`{who}`", "`aug(replay)`", "`aug(stream)`", "after the update", "`loss`":
        assert part in str(error.value)
    assert forward.calls == [("raw(stream)",)]


@pytest.mark.parametrize("who", ["student", "teacher"])
def test_logits_and_heads_first_asked_for_after_the_step_closed_are_the_same_error(who: str) -> None:
    step = closed(Headed())
    out = getattr(step, who)(step.raw(step.stream))
    with pytest.raises(RuntimeError, match=f"`{who}`.*`logits`.*after the update"):
        _ = out.logits
    with pytest.raises(RuntimeError, match=f"`{who}`.*`proj`.*after the update"):
        out.head("proj")


def test_what_was_computed_before_can_be_read_after() -> None:
    step = begin(make(Headed()))
    out = step.student(step.raw(step.stream))
    logits, proj = out.logits, out.head("proj")
    step.student(step.raw(step.replay))
    step.close()
    again = step.student(step.raw(step.stream))
    assert again.logits is logits and again.head("proj") is proj
    assert len(step.student(step.raw(step.both)).features) == 22
    with pytest.raises(RuntimeError, match="`other`"):
        again.head("other")


def test_remember_may_read_and_may_not_forward() -> None:
    @dataclass(frozen=True)
    class Late(Method):
        late: bool

        def loss(self, step: Step) -> Tensor:
            return step.student(step.aug(step.stream)).logits.square().mean()

        def remember(self, step: Step) -> dict[str, Tensor]:
            step.student(step.raw(step.stream) if self.late else step.aug(step.stream)).logits.detach()
            return {}

    make(Late(late=False)).observe(images(2, 10))
    with pytest.raises(RuntimeError, match=r"`raw\(stream\)` after the update"):
        make(Late(late=True)).observe(images(2, 10))


# ---- a look that leaves no trace


@pytest.mark.parametrize("running", [False, True])
def test_a_peek_moves_nothing_and_is_no_forward(running: bool) -> None:
    learner = make()
    step = begin(learner)
    kept = {k: v.clone() for k, v in learner.student.state_dict().items()}
    modes, generator = [m.training for m in learner.student.modules()], torch.get_rng_state()
    out = step.student.peek(step.aug(step.both), running=running)
    assert all(torch.equal(v, kept[k]) for k, v in learner.student.state_dict().items())
    assert [m.training for m in learner.student.modules()] == modes and torch.equal(torch.get_rng_state(), generator)
    assert not out.features.requires_grad and not out.logits.requires_grad
    assert step.student.calls == [] and step.student.images == []
    assert step.student.peeks == [("aug(replay+stream)", 22)]
    step.student(step.raw(step.stream))
    step.student(step.aug(step.both))
    assert len(step.student.calls) == 2, "the view can still be forwarded, in any group"


@pytest.mark.parametrize("running", [False, True])
def test_a_peek_sees_what_the_network_sees_in_that_mode(running: bool) -> None:
    learner = make(precision="fp64")
    learner.student.core.norm.running_mean.add_(0.1)
    step = begin(learner)
    view = step.aug(step.both)
    out = step.student.peek(view, running=running)
    learner.student.train(not running)
    torch.testing.assert_close(out.features, learner.student.features(view.x).detach())
    torch.testing.assert_close(out.logits, learner.student(view.x).detach())


def test_a_peek_with_other_weights_is_the_network_with_these() -> None:
    learner, other = make(precision="fp64"), make(precision="fp64", seeds=Seeds(1))
    step = begin(learner)
    view = step.raw(step.both)
    weights = {k: p.detach() for k, p in other.student.named_parameters()}
    torch.testing.assert_close(step.student.peek(view, weights).logits, other.student(view.x).detach())
    torch.testing.assert_close(step.student.peek(view).logits, learner.student(view.x).detach())


def test_a_peek_after_the_step_closed_is_an_error() -> None:
    step = closed()
    with pytest.raises(RuntimeError, match="after the update"):
        step.student.peek(step.raw(step.replay))


# ---- replay and further draws


def test_replay_is_drawn_once_from_memory() -> None:
    step = begin()
    assert step.replay is step.replay and len(step.replay) == 12
    memory = {tuple(x.flatten().tolist()) for x in step.memory.x}
    assert len({tuple(x.flatten().tolist()) for x in step.replay.x} & memory) == 12, "rows of the memory, each once"


def test_replay_may_be_assigned_before_it_is_read() -> None:
    step = begin()
    mine = step.draw(3)
    step.replay = mine
    assert step.replay is mine and step.both.parts == (mine, step.stream)


def test_an_empty_replay_leaves_the_stream_alone() -> None:
    step = begin()
    step.replay = step.stream[:0]
    assert step.both is step.stream
    step.student(step.aug(step.both))
    assert step.student.calls == [("aug(stream)",)]


@pytest.mark.parametrize("used", ["replay", "both"])
def test_replay_cannot_be_assigned_after_it_was_read(used: str) -> None:
    step = begin()
    read = getattr(step, used)
    with pytest.raises(RuntimeError, match="`replay` was read"):
        step.replay = step.draw(3)
    assert getattr(step, used) is read


def test_further_draws_are_new_batches_with_numbers() -> None:
    step = begin()
    first, second = step.draw(8), step.draw(8)
    assert (first.name, second.name) == ("draw0", "draw1") and not torch.equal(first.x, second.x)
    assert not torch.equal(first.x, step.replay.x[:8])
    assert len(step.draw(1000)) == 20


def test_a_further_draw_can_be_of_some_classes() -> None:
    step = begin()
    ones = int((step.memory.y == 1).sum())
    drawn = step.draw(1000, classes=torch.tensor([False, True, False, False]))
    assert len(drawn) == ones and set(drawn.y.tolist()) == {1}


# ---- draws are keyed by name


def test_the_order_of_use_changes_no_draw() -> None:
    a = begin()
    in_order = [a.replay.x, a.aug(a.replay).x, a.aug(a.stream).x, a.aug(a.stream, "mkd").x, torch.rand(3, generator=a.random("z"))]
    b = begin()
    reverse: list[Tensor] = [torch.rand(3, generator=b.random("z")), b.aug(b.stream, "mkd").x]
    torch.rand(100, generator=b.random("another"))
    b.aug(b.raw(b.draw(5)), "mkd")
    b.student(b.aug(b.stream))
    reverse += [b.aug(b.stream).x, b.aug(b.replay).x, b.replay.x]
    assert all(torch.equal(x, y) for x, y in zip(in_order, reversed(reverse), strict=True))


def test_each_name_has_draws_of_its_own() -> None:
    step = begin()
    named = [step.stream, *(Batch(step.stream.x, step.stream.y, name=name) for name in ("replay", "draw0"))]
    views = [step.aug(b, d).x for b in named for d in ("main", "mkd")]
    assert not any(torch.equal(views[i], views[j]) for i in range(6) for j in range(i))
    assert not torch.equal(torch.rand(3, generator=step.random("a")), torch.rand(3, generator=step.random("b")))


def test_each_update_and_each_seed_has_draws_of_its_own() -> None:
    def drawn(seed: int, update: int) -> list[Tensor]:
        learner = make(seeds=Seeds(seed))
        learner.clock.updates = update
        step = begin(learner)
        return [step.replay.x, step.aug(step.stream).x, torch.rand(3, generator=step.random("a"))]

    base = drawn(0, 0)
    assert all(torch.equal(x, y) for x, y in zip(base, drawn(0, 0), strict=True))
    for other in drawn(0, 1), drawn(1, 0):
        assert not any(torch.equal(x, y) for x, y in zip(base, other, strict=True))


@pytest.mark.parametrize("name", ["replay", "draw0", "aug(stream)"])
def test_what_a_method_draws_for_itself_is_not_what_the_step_draws(name: str) -> None:
    """A generator is keyed by its purpose too: a method may call its own draw "replay"."""
    step = begin()
    generator = step.random(name)
    if name == "aug(stream)":
        equal = torch.equal(step.aug(step.stream).x, step.augment(step.raw(step.stream).x, generator))
    else:
        rows = step.replay if name == "replay" else step.draw(12)
        equal = torch.equal(rows.x, step.memory.x[torch.randperm(20, generator=generator)[:12]])
    assert not equal


# ---- tasks


@pytest.mark.parametrize("what", ["task", "new", "since"])
def test_tasks_without_a_rule_are_refused_with_the_papers_rule(what: str) -> None:
    step = begin(make(Headed()))
    with pytest.raises(Refused) as error:
        getattr(step, what)
    assert "`Headed`" in str(error.value) and "`boundaries=NewClass(lag=100)`" in str(error.value)


def test_tasks_with_a_rule_can_be_read() -> None:
    step = begin(make(boundaries=Oracle()))
    assert (step.task, step.since) == (0, 0) and step.new.tolist() == [True, True, False, False]


def test_classes_seen_and_present_need_no_rule() -> None:
    learner = make()
    learner.meet(Batch(images(0, 3).x, torch.tensor([0, 3, 0])))
    rows = Batch(images(0, 3).x, torch.tensor([1, 1, 3]))
    step = learner.step(rows, learner.meet(rows))
    assert step.seen.tolist() == [True, True, False, True] and step.present.tolist() == [False, True, False, True]
    assert step.seen.device.type == step.present.device.type == "cpu"


# ---- precision and layout


def test_outputs_are_float32_and_the_network_runs_in_bf16() -> None:
    learner = make(Headed(), precision="bf16")
    ran: list[torch.dtype] = []
    for module in learner.student.core.conv, learner.student.core.classifier, learner.student.heads["proj"]:
        module.register_forward_hook(lambda _, __, out: ran.append(out.dtype))
    step = begin(learner)
    for view in step.raw(step.stream), step.aug(step.both):
        for forward in step.student, step.teacher:
            out = forward(view)
            assert {out.features.dtype, out.logits.dtype, out.head("proj").dtype} == {torch.float32}
    assert ran == [torch.bfloat16] * 6
    assert {p.dtype for p in learner.student.parameters()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("fp64", torch.float64)])
def test_outputs_are_as_wide_as_the_network(precision: str, dtype: torch.dtype) -> None:
    step = begin(make(Headed(), precision=precision))
    out = step.student(step.aug(step.both))
    assert {step.aug(step.both).x.dtype, out.features.dtype, out.logits.dtype, out.head("proj").dtype} == {dtype}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_network_is_given_channels_last_images(precision: str) -> None:
    learner = make(precision=precision)
    layouts: list[bool] = []
    for net in learner.student, learner.followers["teacher"].net:
        conv = net.core.conv
        conv.register_forward_pre_hook(lambda _, a: layouts.append(a[0].is_contiguous(memory_format=torch.channels_last)))
        assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    step = begin(learner)
    views: list[View] = [step.raw(step.stream), step.aug(step.both), step.view(step.replay, rotations)]
    for view in views:
        step.student(view)
        step.teacher(view)
    assert layouts == [True] * 6


# ---- dropout in a user's network


def dropped(learner: Learner) -> Callable[[], list[Tensor]]:
    """Which features were dropped in each training forward of the student."""
    masks: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        assert module.training and bool((given[0] != 0).all())
        masks.append(out == 0)

    learner.student.core.drop.register_forward_hook(keep)
    return lambda: masks


@pytest.mark.parametrize("distill", [MKD(cross_entropy=False, draw="main"), MKD()])
def test_mkd_does_not_change_the_dropout_of_the_students_first_forward(distill: MKD) -> None:
    alone, with_mkd = make(build=dropping_body), make(build=dropping_body, distill=distill)
    masks = dropped(alone), dropped(with_mkd)
    for learner in alone, with_mkd:
        learner.observe(images(2, 10))
    (only,), (first, *more) = masks[0](), masks[1]()
    assert only.any() and not only.all() and torch.equal(only, first) and more


def test_dropout_is_keyed_by_the_update_and_by_the_view() -> None:
    def mask(update: int, draw: str) -> Tensor:
        learner = make(build=dropping_body)
        learner.clock.updates = update
        step = begin(learner)
        return step.student(step.raw(step.both, draw)).features == 0

    assert torch.equal(mask(3, "main"), mask(3, "main"))
    assert not torch.equal(mask(3, "main"), mask(4, "main"))
    assert not torch.equal(mask(3, "main"), mask(3, "mkd"))


def test_dropout_before_the_classifier_is_keyed_by_the_view_too() -> None:
    """Two forwards of the same pixels differ by what they drop, wherever in the network it is dropped."""
    step = begin(make(build=dropping_top))
    main, own = step.student(step.raw(step.both)), step.student(step.raw(step.both, "mkd"))
    assert torch.equal(main.features, own.features)
    assert not torch.equal(main.logits, own.logits)


def test_a_teacher_drops_nothing() -> None:
    step = begin(make(build=dropping_body))
    main, own = step.teacher(step.raw(step.both)), step.teacher(step.raw(step.both, "mkd"))
    assert torch.equal(main.features, own.features) and not (main.features == 0).any()


@pytest.mark.parametrize("build", [dropping_body, dropping_top])
def test_the_global_generator_neither_moves_nor_matters(build: Callable[..., nn.Module]) -> None:
    kept = torch.get_rng_state()
    try:
        learnt: list[list[Tensor]] = []
        for seed in 0, 1:
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            learner = make(build=build, distill=MKD())
            for i in range(3):
                learner.observe(images(10 + i, 10))
            assert torch.equal(torch.get_rng_state(), before)
            learnt.append(list(learner.student.state_dict().values()))
        assert all(torch.equal(a, b) for a, b in zip(*learnt, strict=True))
    finally:
        torch.set_rng_state(kept)
