"""The reservoir against the loop that defines it, its draws against what may be drawn, and its state."""

from __future__ import annotations

import math

import pytest
import safetensors.torch
import torch
from torch import Tensor

from onepass.errors import Refused
from onepass.memory import Column, Memory

IMAGE = (3, 2, 2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def items(start: int, n: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Rows that tell which they are: random pixels, the number as label, and two columns."""
    x = torch.zeros(n, *IMAGE, dtype=torch.uint8)
    for i in range(n):
        x[i] = torch.randint(256, IMAGE, generator=generator(start + i))
    y = torch.arange(start, start + n)
    return x, y, {"logits": torch.stack((y / 3, y / 7), 1), "at": y}


def memory(rows: int) -> Memory:
    return Memory(rows, IMAGE, {"logits": Column("classes"), "at": Column((), torch.int64)}, classes=2)


def filled(rows: int, n: int) -> Memory:
    mine = memory(rows)
    mine.add(*items(0, n), rng=generator())
    return mine


def batches(*sizes: int) -> list[tuple[int, int]]:
    starts = torch.tensor((0, *sizes)).cumsum(0).tolist()
    return list(zip(starts, sizes, strict=False))


# ---- writing


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (5, (1,) * 40),
        (7, (10,) * 20),  # the first batch straddles the moment of filling
        (8, (3,) * 30),
        (3, (20, 50, 20)),  # many writes to one slot in a batch, and batches larger than the memory
        (2, (200,)),
        (10, (10, 1, 1, 30)),
        (50, (7,) * 5),  # never full
        (1, (4,) * 25),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_reservoir_equals_the_sequential_loop_given_the_same_chances(rows: int, sizes: tuple[int, ...], seed: int) -> None:
    """Item n (from 0) is appended while n < M; then it takes slot floor(U (n + 1)) if that is below M."""
    mine, slots, n = memory(rows), [], 0
    ours, theirs = generator(seed), generator(seed)
    for start, size in batches(*sizes):
        mine.add(*items(start, size), rng=ours)
        for chance in torch.rand(size, dtype=torch.float64, generator=theirs).tolist():
            if n < rows:
                slots.append(n)
            else:
                slot = math.floor(chance * (n + 1))
                if slot < rows:
                    slots[slot] = n
            n += 1
        assert mine.all().y.tolist() == slots
    assert len(mine) == min(rows, n) and mine.count == n


def test_every_position_of_the_stream_is_as_likely_to_be_kept() -> None:
    """M = 50, 1,000 items, 2,000 seeds: a frequency of 0.05 each, within four standard deviations."""
    seeds, counts = 2000, torch.zeros(1000)
    x, y = torch.zeros(1000, 1, 1, 1, dtype=torch.uint8), torch.arange(1000)
    for seed in range(seeds):
        mine = Memory(50, (1, 1, 1))
        mine.add(x, y, rng=generator(seed))
        counts[mine.y] += 1
    deviation = math.sqrt(0.05 * 0.95 / seeds)
    frequency = counts / seeds
    assert ((frequency - 0.05).abs() < 4 * deviation).all()
    first, last = frequency[:100].mean().item(), frequency[-100:].mean().item()
    assert abs(first - 0.05) < 4 * deviation / 10 and abs(last - 0.05) < 4 * deviation / 10


def test_everything_is_kept_until_the_memory_is_full() -> None:
    mine = memory(20)
    for start, size in batches(6, 6, 6):
        mine.add(*items(start, size), rng=generator(start))
        assert len(mine) == start + size and mine.all().y.tolist() == list(range(start + size))


def test_what_is_kept_is_bit_equal_to_what_came() -> None:
    mine = memory(9)
    for start, size in batches(10, 10, 10, 10):
        mine.add(*items(start, size), rng=generator(start))
    kept = mine.all()
    x, y, extra = items(0, 40)
    assert kept.x.dtype == torch.uint8 and kept.y.dtype == torch.int64 and len(kept) == 9
    assert torch.equal(kept.x, x[kept.y]) and torch.equal(kept.extra["at"], kept.y)
    assert torch.equal(kept.extra["logits"], extra["logits"][kept.y])


def test_what_is_kept_is_a_copy() -> None:
    x, y, extra = items(0, 4)
    mine = memory(9)
    mine.add(x, y, extra, rng=generator())
    expected = x.clone()
    x.zero_(), y.zero_(), extra["logits"].zero_()
    kept = mine.all()
    kept.x.zero_()
    assert torch.equal(mine.all().x, expected) and mine.all().y.tolist() == [0, 1, 2, 3] and mine.all().extra["logits"].any()


def test_a_column_keeps_no_graph() -> None:
    x, y, extra = items(0, 4)
    mine = memory(3)
    mine.add(x, y, extra | {"logits": extra["logits"].requires_grad_().detach()}, rng=generator())
    assert not mine.all().extra["logits"].requires_grad


def test_columns_have_their_shape_and_type() -> None:
    shapes = {"a": Column("classes"), "b": Column((2, 3), torch.float16), "c": Column((), torch.bool)}
    mine = Memory(4, IMAGE, shapes, classes=7)
    extra = {"a": torch.ones(1, 7, dtype=torch.float64), "b": torch.ones(1, 2, 3), "c": torch.ones(1)}
    mine.add(*items(0, 1)[:2], extra, rng=generator())
    kept = {k: (tuple(v.shape), v.dtype) for k, v in mine.all().extra.items()}
    assert kept == {"a": ((1, 7), torch.float32), "b": ((1, 2, 3), torch.float16), "c": ((1,), torch.bool)}


def test_rows_without_one_of_the_columns_are_refused() -> None:
    """Else the slot would keep the value of the row that was there before."""
    mine = filled(3, 3)
    x, y, extra = items(3, 5)
    with pytest.raises(ValueError, match="logits"):
        mine.add(x, y, {"at": extra["at"]}, rng=generator())


def test_a_memory_without_columns_needs_none() -> None:
    mine = Memory(4, IMAGE)
    mine.add(*items(0, 6)[:2], rng=generator())
    assert mine.all().extra == {} and len(mine) == 4


def test_an_empty_batch_changes_nothing() -> None:
    mine = filled(3, 5)
    kept = mine.all().y.tolist()
    x, y, extra = items(5, 1)
    mine.add(x[:0], y[:0], {k: v[:0] for k, v in extra.items()}, rng=generator())
    assert mine.all().y.tolist() == kept and mine.count == 5


def test_a_reservoir_moves_no_global_generator() -> None:
    state = torch.get_rng_state()
    filled(3, 50).draw(2, rng=generator())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("rows", [0, -1])
def test_a_memory_of_nothing_is_refused(rows: int) -> None:
    with pytest.raises(Refused, match=f"memory={rows}"):
        Memory(rows, IMAGE)


# ---- drawing


@pytest.mark.parametrize("stored", [0, 1, 4, 9, 10, 30])
@pytest.mark.parametrize("n", [0, 1, 5, 10, 64])
def test_a_draw_has_no_duplicates_and_no_unfilled_slot(stored: int, n: int) -> None:
    mine = filled(10, stored)
    for seed in range(5):
        drawn = mine.draw(n, rng=generator(seed))
        assert len(drawn) == min(n, stored, 10) == len(set(drawn.y.tolist()))
        assert set(drawn.y.tolist()) <= set(mine.all().y.tolist())


def test_a_row_that_is_drawn_is_whole() -> None:
    mine, (x, _, extra) = filled(10, 30), items(0, 30)
    drawn = mine.draw(6, rng=generator(), name="draw1")
    assert drawn.name == "draw1" and mine.draw(2, rng=generator()).name == "replay"
    assert torch.equal(drawn.x, x[drawn.y]) and torch.equal(drawn.extra["logits"], extra["logits"][drawn.y])


def test_every_row_is_as_likely_to_be_drawn() -> None:
    mine, counts, draws = filled(20, 20), torch.zeros(20), 3000
    rng = generator()
    for _ in range(draws):
        counts[mine.draw(5, rng=rng).y] += 1
    assert ((counts / draws - 0.25).abs() < 4 * math.sqrt(0.25 * 0.75 / draws)).all()


def test_two_draws_are_independent() -> None:
    """They share n^2 / N rows on average."""
    mine, rng, shared = filled(50, 50), generator(), []
    for _ in range(600):
        one, other = (set(mine.draw(10, rng=rng).y.tolist()) for _ in range(2))
        shared.append(len(one & other))
    variance = 10 * 0.2 * 0.8 * 40 / 49
    assert abs(sum(shared) / 600 - 2) < 4 * math.sqrt(variance / 600)


def test_a_draw_depends_on_its_generator_alone() -> None:
    mine = filled(20, 60)
    torch.manual_seed(1)
    one = mine.draw(7, rng=generator(3)).y.tolist()
    torch.manual_seed(2)
    assert mine.draw(7, rng=generator(3)).y.tolist() == one != mine.draw(7, rng=generator(4)).y.tolist()


def classed(rows: int, labels: list[int]) -> Memory:
    mine = Memory(rows, (1, 1, 1), {"at": Column((), torch.int64)})
    n = len(labels)
    x = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1)
    mine.add(x, torch.tensor(labels), {"at": torch.arange(n)}, rng=generator())
    return mine


@pytest.mark.parametrize("replace", [False, True])
def test_a_draw_restricted_to_classes_has_no_other(replace: bool) -> None:
    mine = classed(50, [i % 5 for i in range(30)])
    mask = torch.tensor([False, True, False, True, False])
    for seed in range(10):
        drawn = mine.draw(8, rng=generator(seed), classes=mask, replace=replace)
        assert len(drawn) == 8 and set(drawn.y.tolist()) <= {1, 3}
        assert torch.equal(drawn.y, drawn.extra["at"] % 5)


def test_a_restricted_draw_gives_what_there_is_once() -> None:
    mine = classed(50, [0, 1, 1, 2, 2, 2])
    for label in range(4):
        mask = torch.arange(4) == label
        drawn = mine.draw(64, rng=generator(), classes=mask)
        assert sorted(drawn.extra["at"].tolist()) == [i for i, y in enumerate([0, 1, 1, 2, 2, 2]) if y == label]


def test_a_restricted_draw_knows_the_labels_that_were_overwritten() -> None:
    mine = classed(4, [0] * 4 + [1] * 400)
    left = mine.all().y.tolist().count(0)
    assert len(mine.draw(64, rng=generator(), classes=torch.tensor([True, False]))) == left < 4
    assert len(mine.draw(64, rng=generator(), classes=torch.tensor([False, True]))) == 4 - left


def test_an_unfilled_slot_is_of_no_class() -> None:
    """Its label would read 0."""
    mine = classed(50, [1, 1])
    assert len(mine.draw(9, rng=generator(), classes=torch.tensor([True, False]))) == 0
    assert len(mine.draw(9, rng=generator(), classes=torch.tensor([True, False]), replace=True)) == 0


def test_with_replacement_a_row_may_come_again_and_none_is_missing() -> None:
    mine = filled(10, 4)
    drawn = mine.draw(64, rng=generator(), replace=True)
    assert len(drawn) == 64 and set(drawn.y.tolist()) == {0, 1, 2, 3}
    counts = torch.bincount(mine.draw(8000, rng=generator(), replace=True).y) / 8000
    assert ((counts - 0.25).abs() < 4 * math.sqrt(0.25 * 0.75 / 8000)).all()


def test_nothing_can_be_drawn_from_an_empty_memory() -> None:
    for replace in (False, True):
        drawn = memory(10).draw(5, rng=generator(), replace=replace)
        assert len(drawn) == 0 and drawn.x.shape == (0, *IMAGE) and drawn.extra["logits"].shape == (0, 2)


# ---- its state


@pytest.mark.parametrize("through_bytes", [False, True])
@pytest.mark.parametrize("n", [0, 5, 12, 40])
def test_a_restored_memory_continues_identically(n: int, through_bytes: bool) -> None:
    one, two = filled(12, n) if n else memory(12), filled(12, 7)
    state = {k: v.clone() for k, v in one.state_dict().items()}
    two.load_state_dict(safetensors.torch.load(safetensors.torch.save(state)) if through_bytes else state)
    for start in range(40, 100, 10):
        for mine in (one, two):
            mine.add(*items(start, 10), rng=generator(start))
        a, b = one.all(), two.all()
        assert len(one) == len(two) and torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
        assert torch.equal(a.extra["logits"], b.extra["logits"]) and torch.equal(a.extra["at"], b.extra["at"])
        mask = torch.arange(100) % 2 == 0
        draws = [mine.draw(5, rng=generator(start), classes=mask).y.tolist() for mine in (one, two)]
        assert draws[0] == draws[1]


def test_a_restored_memory_shares_nothing_with_its_state() -> None:
    one, two = filled(5, 5), memory(5)
    two.load_state_dict(one.state_dict())
    one.add(*items(5, 200), rng=generator())
    assert two.all().y.tolist() == [0, 1, 2, 3, 4] and len(two) == 5


def test_its_state_is_named_tensors() -> None:
    state = filled(5, 9).state_dict()
    assert set(state) == {"x", "y", "count", "extra.logits", "extra.at"}
    assert all(isinstance(v, Tensor) for v in state.values()) and int(state["count"]) == 9
