"""Images and labels in every form in which people have them are the same rows; what cannot be told is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from onepass.arrivals import Shape
from onepass.errors import Refused
from onepass.given import check_lengths, images, labels

COLOUR: Shape = (3, 6, 5)
GRAY: Shape = (1, 6, 5)


def rows(image: Shape, n: int = 4) -> Tensor:
    return torch.randint(256, (n, *image), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def last(x: Tensor) -> np.ndarray:
    return x.permute(0, 2, 3, 1).numpy()


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "torch, first": lambda x: x,
    "torch, last": lambda x: x.permute(0, 2, 3, 1),
    "numpy, first": lambda x: x.numpy(),
    "numpy, last": last,
    "floats": lambda x: x.float() / 255,
    "doubles, last": lambda x: last(x) / 255.0,
    "torch that needs a gradient": lambda x: (x.float() / 255).requires_grad_(),
    "a list of torch": lambda x: list(x),
    "a tuple of numpy, last": lambda x: tuple(last(x)),
    "a list of both": lambda x: [x[0], *last(x)[1:]],
    "Pillow": lambda x: [Image.fromarray(a.squeeze()) for a in last(x)],
    "Pillow and torch": lambda x: [Image.fromarray(last(x)[0].squeeze()), *x[1:]],
    "not contiguous": lambda x: x.numpy()[:, :, ::-1].copy()[:, :, ::-1],
}


@pytest.mark.parametrize("image", [COLOUR, GRAY, (3, 3, 5), (1, 8, 8)])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(form: str, image: Shape) -> None:
    x = rows(image)
    found = images(FORMS[form](x), image)
    assert found.dtype == torch.uint8 and found.is_contiguous() and torch.equal(found, x)


@pytest.mark.parametrize(
    "form", [lambda x: x[:, 0], lambda x: x[:, 0].numpy(), lambda x: list(x[:, 0]), lambda x: x[:, 0].float() / 255]
)
def test_one_channel_may_be_left_out(form: Callable[[Tensor], Any]) -> None:
    x = rows(GRAY)
    assert torch.equal(images(form(x), GRAY), x)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.permute(1, 2, 0), lambda x: Image.fromarray(x.permute(1, 2, 0).numpy())])
def test_one_image_is_a_row(form: Callable[[Tensor], Any]) -> None:
    x = rows(COLOUR)[0]
    assert torch.equal(images(form(x), COLOUR), x[None])


def test_one_gray_image_without_its_channel_is_a_row() -> None:
    assert torch.equal(images(rows(GRAY)[0, 0].numpy(), GRAY), rows(GRAY)[:1])


def test_pillow_images_are_brought_to_the_declared_size_and_colours() -> None:
    big = Image.new("RGBA", (50, 60), (255, 0, 0, 255))
    found = images(big, COLOUR)
    assert found.shape == (1, *COLOUR) and bool((found[0, 0] == 255).all() and (found[0, 1:] == 0).all())
    assert images([big], GRAY).shape == (1, *GRAY)


@pytest.mark.parametrize("nothing", [[], (), np.zeros((0, 3, 6, 5)), torch.zeros(0, 6, 5, 3), np.zeros(0)])
def test_nothing_is_no_rows(nothing: Any) -> None:
    assert images(nothing, COLOUR).shape == (0, *COLOUR)


def test_what_is_given_is_not_changed_and_not_kept() -> None:
    x = rows(COLOUR).numpy()
    found = images(x, COLOUR)
    found += 1
    assert np.array_equal(x, rows(COLOUR).numpy())


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((4, 3, 7, 5), np.uint8), r"\(4, 3, 7, 5\) are not of the declared `image=\(3, 6, 5\)`"),
        (np.zeros((4, 6, 5), np.uint8), "not of the declared"),
        (np.zeros((2, 4, 3, 6, 5), np.uint8), "not of the declared"),
        (np.zeros(90, np.uint8), "not of the declared"),
        (torch.zeros(()), "not of the declared"),
        (np.zeros((4, 3, 6, 5), np.int64), "of int64; give uint8"),
        (np.zeros((4, 3, 6, 5), bool), "of bool"),
        (np.full((4, 3, 6, 5), 3.0), "run from 3 to 3; give floats from 0 to 1"),
        (torch.full((4, 3, 6, 5), -0.1), "run from -0.1"),
        ([np.zeros((2, 3, 6, 5), np.uint8)], "Element 0 has shape"),
        (["a"], "`str` is no image"),
        ([[0, 1]], "`list` is no image"),
        ("cat.png", "`str` is no image"),
        (None, "`NoneType` is no image"),
    ],
)
def test_what_is_no_image_of_the_declared_shape_is_refused(x: Any, said: str) -> None:
    with pytest.raises(Refused, match=said):
        images(x, COLOUR)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_image_with_a_nan_is_named(value: float) -> None:
    x = rows(COLOUR).numpy() / 255.0
    x[2, 1, 0, 0] = value
    with pytest.raises(Refused, match="Image 2 holds a NaN or an infinity"):
        images(x, COLOUR)


def test_channels_that_may_be_first_or_last_are_refused_unless_the_shape_tells() -> None:
    with pytest.raises(Refused, match="first or last, and `image=.* does not tell"):
        images(np.zeros((4, 3, 3, 3), np.uint8), (3, 3, 3))
    tells = rows((3, 3, 5))
    assert torch.equal(images(tells, (3, 3, 5)), tells)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["a", "b"], ["a", "b"]),
        ("cat", ["cat"]),
        (3, [3]),
        (np.int64(3), [3]),
        (torch.tensor(3), [3]),
        (torch.tensor([1, 2]), [1, 2]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.str_("a"), ["a"]),
        ([np.int32(1), torch.tensor(2), "c", np.array(4)], [1, 2, "c", 4]),
        ((x for x in (1, 2)), [1, 2]),
        ([], []),
    ],
)
def test_labels_are_pythons_own(given: Any, found: list[Any]) -> None:
    assert labels(given) == found
    assert all(type(label) in (int, str) for label in labels(found))


def test_labels_in_columns_are_refused() -> None:
    with pytest.raises(Refused, match=r"shape \(4, 1\) are not one for each image"):
        labels(np.zeros((4, 1)))


def test_as_many_labels_as_images() -> None:
    check_lengths(rows(COLOUR), [1, 2, 3, 4])
    with pytest.raises(Refused, match="4 images and 1 labels"):
        check_lengths(rows(COLOUR), [1])
