"""The orders of a single pass: complete, numbered by arrival, resumable; the blurry one against slow lists."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import Tensor

from onepass.errors import Refused
from onepass.seeds import Seeds
from onepass.stream import ORDERS, Batch, Blend, Blurry, Clear, Imbalanced, Order, Pass, Spec

KINDS: list[Order] = [Clear(3), Blurry(3, scale=8.0), Imbalanced(3, factor=1.0), Blend(3)]


def rows(n: int = 90, classes: int = 6) -> Batch:
    """Images whose pixels tell which row they are; classes of unequal size, in no order."""
    x = torch.arange(n)[:, None].bitwise_right_shift(torch.tensor([0, 8, 16])).bitwise_and(255).to(torch.uint8)
    y = torch.from_numpy(np.random.RandomState(5).permutation(np.minimum(np.arange(n) % (classes + 2), classes - 1)))
    return Batch(x.view(n, 3, 1, 1), y)


def names(classes: int) -> tuple[str, ...]:
    return tuple(f"class {c}" for c in range(classes))


def which(x: Tensor) -> list[int]:
    """The rows that images come from."""
    return (x.flatten(1).long() * torch.tensor([1, 256, 65536])).sum(1).tolist()


def played(kind: Order, seed: int = 0, data: Batch | None = None, classes: int = 6) -> Pass:
    return kind.over(data or rows(), names(classes), Seeds(seed))


def images(stream: Pass, size: int = 7, start: int = 0) -> list[int]:
    return [i for b in stream.batches(size, start) for i in which(b.x)]


# ---- what every stream gives


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 10, 1000])
def test_each_sample_comes_exactly_once(kind: Order, size: int) -> None:
    stream = played(kind)
    assert sorted(images(stream, size)) == list(range(90))
    assert len(stream) == 90


@pytest.mark.parametrize("kind", KINDS)
def test_images_keep_their_pixels_and_their_labels(kind: Order) -> None:
    data, stream = rows(), played(kind)
    for batch in stream.batches(7):
        assert batch.x.dtype == torch.uint8 and batch.y.dtype == torch.int64 and batch.name == "stream"
        for i, x, y in zip(which(batch.x), batch.x, batch.y.tolist(), strict=True):
            assert torch.equal(x, data.x[i]) and stream.spec.original[y] == data.y[i]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_labels_are_numbered_by_first_appearance(kind: Order, seed: int) -> None:
    labels = [y for batch in played(kind, seed).batches(7) for y in batch.y.tolist()]
    assert list(dict.fromkeys(labels)) == list(range(6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_tasks_names_and_originals_agree_with_the_class_order(kind: Order, seed: int) -> None:
    spec = played(kind, seed).spec
    order = Seeds(seed).class_order(6).tolist()
    assert spec.classes == 6 and spec.image == (3, 1, 1)
    assert sorted(spec.original) == list(range(6))
    assert spec.names == tuple(f"class {c}" for c in spec.original)
    assert [{spec.original[c] for c in task} for task in spec.tasks] == [set(order[i : i + 2]) for i in (0, 2, 4)]
    assert sorted(c for task in spec.tasks for c in task) == list(range(6))


def test_classes_of_a_clear_stream_are_numbered_task_after_task() -> None:
    assert played(Clear(3)).spec.tasks == ((0, 1), (2, 3), (4, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_depends_on_the_seed_alone(kind: Order) -> None:
    torch.manual_seed(1)
    one = images(played(kind, 0))
    torch.manual_seed(2)
    assert images(played(kind, 0)) == one
    assert images(played(kind, 1)) != one


@pytest.mark.parametrize("kind", KINDS)
def test_making_and_playing_a_stream_moves_no_global_generator(kind: Order) -> None:
    ours, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()
    images(played(kind))
    assert torch.equal(torch.get_rng_state(), ours) and np.array_equal(np.random.get_state()[1], theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 10])
def test_a_stream_resumed_at_a_batch_goes_on_identically(kind: Order, size: int) -> None:
    whole = [(which(b.x), b.y.tolist()) for b in played(kind).batches(size)]
    start = 0
    for i, (ids, _) in enumerate(whole):
        assert [(which(b.x), b.y.tolist()) for b in played(kind).batches(size, start)] == whole[i:]
        start += len(ids)
    assert list(played(kind).batches(size, start)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_played_twice_alike(kind: Order) -> None:
    stream = played(kind)
    assert images(stream) == images(stream)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_tasks_end_after_as_many_samples_as_their_classes_have(kind: Order, seed: int) -> None:
    data, order = rows(), Seeds(seed).class_order(6)
    sizes = [sum(int(y) in order[2 * t : 2 * t + 2] for y in data.y) for t in range(3)]
    assert len(set(sizes)) > 1
    assert played(kind, seed).task_ends == (sizes[0], sizes[0] + sizes[1], 90)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_the_data_set_get_the_streams_numbers(kind: Order) -> None:
    data, stream = rows(), played(kind)
    assert stream.number(data.y).tolist() == [stream.spec.original.index(int(c)) for c in data.y]
    assert torch.equal(stream.number(data.y), stream.y)
    assert stream.number(torch.tensor(stream.spec.original)).tolist() == list(range(6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1, 5, 17, 89])
def test_a_stream_cut_short_is_the_beginning_of_the_whole(kind: Order, limit: int) -> None:
    whole = played(kind)
    short = whole.cut(limit)
    assert len(short) == limit and images(short) == images(whole)[:limit]
    assert short.spec == whole.spec
    assert short.task_ends == (*(e for e in whole.task_ends if e < limit), limit)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_at_the_end_of_a_task_ends_with_it(kind: Order) -> None:
    whole = played(kind)
    assert whole.cut(whole.task_ends[1]).task_ends == whole.task_ends[:2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_beyond_the_end_is_none(kind: Order) -> None:
    whole = played(kind)
    assert whole.cut(None) is whole and whole.cut(90) is whole and whole.cut(10**6) is whole


@pytest.mark.parametrize("limit", [0, -3])
def test_a_cut_that_leaves_nothing_is_refused(limit: int) -> None:
    with pytest.raises(Refused, match=f"limit={limit}"):
        played(Clear(3)).cut(limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, -1])
def test_batches_of_nothing_are_refused_rather_than_endless(kind: Order, size: int) -> None:
    with pytest.raises(Refused, match=str(size)):
        next(played(kind).batches(size))


# ---- the clear stream


def test_a_task_of_a_clear_stream_is_over_before_the_next_begins() -> None:
    stream = played(Clear(3))
    ids = images(stream)
    for start, stop, task in zip((0, *stream.task_ends[:-1]), stream.task_ends, stream.spec.tasks, strict=True):
        members = {i for i, y in enumerate(stream.y.tolist()) if y in task}
        assert set(ids[start:stop]) == members
        assert ids[start:stop] != sorted(members)  # and is shuffled


@pytest.mark.parametrize("kind", [Clear(3), Blurry(3)])
def test_no_image_is_left_alone_in_the_last_batch(kind: Order) -> None:
    """Batch-norm could not normalise it where a network ends in 1x1, and some methods forward the stream apart."""
    for size in range(2, 60):
        sizes = [len(b) for b in played(kind).batches(size)]
        assert min(sizes) > 1 and max(sizes) <= size + 1 and sum(sizes) == len(played(kind))
        assert images(played(kind), size) == images(played(kind))
        assert [len(b) for b in played(kind).batches(size, sizes[0])] == sizes[1:]
    assert {len(b) for b in played(kind).batches(1)} == {1}


def test_the_last_batch_of_a_clear_task_is_short_and_no_batch_has_two_tasks() -> None:
    stream = played(Clear(3))
    sizes, hand, start = [len(b) for b in stream.batches(7)], [], 0
    for end in stream.task_ends:
        left = end - start
        hand += [7] * (left // 7) + ([left % 7] if left % 7 else [])
        start = end
    assert sizes == hand and any(s < 7 for s in hand[:-1])
    for batch in stream.batches(7):
        assert any(set(batch.y.tolist()) <= set(task) for task in stream.spec.tasks)


def test_batches_of_a_blurry_stream_are_full_but_the_last() -> None:
    assert [len(b) for b in played(Blurry(3)).batches(7)] == [7] * 12 + [6]


def test_one_task_is_a_shuffle_of_everything() -> None:
    stream = played(Clear(1))
    assert stream.task_ends == (90,) and stream.spec.tasks == (tuple(range(6)),)
    assert sorted(images(stream)) == list(range(90)) != images(stream)


def test_a_class_per_task_arrives_in_the_class_order() -> None:
    assert list(played(Clear(6), 3).spec.original) == Seeds(3).class_order(6).tolist()


# ---- the blurry stream


def naive(queue: list[int], scale: float, seeds: Seeds) -> tuple[list[int], dict[str, int]]:
    """The algorithm of the authors' code on a list, fed the same numbers; and how often each branch was taken."""
    rng = seeds.numpy("blurry")
    first = list(rng.normal(0.0, scale, len(queue)))
    order, taken = [], {"redrawn": 0, "forced": 0, "forced though the tenth would do": 0}
    for value in first:
        k, redraws = int(np.floor(abs(value))), 0
        while k >= len(queue):
            k = int(np.floor(abs(rng.normal(0.0, scale))))
            redraws += 1
            if redraws == 10:
                taken["forced"] += 1
                taken["forced though the tenth would do"] += k < len(queue)
                k = 0
                break
        taken["redrawn"] += redraws > 0
        order.append(queue[k])
        queue = queue[:k] + queue[k + 1 :]
    return order, taken


@pytest.mark.parametrize("scale", [0.4, 8.0, 200.0, 900.0])
def test_the_blurry_order_equals_a_naive_rewriting(scale: float) -> None:
    total = {"redrawn": 0, "forced": 0, "forced though the tenth would do": 0}
    for seed in range(12):
        order, taken = naive(images(played(Clear(3), seed)), scale, Seeds(seed))
        assert images(played(Blurry(3, scale), seed)) == order
        total = {k: v + taken[k] for k, v in total.items()}
    if scale == 200.0:
        assert all(total.values()), total


def test_without_blur_the_order_is_the_clear_one() -> None:
    clear, blurry = played(Clear(3)), played(Blurry(3, scale=0.0))
    assert images(blurry) == images(clear)
    assert blurry.spec == clear.spec and blurry.task_ends == clear.task_ends


def test_beyond_any_width_the_order_is_the_clear_one_again() -> None:
    """After ten draws beyond the end the first one left is taken: at 1e30, whose draws no 64 bits hold, always."""
    assert images(played(Blurry(3, scale=1e30))) == images(played(Clear(3)))


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_width_is_refused(scale: float) -> None:
    with pytest.raises(Refused, match=f"scale={scale}"):
        Blurry(3, scale)


def like(classes: int, n: int = 50_000) -> Batch:
    """As many labels as CIFAR has, on images of one pixel."""
    return Batch(torch.zeros(n, 1, 1, 1, dtype=torch.uint8), torch.arange(n) % classes)


def tasks_in_turn(stream: Pass) -> Tensor:
    """The task of each sample, as they come."""
    task = torch.empty(stream.spec.classes, dtype=torch.int64)
    for t, classes in enumerate(stream.spec.tasks):
        task[list(classes)] = t
    return torch.cat([task[b.y] for b in stream.batches(10)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("classes", "tasks", "outside", "mixed"), [(100, 10, 0.103, 0.41), (10, 5, 0.044, 0.18)])
def test_a_blurry_cifar_is_as_mixed_as_the_authors(classes: int, tasks: int, outside: float, mixed: float, seed: int) -> None:
    """Samples outside their task's nominal slot, and batches of ten with more than one task."""
    turn = tasks_in_turn(played(Blurry(tasks, scale=500.0), seed, like(classes), classes))
    slot = torch.arange(50_000) // (50_000 // tasks)
    assert (turn != slot).double().mean().item() == pytest.approx(outside, abs=0.005)
    batches = turn.view(-1, 10)
    assert (batches != batches[:, :1]).any(1).double().mean().item() == pytest.approx(mixed, abs=0.02)


def test_samples_are_displaced_as_far_as_by_the_authors() -> None:
    """Quantiles at 1, 5, 50, 95 and 99 % in spec/authors-code.md, section 4."""
    clear = played(Clear(5), 0, like(10), 10).order.tolist()
    position = torch.empty(50_000, dtype=torch.int64)
    position[played(Blurry(5, 500.0), 0, like(10), 10).order] = torch.arange(50_000)
    late = position[torch.tensor(clear)] - torch.arange(50_000)
    quantiles = torch.quantile(late.double(), torch.tensor([0.01, 0.05, 0.5, 0.95, 0.99], dtype=torch.float64))
    hand = torch.tensor([-1287.0, -965.0, -120.0, 1370.0, 2390.0], dtype=torch.float64)
    torch.testing.assert_close(quantiles, hand, rtol=0.05, atol=25)


@pytest.mark.parametrize("kind", [order(10) for order in ORDERS.values()])
def test_as_many_images_as_imagenet100_has_are_ordered_in_under_two_seconds(kind: Order) -> None:
    data = like(100, 130_000)
    start = time.process_time()
    stream = played(kind, 0, data, 100)
    assert time.process_time() - start < 2
    assert len(stream.order.unique()) == len(stream) and (len(stream) == 130_000 or isinstance(kind, Imbalanced))


# ---- imbalanced


def counts(stream: Pass) -> dict[int, int]:
    """Images of each class of the data set."""
    labels = [stream.spec.original[y] for b in stream.batches(100) for y in b.y.tolist()]
    return {c: labels.count(c) for c in range(stream.spec.classes)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("factor", [1.0, 10.0, 100.0])
def test_imbalanced_classes_have_the_sizes_of_their_law(factor: float, seed: int) -> None:
    stream = played(Imbalanced(5, factor), seed, like(10, 5000), 10)
    assert sorted(counts(stream).values()) == sorted(round(500 * factor ** (-k / 9)) for k in range(10))
    uniform = played(Imbalanced(5, factor, law="uniform"), seed, like(100, 50_000), 100)
    sizes = torch.tensor(sorted(counts(uniform).values()), dtype=torch.float64) / 500
    even = 1 / factor + (1 - 1 / factor) * (torch.arange(100) + 0.5) / 100
    assert sizes.min() >= 1 / factor - 0.001 and sizes.max() <= 1 and (sizes - even).abs().max() < 0.17  # Kolmogorov, 1 % is 0.163


def test_which_class_is_frequent_depends_on_the_seed_and_on_nothing_else() -> None:
    first = [counts(played(Imbalanced(5), seed, like(10, 5000), 10)) for seed in range(4)]
    assert first == [counts(played(Imbalanced(5), seed, like(10, 5000), 10)) for seed in range(4)]
    assert len({max(sizes, key=lambda c: sizes[c]) for sizes in first}) > 1


def test_an_imbalanced_stream_is_the_clear_one_with_images_left_out() -> None:
    clear, stream = played(Clear(5), 1, like(10, 5000), 10), played(Imbalanced(5), 1, like(10, 5000), 10)
    left = set(stream.order.tolist())
    assert stream.sharp and stream.order.tolist() == [i for i in clear.order.tolist() if i in left]
    sizes, order = counts(stream), Seeds(1).class_order(10)
    ends = torch.tensor([sizes[int(c)] for c in order]).view(5, 2).sum(1).cumsum(0)
    assert stream.task_ends == tuple(ends.tolist()) and len(stream) == sum(sizes.values())
    for batch in stream.batches(7):
        assert len({y // 2 for y in batch.y.tolist()}) == 1


def test_rare_classes_come_all_over_their_task() -> None:
    stream = played(Imbalanced(2), 0, like(10, 50_000), 10)
    begin = 0
    for task, end in zip(stream.spec.tasks, stream.task_ends, strict=True):
        labels = stream.y[stream.order[begin:end]]
        for c in task:
            where = (labels == c).nonzero().double() / (end - begin)
            assert abs(where.mean() - 0.5) < 4 * (1 / 12 / len(where)) ** 0.5
        begin = end


def test_of_every_class_one_image_is_left_at_least() -> None:
    sizes = counts(played(Imbalanced(3, 1e6)))
    assert len(sizes) == 6 and min(sizes.values()) == 1 < max(sizes.values())


# ---- blended


@pytest.mark.parametrize("width", [0.25, 1.0])
def test_around_a_boundary_the_next_task_comes_in_linearly(width: float) -> None:
    stream = played(Blend(5, width), 0, like(10), 10)
    turn, ramp, total = tasks_in_turn(stream), width * 10_000, torch.zeros(20, dtype=torch.float64)
    assert stream.task_ends == (10_000, 20_000, 30_000, 40_000, 50_000) and not stream.sharp
    for t in range(4):
        end = 10_000 * (t + 1)
        around = turn[int(end - ramp / 2) : int(end + ramp / 2)]
        assert set(around.tolist()) == {t, t + 1}
        total += (around == t + 1).double().view(20, -1).mean(1) / 4
        outside = turn[int(end - 10_000 + ramp / 2) : int(end - ramp / 2)]
        assert (outside == t).double().mean() == 1 if t and len(outside) else True
    assert (total - (torch.arange(20) + 0.5) / 20).abs().max() < 0.05
    before = turn[: int(10_000 - ramp / 2)]
    assert (before == 0).all() and (turn[int(40_000 + ramp / 2) :] == 4).all()


def test_a_blend_of_no_width_is_the_clear_order() -> None:
    assert images(played(Blend(3, 0.0))) == images(played(Clear(3)))


# ---- refusals


@pytest.mark.parametrize("kind", ORDERS.values())
@pytest.mark.parametrize("tasks", [0, -1, 4, 5, 7, 12])
def test_tasks_that_do_not_divide_the_classes_are_refused_with_those_that_do(kind: type[Order], tasks: int) -> None:
    with pytest.raises(Refused, match=rf"tasks={tasks}`.* 6 classes.*1, 2, 3, 6"):
        played(kind(tasks))


def test_orders_that_make_no_sense_are_refused() -> None:
    for make, said in (
        (lambda: Imbalanced(3, 0.5), "`factor=0.5` is not how many times"),
        (lambda: Imbalanced(3, float("inf")), "`factor=inf`"),
        (lambda: Imbalanced(3, law="zipf"), "`law=zipf` is not one of exponential, uniform"),  # type: ignore[arg-type]
        (lambda: Blend(3, -0.1), "`width=-0.1` is no part of a task"),
        (lambda: Blend(3, 1.1), "`width=1.1`"),
    ):
        with pytest.raises(Refused, match=said):
            make()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("label", [-1, 6, 100])
def test_labels_outside_the_names_are_refused(kind: Order, label: int) -> None:
    data = rows()
    data.y[40] = label
    with pytest.raises(Refused, match=rf"{label}.*outside 0 to 5"):
        played(kind, data=data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_without_image_is_refused_by_name(kind: Order) -> None:
    data = rows()
    data.y[data.y == 4] = 3
    with pytest.raises(Refused, match="`class 4` has no training image"):
        played(kind, data=data)


# ---- batches


def batch(n: int, name: str, **extra: Tensor) -> Batch:
    return Batch(torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1), torch.arange(n), extra, name)


def test_a_sum_of_batches_is_both_in_this_order() -> None:
    a, b = batch(2, "replay", z=torch.ones(2), w=torch.ones(2)), batch(3, "stream", z=torch.zeros(3))
    both = a + b
    assert len(both) == 5 and both.x.flatten().tolist() == [0, 1, 0, 1, 2] and both.y.tolist() == [0, 1, 0, 1, 2]
    assert {k: v.tolist() for k, v in both.extra.items()} == {"z": [1, 1, 0, 0, 0]}  # the columns that both have
    assert both.name == "replay+stream" and both.atoms == (a, b) and a.atoms == (a,)


def test_a_sum_with_nothing_is_the_other_batch_itself() -> None:
    a, none = batch(2, "stream"), batch(0, "replay")
    assert a + none is a and none + a is a


def test_sums_of_sums_are_made_of_the_same_atoms() -> None:
    a, b, c = batch(1, "a"), batch(2, "b"), batch(3, "c")
    assert ((a + b) + c).atoms == (a + (b + c)).atoms == (a, b, c)


def test_a_slice_is_a_batch_of_its_own() -> None:
    a = batch(5, "stream", z=torch.arange(5.0))
    part = a[1:3]
    assert len(part) == 2 and part.y.tolist() == [1, 2] and part.extra["z"].tolist() == [1, 2]
    assert part.name == "stream[1:3]" and part.atoms == (part,)
    assert a[-2:].name == "stream[3:5]" and len(a[:0]) == 0


def test_two_batches_are_equal_only_if_they_are_the_same() -> None:
    a = batch(2, "stream")
    assert a == a and a != batch(2, "stream") and len({a, a[:], batch(2, "stream")}) == 3


def test_a_batch_moved_keeps_its_name_and_columns() -> None:
    moved = batch(2, "draw0", z=torch.ones(2)).to(torch.device("cpu"))
    assert moved.name == "draw0" and moved.y.tolist() == [0, 1] and moved.extra["z"].tolist() == [1, 1]


def test_a_spec_is_a_value() -> None:
    assert Spec(3, (1, 2, 2)) == Spec(classes=3, image=(1, 2, 2), tasks=(), original=(), names=())
    assert hash(Spec(3, (1, 2, 2))) == hash(Spec(3, (1, 2, 2)))
