"""The generators: the same numbers for ever, each purpose on its own, and the paper's class orders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onepass.seeds import Seeds

PAPER = {  # spec/authors-code.md, section 4: numpy's legacy shuffle at the seeds of the paper
    10: [
        [2, 8, 4, 9, 1, 6, 7, 3, 0, 5],
        [2, 9, 6, 4, 0, 3, 1, 7, 8, 5],
        [4, 1, 5, 0, 7, 2, 3, 6, 9, 8],
        [5, 4, 1, 2, 9, 6, 7, 0, 3, 8],
        [3, 8, 4, 9, 2, 6, 0, 1, 5, 7],
    ],
    100: [
        [26, 86, 2, 55, 75, 93, 16, 73, 54, 95],
        [80, 84, 33, 81, 93, 17, 36, 82, 69, 65],
        [83, 30, 56, 24, 16, 23, 2, 27, 28, 13],
        [93, 67, 6, 64, 96, 83, 98, 42, 25, 15],
        [20, 10, 96, 16, 63, 24, 53, 97, 41, 47],
    ],
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", PAPER)
def test_classes_arrive_in_the_papers_order(classes: int, seed: int) -> None:
    order = Seeds(seed).class_order(classes)
    assert order[:10].tolist() == PAPER[classes][seed]
    assert sorted(order.tolist()) == list(range(classes))


def test_a_class_order_moves_no_global_generator() -> None:
    state = np.random.get_state()[1].copy()
    Seeds(0).class_order(100)
    assert np.array_equal(state, np.random.get_state()[1])


def test_keys_are_the_same_in_every_process() -> None:
    """Printed once; Python's own hash of these differs at each start."""
    assert Seeds(0).torch("aug", 3, "stream").initial_seed() == 2356028737687703393
    assert Seeds(1).torch("aug", 3, "stream").initial_seed() == 5211152755002466936
    assert Seeds(0).torch("step", 17, "replay").initial_seed() == 4022297576563715546
    assert Seeds(4).torch("net", 2, "student", ("aug(replay)", "aug(stream)")).initial_seed() == 6675677199212409813


def test_draws_are_the_same_in_every_process() -> None:
    assert torch.randint(1000, (5,), generator=Seeds(0).torch("replay")).tolist() == [548, 338, 420, 298, 803]
    assert Seeds(0).numpy("blurry").randint(1000, size=5).tolist() == [92, 174, 170, 241, 599]
    assert Seeds(3).numpy("order", 1).permutation(8).tolist() == [5, 2, 1, 0, 7, 4, 3, 6]


def test_a_purpose_begins_anew_each_time() -> None:
    seeds = Seeds(2)
    first, second = seeds.torch("aug", 1), seeds.torch("aug", 1)
    assert torch.equal(torch.rand(9, generator=first), torch.rand(9, generator=second))
    assert np.array_equal(seeds.numpy("order").rand(9), seeds.numpy("order").rand(9))


def test_no_two_of_many_purposes_share_their_numbers() -> None:
    keys = [(s, p, u, n) for s in range(3) for p in ("aug", "draw") for u in range(20) for n in ("stream", "replay")]
    firsts = {tuple(torch.rand(4, generator=Seeds(s).torch(*key)).tolist()) for s, *key in keys}
    assert len(firsts) == len(keys)
    assert len({Seeds(s).numpy(*key).randint(2**62) for s, *key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", 11), ("a", 1, 1)), (("a", 1), ("a", "1")), (("ab",), ("a", "b")), ((1, ("a", 2)), (1, "a", 2))],
)
def test_keys_that_read_alike_are_different(one: tuple[object, ...], other: tuple[object, ...]) -> None:
    assert Seeds(0).torch(*one).initial_seed() != Seeds(0).torch(*other).initial_seed()


def test_the_seed_is_not_just_another_part_of_the_key() -> None:
    assert Seeds(1).torch(2).initial_seed() != Seeds(2).torch(1).initial_seed()


def test_two_purposes_are_uncorrelated() -> None:
    a = torch.rand(10_000, generator=Seeds(0).torch("aug", 1))
    b = torch.rand(10_000, generator=Seeds(0).torch("aug", 2))
    assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1].item()) < 0.04


def test_drawing_for_one_purpose_moves_neither_another_nor_the_global_generators() -> None:
    seeds = Seeds(0)
    undisturbed = torch.rand(3, generator=seeds.torch("views"))
    ours, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()
    other = seeds.torch("views")
    torch.rand(100, generator=seeds.torch("memory"))
    seeds.numpy("memory").rand(100)
    assert torch.equal(torch.rand(3, generator=other), undisturbed)
    assert torch.equal(torch.get_rng_state(), ours)
    assert np.array_equal(np.random.get_state()[1], theirs)


def test_within_a_scope_the_global_generator_is_the_purposes_and_then_put_back() -> None:
    before = torch.get_rng_state()
    with Seeds(0).scope("weights", "backbone"):
        inside = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(inside, torch.rand(3, generator=Seeds(0).torch("weights", "backbone")))


def test_scopes_nest() -> None:
    with Seeds(0).scope("outer"):
        torch.rand(1)
        with Seeds(0).scope("inner"):
            torch.rand(7)
        second = torch.rand(1)
    assert torch.equal(second, torch.rand(2, generator=Seeds(0).torch("outer"))[1:])


def test_a_scope_puts_the_generator_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), Seeds(0).scope("weights"):
        torch.rand(3)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_are_values() -> None:
    assert Seeds(3) == Seeds(3) and hash(Seeds(3)) == hash(Seeds(3)) and Seeds(3) != Seeds(4)
    assert Seeds() == Seeds(0)


def test_a_seed_of_numpys_is_the_same_seed() -> None:
    """Its repr is not that of the number, and not the same in numpy 1 and 2."""
    for seed in np.arange(3):
        mine, plain = Seeds(seed), Seeds(int(seed))  # type: ignore[arg-type]
        assert torch.rand(3, generator=mine.torch("aug", 1)).tolist() == torch.rand(3, generator=plain.torch("aug", 1)).tolist()
        assert mine.numpy("blurry").randint(10**9) == plain.numpy("blurry").randint(10**9)
