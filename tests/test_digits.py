"""The embedded digits: split by a rule that a slow loop repeats, as uint8, the same each time."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from onepass.augment import Augment
from onepass.data import Dataset, source
from onepass.data.digits import Digits
from onepass.errors import Refused
from onepass.seeds import Seeds
from onepass.stream import Blurry, Clear


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load()


def test_every_fifth_image_of_each_class_is_for_testing(digits: Dataset) -> None:
    file = load_digits()
    met, train, test = [0] * 10, [], []
    for i, label in enumerate(file.target):
        (train if met[label] % 5 else test).append(i)
        met[label] += 1
    for part, hand in ((digits.train, train), (digits.test, test)):
        assert part.y.tolist() == file.target[hand].tolist()
        pixels = [[[round(v * 255 / 16) for v in line] for line in file.images[i]] for i in hand]
        assert part.x[:, 0].tolist() == pixels
    assert len(train) + len(test) == 1797


def test_there_are_as_many_as_it_says(digits: Dataset) -> None:
    sizes = [f"{len(part):,} to {what}" for part, what in ((digits.train, "learn from"), (digits.test, "test on"))]
    assert all(size in (Digits.__doc__ or "") for size in sizes), sizes


def test_images_are_bytes_and_labels_are_integers(digits: Dataset) -> None:
    for part in (digits.train, digits.test):
        assert part.x.dtype == torch.uint8 and part.x.shape[1:] == (1, 8, 8)
        assert part.y.dtype == torch.int64 and part.y.shape == part.x.shape[:1]
        assert part.x.min() == 0 and part.x.max() == 255
        assert part.y.unique().tolist() == list(range(10))


def test_classes_are_named_by_their_digit(digits: Dataset) -> None:
    assert digits.names == tuple("0123456789")


def test_loading_twice_gives_the_same_contents_and_fingerprint(digits: Dataset) -> None:
    again = Digits().load()
    assert again.fingerprint == digits.fingerprint == "0b7e9c3202d7bcd255d6a19a238d3743bf5e320ba74812a6679958a017c55382"
    assert torch.equal(again.train.x, digits.train.x) and torch.equal(again.test.y, digits.test.y)


def test_their_habits_are_those_of_the_design() -> None:
    habits = Digits().habits
    assert (habits.tasks, habits.memory, habits.scale) == (5, 20, 30.0)
    assert habits.mean == () and habits.std == ()


@pytest.mark.parametrize("rule", [Digits.habits.full, Digits.habits.partial])
def test_no_augmentation_mirrors_a_digit_or_leaves_its_range(rule: Augment) -> None:
    """A white column on the left is never found on the right, though the crop may lose it."""
    x = torch.zeros(200, 1, 8, 8)
    x[..., 1] = 1
    out = rule(x, torch.Generator().manual_seed(0))
    assert out.shape == x.shape and 0 <= out.min() and out.max() <= 1
    assert not out[..., 4:].any() and out[..., :4].any() and not torch.equal(out, x)


@pytest.mark.parametrize("kind", [Clear(Digits.habits.tasks), Blurry(Digits.habits.tasks, Digits.habits.scale)])
def test_they_stream_by_their_habits(digits: Dataset, kind: Clear | Blurry) -> None:
    stream = kind.over(digits.train, digits.names, Seeds(0))
    assert len(stream) == len(digits.train) and len(stream.spec.tasks) == 5 and stream.spec.image == (1, 8, 8)
    assert sum(len(b) for b in stream.batches(10)) == len(digits.train)


def test_the_command_lines_name_finds_them() -> None:
    assert source("digits") == Digits() and source("digits").name == "digits"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refused, match="`digit`.*did you mean `digits`"):
        source("digit")
    with pytest.raises(Refused, match="no data set `xyz`.*there are: .*digits"):
        source("xyz")
