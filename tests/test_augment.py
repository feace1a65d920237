"""The augmentations against kornia on the same parameters, against slow loops, and their draws against statistics."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from onepass.augment import Augment, Full, FullDraw, Partial

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kornia
    import kornia.augmentation as K
    from kornia.augmentation.random_generator import ResizedCropGenerator
    from kornia.geometry.transform import crop_by_indices

SHAPES = [(1, 8, 8), (3, 32, 32), (3, 64, 48), (5, 16, 16)]
STILL: dict[str, Any] = dict(brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0)


def plain(shape: tuple[int, int, int], **changes: Any) -> Full:
    """`Full` that does nothing to images of this shape, but for the changes."""
    ratio = shape[2] / shape[1]
    still: dict[str, Any] = dict(scale=(1.0, 1.0), ratio=(ratio, ratio), flip=0.0, jitter=0.0, gray=0.0)
    return Full(**{**still, **changes})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.rand(n, *shape, generator=generator(9), dtype=torch.float64).to(dtype)
    x[::3, :, :2] = x[::3, :1, :2]  # some gray pixels,
    x[:, :, 2] = (x[:, :, 2] > 0.5).to(dtype)  # some exactly 0 or 1,
    x[:, 1:, 3] = x[:, 1:2, 3]  # some whose second and third channels tie
    return x


def corners(frame: Tensor) -> Tensor:
    """kornia's boxes: (n, 4, 2), the (x, y) of the four corner pixels, clockwise from the top left."""
    top, left, height, width, _ = frame.unbind()
    bottom, right = top + height - 1, left + width - 1
    xs, ys = torch.stack((left, right, right, left), 1), torch.stack((top, top, bottom, bottom), 1)
    return torch.stack((xs, ys), 2)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


# ---- each operation against kornia


@pytest.mark.parametrize("shape", SHAPES)
def test_resized_crop(shape: tuple[int, int, int]) -> None:
    augment, x = plain(shape, scale=(0.05, 1.0), ratio=(0.5, 2.0)), images(40, shape)
    drawn = augment.draw(40, shape, generator())
    size = (shape[1], shape[2])
    close(augment.apply(x, drawn), crop_by_indices(x, corners(drawn.frame), size, "bilinear", align_corners=True))


def test_resized_crop_down_to_one_pixel() -> None:
    augment, x = plain((3, 32, 32), scale=(1e-6, 1e-3), ratio=(0.01, 100.0)), images(40, (3, 32, 32))
    drawn = augment.draw(40, (3, 32, 32), generator())
    assert drawn.frame[2:4].min() == 1
    close(augment.apply(x, drawn), crop_by_indices(x, corners(drawn.frame), (32, 32), "bilinear", align_corners=True))


def test_flip() -> None:
    augment, x = plain((3, 64, 48), flip=0.5), images(40, (3, 64, 48))
    drawn = augment.draw(40, (3, 64, 48), generator())
    flipped = drawn.frame[4].bool()
    out = augment.apply(x, drawn)
    assert 0 < flipped.sum() < 40
    close(out[flipped], kornia.geometry.hflip(x[flipped]))
    close(out[~flipped], x[~flipped])


OPERATIONS = [
    ("brightness", 1.0, kornia.enhance.adjust_brightness_accumulative),
    ("contrast", 1.0, kornia.enhance.adjust_contrast_with_mean_subtraction),
    ("saturation", 1.0, kornia.enhance.adjust_saturation_with_gray_subtraction),
    ("hue", 0.5, lambda x, turn: kornia.enhance.adjust_hue(x, turn * 2 * math.pi)),
]


@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_jitter_operation(k: int, shape: tuple[int, int, int]) -> None:
    name, strength, theirs = OPERATIONS[k]
    augment, x = plain(shape, **{**STILL, "jitter": 1.0, name: strength}), images(40, shape)
    drawn = augment.draw(40, shape, generator())
    out, x = augment.apply(x, drawn), plain(shape, **STILL).apply(x, drawn)
    if shape[0] != 3 and k >= 2:  # without three channels there are no colours
        assert out.equal(x)
    else:
        close(out, theirs(x, drawn.factors[k]))


def test_gray() -> None:
    augment, x = plain((3, 16, 16), gray=0.5), images(40, (3, 16, 16))
    drawn = augment.draw(40, (3, 16, 16), generator())
    out, gray = augment.apply(x, drawn), torch.zeros(40, dtype=torch.bool)
    gray[drawn.grayed] = True
    close(out[gray], kornia.color.rgb_to_grayscale(x[gray]).expand(-1, 3, -1, -1))
    close(out[~gray], x[~gray])


def chain(x: Tensor, drawn: FullDraw, augment: Full) -> Tensor:
    """kornia's four augmentations with our parameters."""
    n, _, h, w = x.shape
    every, jittered, grayed = torch.ones(n), torch.zeros(n), torch.zeros(n)
    jittered[drawn.jittered], grayed[drawn.grayed] = 1.0, 1.0
    shape = torch.tensor(x.shape)
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    factors = {name: factor for name, factor in zip(names, drawn.factors, strict=True)}
    box = corners(drawn.frame)
    strengths = (augment.brightness, augment.contrast, augment.saturation, augment.hue)
    steps: list[tuple[Any, dict[str, Tensor]]] = [
        (K.RandomResizedCrop((h, w)), dict(src=box, dst=box, batch_prob=every)),
        (K.RandomHorizontalFlip(p=0.5), dict(batch_prob=drawn.frame[4])),
        (K.ColorJitter(*strengths, p=0.8), dict(batch_prob=jittered, order=torch.tensor(drawn.order), **factors)),
        (K.RandomGrayscale(p=0.2), dict(batch_prob=grayed)),
    ]
    for step, params in steps:
        x = step(x, params={**params, "forward_input_shape": shape})
    return x


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 24, 40)])
@pytest.mark.parametrize("seed", range(6))
def test_full_chain(seed: int, shape: tuple[int, int, int]) -> None:
    augment, x = Full(), images(40, shape)
    drawn = augment.draw(40, shape, generator(seed))
    close(augment.apply(x, drawn), chain(x, drawn, augment))


# ---- the draws


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (10, 40)])
def test_rectangles_are_distributed_as_kornias(size: tuple[int, int]) -> None:
    n, (h, w) = 20_000, size
    ours = Full().draw(n, (3, h, w), generator()).frame
    torch.manual_seed(0)
    box = ResizedCropGenerator(size, (0.2, 1.0), (3 / 4, 4 / 3))(torch.Size((n, 3, h, w)))["src"]
    left, top = box[:, 0].unbind(1)
    right, bottom = box[:, 2].unbind(1)
    theirs = torch.stack((top, left, bottom - top + 1, right - left + 1))
    for quantity in (lambda f: f[2] * f[3] / (h * w), lambda f: f[3] / f[2], lambda f: f[0] / h, lambda f: f[1] / w):
        a, b = quantity(ours), quantity(theirs)
        error = 4 * math.sqrt(float(a.var() + b.var()) / n) + 1e-6
        assert abs(float(a.mean() - b.mean())) < error
        assert abs(float(a.std() - b.std())) < error
    top, left, height, width, _ = ours
    assert top.min() >= 0 and left.min() >= 0 and (top + height).max() <= h and (left + width).max() <= w
    assert ours.equal(ours.round())


def test_area_is_uniform_and_the_last_resort_respects_the_ratio() -> None:
    frame = Full(scale=(0.2, 0.6)).draw(20_000, (3, 200, 200), generator()).frame
    area, ratio = frame[2] * frame[3] / 200**2, frame[3] / frame[2]
    assert abs(float(area.mean()) - 0.4) < 0.004 and area.min() > 0.19 and area.max() < 0.61
    assert abs(float(ratio.log().mean())) < 0.005 and ratio.min() > 0.74 and ratio.max() < 1.36
    wide = Full(scale=(1.0, 1.0)).draw(50, (3, 30, 90), generator()).frame  # nothing of that area has the ratio
    assert wide[2].eq(30).all() and wide[3].eq(40).all()
    assert len(wide[1].unique()) > 20 and wide[1].max() <= 50


def test_factors_rates_and_orders() -> None:
    n = 20_000
    augment = Full(brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    drawn = augment.draw(n, (3, 32, 32), generator())
    for factor, (low, high) in zip(drawn.factors, [(0.6, 1.4), (0.0, 2.5), (0.8, 1.2), (-0.1, 0.1)], strict=True):
        assert low <= factor.min() < low + 0.01 and high - 0.01 < factor.max() <= high
        assert abs(float(factor.mean()) - (low + high) / 2) < 0.01 * (high - low)
    assert abs(float(drawn.frame[4].mean()) - 0.5) < 0.015
    assert abs(len(drawn.jittered) / n - 0.8) < 0.012 and abs(len(drawn.grayed) / n - 0.2) < 0.012
    rng = generator()
    assert len({augment.draw(1, (3, 8, 8), rng).order for _ in range(300)}) == 24


def test_partial_offsets_are_uniform() -> None:
    n = 20_000
    frame = Partial(padding=4, crop=0.5).draw(n, (3, 16, 24), generator())
    assert frame[2].eq(16).all() and frame[3].eq(24).all()
    for offset in frame[:2]:
        share = torch.bincount((offset + 4).long(), minlength=9) / n
        expected = torch.full((9,), 0.5 / 9)
        expected[4] += 0.5  # not cropped
        assert len(share) == 9 and (share - expected).abs().max() < 0.012
    assert abs(float(frame[4].mean()) - 0.5) < 0.015


@pytest.mark.parametrize("augment", [Full(), Partial()])
def test_each_image_draws_its_own(augment: Full | Partial) -> None:
    x = images(1, (3, 32, 32)).expand(64, -1, -1, -1)
    a, b = augment(x, generator(3)), augment(x, generator(3))
    assert a.equal(b) and not a.equal(augment(x, generator(4)))
    assert len(a.flatten(1).unique(dim=0)) > 50


def test_shared_offset() -> None:
    frame = Partial(shared=True).draw(64, (3, 32, 32), generator(1))
    assert len(frame[:2].unique(dim=1).T) == 1 and len(frame[4].unique()) == 2


@pytest.mark.parametrize("other", [plain((3, 32, 32), **STILL), Partial(flip=0.0, crop=0.0, shared=True)])
def test_the_count_of_draws_does_not_depend_on_the_fields(other: Full | Partial) -> None:
    a, b = generator(), generator()
    type(other)().draw(10, (3, 32, 32), a)
    other.draw(10, (3, 32, 32), b)
    assert a.get_state().equal(b.get_state())


# ---- what comes out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 1, 5), (3, 224, 224)])
def test_partial_is_exact(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    augment, x = Partial(padding=4, crop=0.7), torch.randn(12, *shape, generator=generator(), dtype=dtype)
    drawn = augment.draw(12, shape, generator())
    out = augment.apply(x, drawn)
    for i, (top, left, height, width, flip) in enumerate(drawn.T.long().tolist()):
        padded = torch.zeros(shape[0], height + 8, width + 8, dtype=dtype)
        padded[:, 4:-4, 4:-4] = x[i]
        view = padded[:, 4 + top : 4 + top + height, 4 + left : 4 + left + width]
        assert out[i].equal(view.flip(-1) if flip else view)


def test_the_other_images_stay_as_they_are() -> None:
    x = images(60, (3, 32, 32))
    drawn = Full().draw(60, (3, 32, 32), generator())
    touched = torch.zeros(60, dtype=torch.bool)
    touched[drawn.jittered] = touched[drawn.grayed] = True
    out, plain = Full().apply(x, drawn), Full(jitter=0.0, gray=0.0)(x, generator())
    assert 0 < touched.sum() < 60
    assert out[~touched].equal(plain[~touched])
    assert Full(**STILL, gray=0.0)(x, generator()).equal(plain)


@pytest.mark.parametrize("augment", [Full(), Partial(), Partial(shared=True)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_shapes_dtypes_and_range(augment: Augment, shape: tuple[int, int, int], n: int) -> None:
    for dtype in (torch.float32, torch.float64):
        x = images(n, shape, dtype)
        before = x.clone()
        out = augment(x, generator())
        assert out.shape == x.shape and out.dtype == dtype and x.equal(before)
        assert ((out >= 0) & (out <= 1)).all()
        bright = augment(torch.ones_like(x), generator())
        assert ((bright >= 0) & (bright <= 1)).all()


def test_float64_is_more_exact_than_float32() -> None:
    x = images(40, (3, 32, 32), torch.float64)
    drawn = Full().draw(40, (3, 32, 32), generator())
    torch.testing.assert_close(Full().apply(x.float(), drawn).double(), Full().apply(x, drawn), atol=1e-5, rtol=0)
    torch.testing.assert_close(plain((3, 32, 32))(x, generator()), x, atol=1e-13, rtol=0)


def test_values() -> None:
    assert hash(Full()) == hash(Full()) and Full() == Full() != Full(flip=0.1)
    assert len({Partial(), Partial(), Partial(crop=0.5)}) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Full(scale=(0.0, 1.0)), r"`scale=\(0\.0, 1\.0\)` .* because .*; choose"),
        (lambda: Full(scale=(0.5, 1.5)), "`scale="),
        (lambda: Full(ratio=(2.0, 1.0)), "`ratio="),
        (lambda: Full(flip=1.5), "`flip=1.5` .* because .* probability; choose .* between 0 and 1"),
        (lambda: Full(jitter=-0.1), "`jitter=-0.1`"),
        (lambda: Full(gray=math.nan), "`gray=nan`"),
        (lambda: Full(brightness=-1.0), "`brightness=-1.0` .* 0 or more"),
        (lambda: Full(contrast=-1.0), "`contrast="),
        (lambda: Full(saturation=-1.0), "`saturation="),
        (lambda: Full(hue=0.6), "`hue=0.6`"),
        (lambda: Partial(padding=-1), "`padding=-1`"),
        (lambda: Partial(crop=2.0), "`crop=2.0`"),
        (lambda: Partial(flip=2.0), "`flip=2.0`"),
        (lambda: Full()(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), generator()), "`torch.uint8` .* because .* give"),
    ],
)
def test_what_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
