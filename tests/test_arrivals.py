"""Open streams: labels numbered as they come, a network that shows the classes met, every method on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import onepass
from onepass.arrivals import Labels, Open, pixels
from onepass.boundaries import NewClass, Oracle
from onepass.contract import COMPANIES, Company, learner_for, toy
from onepass.errors import Refused
from onepass.learner import SGD, Learner
from onepass.method import Method
from onepass.methods import METHODS
from onepass.methods.derpp import DERpp
from onepass.methods.er import ER
from onepass.nets import ResNet18
from onepass.stream import Batch, Clear, Spec

NAMES = ("cat", "dog", "eel", "fox")


def pairs(n: int = 96, per_class: int = 24) -> Iterator[tuple[Tensor, str]]:
    """Images of four classes, one after the other, each bright in a quarter of its own."""
    rng = torch.Generator().manual_seed(0)
    for i in range(n):
        c = i // per_class % 4
        x = torch.randint(0, 100, (3, 8, 8), generator=rng, dtype=torch.uint8)
        x[:, 4 * (c // 2) :, 4 * (c % 2) :][:, :4, :4] += 120
        yield x, NAMES[c]


def learner(method: Method, company: Company, spec: Spec, **more: Any) -> Learner:
    """As the contract has it, with a rule for a method that must know where tasks begin."""
    needs = {"boundaries": NewClass(lag=2)} if method.needs_tasks else {}
    return Learner(
        spec, method, teacher=company.teacher, distill=company.distill, infer=company.infer,
        net=ResNet18(width=4), memory=30, replay_size=8, precision="fp32", **{**needs, **more},
    )  # fmt: skip


def learnt(method: Method, company: Company, stream: Open, **more: Any) -> Learner:
    made = learner(method, company, stream.spec, **more)
    for batch in stream.batches(8):
        made.observe(batch)
    return made


# ---- every method, alone and in company


@pytest.mark.parametrize(
    ("name", "company"),
    [(name, company) for name in METHODS for company in (COMPANIES if name in ("er", "gsa") else COMPANIES[:2])],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_every_method_learns_from_it_and_goes_on_after_a_restore(name: str, company: Company) -> None:
    method, stream = METHODS[name](), Open(pairs(64, 16), max_classes=9)
    whole, broken = (learner(method, company, stream.spec) for _ in range(2))
    for i, batch in enumerate(stream.batches(8)):
        for loss in whole.observe(batch).values():
            assert loss.isfinite()
        assert whole.classes == len(stream.labels) == 1 + i // 2
        assert whole.logits(batch.x).shape == (8, whole.classes)
        if i < 5:
            broken.observe(batch)
    assert whole.predict(batch.x).max() < 4 and stream.labels.names == list(NAMES)

    restored, again = learner(method, company, stream.spec), Open(pairs(64, 16), max_classes=9)
    restored.load_state_dict({k: v.clone() for k, v in broken.state_dict().items()})
    for batch in again.batches(8, start=restored.clock.samples):
        restored.observe(batch)
    mine, theirs = restored.state_dict(), whole.state_dict()
    assert mine.keys() == theirs.keys() and not [k for k in mine if not torch.equal(mine[k], theirs[k])]

    before, after = learner(method, company, stream.spec).student.state_dict(), whole.student.state_dict()
    for key in before:  # what belongs to classes never met is as it was
        if key.startswith("core.classifier"):
            assert torch.equal(before[key][4:], after[key][4:]) and not torch.equal(before[key][:4], after[key][:4])
        if key.startswith("heads.pair.2"):
            assert torch.equal(before[key][4:], after[key][4:])
        if key == "heads.pair.0.weight":
            assert torch.equal(before[key][:, 4:9], after[key][:, 4:9]) and torch.equal(before[key][:, 13:], after[key][:, 13:])


@pytest.mark.parametrize("name", METHODS)
def test_where_every_class_comes_at_once_it_is_a_closed_stream_bit_for_bit(name: str) -> None:
    closed = toy(Clear(1))
    rule: dict[str, Any] = {"boundaries": NewClass(lag=2)} if METHODS[name].needs_tasks else {}
    learners = [
        learner(METHODS[name](), COMPANIES[1], replace(closed.spec, tasks=(), open=is_open), **rule) for is_open in (True, False)
    ]
    for i, batch in enumerate(closed.batches(16)):
        assert i or len(batch.y.unique()) == 4
        losses = [mine.observe(batch) for mine in learners]
        assert all(torch.equal(losses[0][k], losses[1][k]) for k in losses[1])
        if i == 2:
            break
    mine, theirs = (m.state_dict() for m in learners)
    assert not [k for k in mine if not torch.equal(mine[k], theirs[k])]


def test_updates_as_graphs_are_those_without() -> None:
    eager, graphed = (learnt(DERpp(), COMPANIES[1], Open(pairs(144, 36), 9), graph=graph) for graph in (False, True))
    assert graphed.graphs is not None and graphed.graphs.replayed > 2
    mine, theirs = eager.state_dict(), graphed.state_dict()
    assert not [k for k in mine if not torch.equal(mine[k], theirs[k])]


# ---- what a network shows


def test_the_student_the_teacher_and_a_methods_own_show_the_classes_met() -> None:
    stream = Open(pairs(), max_classes=9)
    made = learner(METHODS["ocm"](), COMPANIES[1], stream.spec)
    widths: list[tuple[int, ...]] = []
    for batch in stream.batches(12):
        step = made.step(batch, made.meet(batch))
        view = step.raw(batch)
        nets = (step.student, step.teacher, step.net("previous"))
        widths.append((*(net(view).logits.shape[1] for net in nets), step.student.peek(view).logits.shape[1]))
    assert widths == [(c,) * 4 for c in (1, 1, 2, 2, 3, 3, 4, 4)]


def test_derpp_compares_what_was_known_when_a_row_was_stored() -> None:
    stream = Open(pairs(), max_classes=9)
    made = learner(DERpp(), COMPANIES[0], stream.spec, optim=SGD(1e-3))
    batches = stream.batches(24)
    made.observe(next(batches)), made.observe(next(batches))
    stored = made.memory.extra["logits"][: len(made.memory)]
    known = made.memory.y[: len(made.memory)] + 1  # a row of class c was stored when c + 1 classes had been met
    assert torch.equal(stored.isfinite().sum(1), known) and torch.equal(stored.isfinite(), torch.arange(9) < known[:, None])

    rows = next(batches)
    step = made.step(rows, made.meet(rows))
    old = step.draw(12)
    z = step.student(step.aug(old)).logits
    assert z.shape[1] == 3 and {1, 2} == {int(v) for v in old.extra["logits"].isfinite().sum(1)}
    total, count = torch.zeros(()), 0
    for i in range(len(old)):
        for c in range(int(old.y[i]) + 1):
            total, count = total + (z[i, c] - old.extra["logits"][i, c]) ** 2, count + 1
    gap = DERpp().gap(z, old.extra["logits"])
    assert torch.allclose(gap, total / count, rtol=1e-5)
    mine, theirs = (torch.autograd.grad(loss, z, retain_graph=True)[0] for loss in (gap, total / count))
    assert torch.allclose(mine, theirs, rtol=1e-5) and mine.isfinite().all()


def test_derpps_gap_is_torchs_where_all_is_known() -> None:
    z, stored = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1)).unbind()
    z.requires_grad_()
    mine, theirs = DERpp().gap(z, stored), F.mse_loss(z, stored)
    assert torch.equal(mine, theirs)
    assert torch.equal(*(torch.autograd.grad(0.2 * loss, z)[0] for loss in (mine, theirs)))


def test_nothing_is_predicted_before_a_class_is_met() -> None:
    made = learner(ER(), COMPANIES[0], Spec(3, (3, 8, 8), open=True))
    with pytest.raises(Refused, match="No class has been met yet"):
        made.predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_a_learner_refuses_labels_that_nobody_numbered() -> None:
    made = learner(ER(), COMPANIES[0], Spec(9, (3, 8, 8), open=True))
    before = {k: v.clone() for k, v in made.state_dict().items()}
    with pytest.raises(Refused, match="A label is 5, and only 1 other classes have been met"):
        made.observe(Batch(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 5])))
    assert all(torch.equal(before[k], v) for k, v in made.state_dict().items())


def test_the_oracle_knows_no_boundaries_of_it() -> None:
    with pytest.raises(Refused, match="no tasks to know the boundaries of"):
        learnt(ER(), COMPANIES[0], Open(pairs(), 9), boundaries=Oracle())


def test_the_contracts_learner_takes_its_stream_too() -> None:
    """What `check_method` builds for a closed stream is built for an open one by the same call."""
    closed = replace(toy(Clear(2)), spec=Spec(9, (3, 8, 8), open=True), sharp=False)
    made = learner_for(ER(), COMPANIES[1], closed)
    made.observe(next(closed.batches(8)))
    assert made.classes == 2


# ---- the stream


def test_batches_are_as_the_pairs_come() -> None:
    stream = Open(((np.full((2, 3, 3), i, np.uint8), i % 3 * 10) for i in range(11)), max_classes=3)
    found = list(stream.batches(4))
    assert [len(b) for b in found] == [4, 4, 3] and [b.name for b in found] == ["stream"] * 3
    assert torch.cat([b.x for b in found])[:, 0, 0, 0].tolist() == list(range(11))
    assert torch.cat([b.y for b in found]).tolist() == [i % 3 for i in range(11)]
    assert stream.labels.names == [0, 10, 20] and stream.passed == 11
    assert stream.spec == Spec(3, (3, 2, 3), open=True)
    assert found[0].x.dtype == torch.uint8 and found[0].y.dtype == torch.int64
    assert list(stream.batches(4)) == []


def test_no_more_is_taken_from_the_source_than_is_given() -> None:
    taken: list[int] = []

    def camera() -> Iterator[tuple[np.ndarray, int]]:
        for i in range(100):
            taken.append(i)
            yield np.zeros((2, 2, 3), np.uint8), 0

    stream = Open(camera(), max_classes=1)
    assert taken == [0]
    batches = stream.batches(5)
    assert taken == [0]
    next(batches)
    assert len(taken) == 5


def test_a_list_and_a_map_style_data_set_are_streams() -> None:
    class Mapped:
        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            if i > 4:
                raise IndexError
            return torch.zeros(1, 2, 2, dtype=torch.uint8), i % 2

    for source in list(Mapped()), Mapped():  # type: ignore[call-overload]
        assert sum(len(b) for b in onepass.Open(source, max_classes=2).batches(2)) == 5


@pytest.mark.parametrize("size", [1, 5, 8])
@pytest.mark.parametrize("start", [0, 24, 40])
def test_it_goes_on_from_where_it_was(size: int, start: int) -> None:
    whole = [(x, y) for b in Open(pairs(60), 9).batches(1) for x, y in zip(b.x, b.y.tolist(), strict=True)]
    rest = [(x, y) for b in Open(pairs(60), 9).batches(size, start) for x, y in zip(b.x, b.y.tolist(), strict=True)]
    assert len(rest) == 60 - start
    assert all(torch.equal(x, z) and y == w for (x, y), (z, w) in zip(rest, whole[start:], strict=True))


def test_names_of_before_keep_their_numbers() -> None:
    stream = Open(pairs(60), 9, image=(3, 8, 8), names=("fox", "eel"))
    labels = torch.cat([b.y for b in stream.batches(7)])
    assert labels.tolist() == [2] * 24 + [3] * 24 + [1] * 12 and stream.labels.names == ["fox", "eel", "cat", "dog"]


def test_images_are_brought_to_the_shape_that_was_asked_for() -> None:
    mixed = [(Image.new("L", (9, 5), 70), "a"), (np.full((4, 4, 3), 70, np.uint8), "b"), (torch.full((1, 6, 6), 70 / 255), "c")]
    (batch,) = Open(mixed, 3, image=(3, 4, 6)).batches(10)
    assert batch.x.shape == (3, 3, 4, 6) and (batch.x == 70).all()


def test_bad_streams_are_refused() -> None:
    x = np.zeros((4, 4, 3), np.uint8)
    cases: list[tuple[Any, str]] = [
        (lambda: Open([], 3), "There is no image in this stream"),
        (lambda: Open([(x, 0)], 0), "`max_classes=0` leaves nothing"),
        (lambda: list(Open([(x, 0)], 3).batches(0)), "Batches of 0 images"),
        (lambda: list(Open([(x, 0), x], 3).batches(2)), "Element 1 of the stream is a `ndarray`, no pair"),
        (lambda: list(Open([(x, 0), (x[:3], 1)], 3).batches(2)), r"Image 1 is \(3, 3, 4\) and the first was \(3, 4, 4\)"),
        (lambda: list(Open([(x, 0), (x, 1.5)], 3).batches(2)), r"`1.5` \(float\) is no label"),
        (lambda: list(Open([(x, 0), (x, True)], 3).batches(2)), r"`True` \(bool\) is no label"),
        (lambda: list(Open(((x, c) for c in "abcd"), 3).batches(2)), "`d` would be class 4, and .* `max_classes=3`"),
    ]  # fmt: skip
    for make, said in cases:
        with pytest.raises(Refused, match=said):
            make()


# ---- labels


def test_labels_of_any_kind_are_numbered_by_first_appearance() -> None:
    labels = Labels(9)
    assert labels.number(["b", "a", "b"]).tolist() == [0, 1, 0]
    assert labels.number([np.int64(7), torch.tensor(7), 7, np.array(7), np.str_("a"), -1]).tolist() == [2, 2, 2, 2, 1, 3]
    assert labels.names == ["b", "a", 7, -1] and len(labels) == 4
    assert [type(name) for name in labels.names] == [str, str, int, int]
    assert Labels(9, labels.names).number([-1, "new"]).tolist() == [3, 4]
    assert labels.number([]).dtype == torch.int64


def test_of_labels_that_are_refused_none_is_numbered() -> None:
    labels = Labels(2, ["a"])
    for bad in ["b", "c"], ["b", None]:
        with pytest.raises(Refused):
            labels.number(bad)
        assert labels.names == ["a"] and labels.number(["a"]).tolist() == [0]
    with pytest.raises(Refused, match="`z` would be class 3"):
        Labels(2, "xyz")


# ---- images


def test_pixels_are_the_same_whoever_brings_them() -> None:
    x = torch.randint(256, (3, 5, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    hwc = x.permute(1, 2, 0).numpy()
    for given in x, x.float() / 255, x.double() / 255, x.numpy(), hwc, hwc.astype(np.float32) / 255, Image.fromarray(hwc.copy()):
        assert torch.equal(pixels(given), x)
    assert torch.equal(pixels(x.permute(1, 2, 0)), x)
    assert torch.equal(pixels(x[0]), x[:1]) and torch.equal(pixels(x[0, :, :3]), x[:1, :, :3])
    assert torch.equal(pixels(Image.fromarray(x[0, :, :1].numpy().copy())), x[:1, :, :1])


def test_an_axis_that_could_be_either_is_torchs_first_and_numpys_last() -> None:
    x = torch.arange(27, dtype=torch.uint8).view(3, 3, 3)
    assert torch.equal(pixels(x), x) and torch.equal(pixels(x.numpy()), x.permute(2, 0, 1))


def test_pixels_of_half_precision_are_taken_too() -> None:
    for dtype in torch.bfloat16, torch.float16:
        assert pixels(torch.tensor([[[0.0, 0.5], [1.0, 0.25]]], dtype=dtype)).tolist() == [[[0, 128], [255, 64]]]


def test_pixels_are_a_copy() -> None:
    x = np.zeros((3, 4, 4), np.uint8)
    kept = pixels(x)
    x += 1
    assert not kept.any()


def test_pixels_are_resized_and_recoloured_as_pillow_does() -> None:
    x = torch.randint(256, (3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    image = Image.fromarray(x.permute(1, 2, 0).numpy().copy())
    wanted = np.asarray(image.convert("L").resize((6, 4), Image.Resampling.BILINEAR))
    assert torch.equal(pixels(x, (1, 4, 6))[0], torch.tensor(wanted))
    assert torch.equal(pixels(x, (3, 8, 8)), x) and torch.equal(pixels(x[:1], (3, 8, 8)), x[:1].expand(3, 8, 8))
    assert torch.equal(pixels(Image.new("RGBA", (2, 2), (9, 8, 7, 255)))[:, 0, 0], torch.tensor([9, 8, 7], dtype=torch.uint8))
    deep = Image.fromarray((x[0].numpy().astype(np.uint16) << 8) + 7)
    assert torch.equal(pixels(deep), x[:1])  # of sixteen bits the upper eight
    assert pixels(torch.zeros(2, 4, 4, dtype=torch.uint8), (2, 4, 4)).shape == (2, 4, 4)  # as it is, it needs no turning


def test_a_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 90).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:900])
    with Image.open(tmp_path / "half.png") as half, pytest.raises(Refused, match="The image cannot be read"):
        pixels(half)


def test_what_is_no_image_is_refused() -> None:
    cases: list[tuple[Any, Any, str]] = [
        ("cat.png", None, "A `str` is no image"),
        (np.full((4, 4, 3), 2.0), None, "outside 0 to 1"),
        (np.full((4, 4, 3), np.nan), None, "outside 0 to 1"),
        (np.zeros((4, 4, 3), np.int64), None, "of int64; give uint8"),
        (np.zeros((4, 4, 2), np.uint8), None, r"shape \(4, 4, 2\) has no axis"),
        (np.zeros((4,), np.uint8), None, r"shape \(4,\) has no axis"),
        (np.zeros((4, 4, 3), np.uint8), (2, 4, 4), "brought to 1 or 3 channels, not to the 2"),
    ]
    for given, shape, said in cases:
        with pytest.raises(Refused, match=re.escape(said) if "(" not in said else said):
            pixels(given, shape)
