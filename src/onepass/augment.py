"""Batched, per-sample augmentations on the device, drawn from explicit generators.

An augmentation is a frozen value with three methods. `draw` chooses the parameters of every image, on the CPU: a
generator gives the same views on any device. `apply` computes the views and chooses nothing. Calling the value does
both. No image is looped over, and no number is read back from the device.

Cropping, resizing, padding and flipping are one sampling of the image. A *frame*, a (5, n) tensor of top, left, height,
width (in pixels) and flip (0 or 1), says which rectangle of each image fills its view; it may leave the image.

`Full` agrees with kornia's RandomResizedCrop, RandomHorizontalFlip, ColorJitter and RandomGrayscale where their
parameters are the same (`tests/test_augment.py`); the random numbers are not kornia's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import inf, log
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.errors import Refused

ORDERS = tuple(permutations(range(4)))  # of brightness, contrast, saturation, hue
TRIES = 10  # candidate rectangles per image before the whole image is taken, as in kornia and torchvision


class Augment(Protocol):
    """A frozen, hashable value that maps float images (n, c, h, w) in [0, 1] to as many views of the same shape."""

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor: ...


class FullDraw(NamedTuple):
    """Everything random about one call of `Full`, on the CPU."""

    frame: Tensor  # (5, n)
    factors: Tensor  # (4, n): brightness, contrast, saturation, hue (in turns)
    order: tuple[int, ...]  # of the four jitter operations, one for the batch
    jittered: Tensor  # indices of the images whose colours are jittered
    grayed: Tensor  # indices of the images that lose their colours


@dataclass(frozen=True, kw_only=True)
class Full:
    """RandomResizedCrop -> horizontal flip -> colour jitter -> grayscale, each drawn per image."""

    scale: tuple[float, float] = (0.2, 1.0)  # area of the rectangle, as a fraction of the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # its width over its height, uniform in the logarithm
    flip: float = 0.5  # probability
    brightness: float = 0.4  # factors are uniform in 1 -/+ this
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1  # the hue turns by at most this part of the circle
    jitter: float = 0.8  # probability
    gray: float = 0.2  # probability

    def __post_init__(self) -> None:
        _range("scale", self.scale, highest=1.0)
        _range("ratio", self.ratio)
        for name in ("flip", "jitter", "gray"):
            _within(name, getattr(self, name), 1.0, "it is a probability")
        for name in ("brightness", "contrast", "saturation"):
            _within(name, getattr(self, name), inf, "it is the half-width of an interval around 1")
        _within("hue", self.hue, 0.5, "half a turn in either direction is the whole circle of hues")

    def draw(self, n: int, image: tuple[int, int, int], rng: torch.Generator) -> FullDraw:
        """Draw the parameters for n images of shape (c, h, w): the same count of numbers whatever the fields."""
        _, h, w = image
        size = torch.tensor([(h,), (w,)])
        factors = [(max(0.0, 1 - s), 1 + s) for s in (self.brightness, self.contrast, self.saturation)]
        intervals = [self.scale] * TRIES + [(log(self.ratio[0]), log(self.ratio[1]))] * TRIES + [(0.0, 1.0)] * 5
        low, high = torch.tensor([*intervals, *factors, (-self.hue, self.hue)])[:, :, None].unbind(1)
        u = torch.lerp(low, high, torch.rand(len(low), n, generator=rng))
        area, ratio, corner, (flip, jitter, gray), factor = u.split((TRIES, TRIES, 2, 3, 4))

        area, ratio = area * (h * w), ratio.exp()
        tried = torch.stack((area / ratio, area * ratio)).sqrt_().round_()  # (2, TRIES, n): heights, widths
        most = torch.tensor([(min(h, round(w / self.ratio[0])),), (min(w, round(h * self.ratio[1])),)]).clamp_(min=1)
        tried = torch.cat((tried, most[:, None].expand(2, 1, n)), 1)  # the last try fits: all that the ratio permits
        fits = ((tried >= 1) & (tried <= size[:, None])).all(0)
        chosen = tried.gather(1, fits.byte().argmax(0).expand(2, 1, n))[:, 0]  # argmax gives the first
        corner = (corner * (size + 1 - chosen)).floor_()
        return FullDraw(
            frame=torch.cat((corner, chosen, (flip < self.flip)[None])),
            factors=factor,
            order=ORDERS[torch.randint(len(ORDERS), (), generator=rng)],
            jittered=(jitter < self.jitter).nonzero()[:, 0],
            grayed=(gray < self.gray).nonzero()[:, 0],
        )

    def apply(self, x: Tensor, drawn: FullDraw) -> Tensor:
        """The views that `drawn` describes; images that are not jittered (or grayed) come out as if nobody was."""
        out = _sample(x, drawn.frame, "bilinear", "border")
        strengths = (self.brightness, self.contrast, self.saturation, self.hue)
        coloured = x.shape[1] == 3
        order = [k for k in drawn.order if strengths[k] and (coloured or k < 2)]
        if order and len(drawn.jittered):
            rows = drawn.jittered.to(x.device, non_blocking=True)
            factors = drawn.factors[:, drawn.jittered].to(x.device, x.dtype, non_blocking=True)
            some = out.index_select(0, rows).clamp_(0, 1)
            for k in order:
                some = JITTER[k](some, factors[k, :, None, None, None]).clamp_(0, 1)
            out.index_copy_(0, rows, some)
        if coloured and len(drawn.grayed):
            rows = drawn.grayed.to(x.device, non_blocking=True)
            some = out.index_select(0, rows)
            out.index_copy_(0, rows, luma(some).expand_as(some))
        return out

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        n, c, h, w = x.shape
        return self.apply(x, self.draw(n, (c, h, w), rng))


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Zero-padded random crop -> horizontal flip; every pixel is a pixel of the image, or zero."""

    padding: int = 4
    crop: float = 1.0  # probability of cropping an image (the paper's text: 0.5)
    flip: float = 0.5  # probability
    shared: bool = False  # one crop offset for the whole batch (the authors' code)

    def __post_init__(self) -> None:
        _within("padding", self.padding, inf, "it is a number of pixels")
        for name in ("crop", "flip"):
            _within(name, getattr(self, name), 1.0, "it is a probability")

    def draw(self, n: int, image: tuple[int, int, int], rng: torch.Generator) -> Tensor:
        """Draw the frame, (5, n) on the CPU, for n images of shape (c, h, w): always 4 n numbers."""
        _, h, w = image
        u = torch.rand(4, n, generator=rng)
        corner = (u[:2] * (2 * self.padding + 1)).floor_() - self.padding
        if self.shared:
            corner = corner[:, :1].expand(2, n)
        top, left = (corner * (u[2] < self.crop)).unbind()
        return torch.stack((top, left, torch.full((n,), h), torch.full((n,), w), u[3] < self.flip))

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """The views that the frame describes, bit for bit."""
        return _sample(x, drawn, "nearest", "zeros")

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        n, c, h, w = x.shape
        return self.apply(x, self.draw(n, (c, h, w), rng))


@dataclass(frozen=True, kw_only=True)
class Normalised:
    """Another augmentation, of images that were normalised, brought back to [0, 1] afterwards: the authors' ImageNet.

    Their jitter cuts off all below 0, which now is the mean; the crop of `Partial` is padded with the mean.  The network's own
    normalisation, which comes after it, undoes what brought them back.
    """

    of: Augment
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise Refused(f"`mean={self.mean}` and `std={self.std}` need a value for each channel, and `std` values above 0.")

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        mean, std = (torch.tensor(v, dtype=x.dtype).to(x.device, non_blocking=True)[:, None, None] for v in (self.mean, self.std))
        return self.of((x - mean) / std, rng) * std + mean


def _sample(x: Tensor, frame: Tensor, mode: str, padding_mode: str) -> Tensor:
    """Stretch each image's frame over the whole output, the centres of the corner pixels on those of the corners."""
    n, _, h, w = x.shape
    if not x.is_floating_point():
        raise Refused(f"Images of `{x.dtype}` cannot be augmented, because views are interpolated; give `x / 255`.")
    if not n:
        return x.clone()
    top, left, height, width, flip = frame.to(x.device, x.dtype, non_blocking=True)[:, :, None].unbind()
    row = top + (height - 1) * torch.linspace(0, 1, h, device=x.device, dtype=x.dtype)  # (n, h), in pixels
    column = left + (width - 1) * (torch.linspace(0, 1, w, device=x.device, dtype=x.dtype) - flip).abs_()  # (n, w)
    # grid_sample wants the image's outer edges at -1 and 1, so that pixel p has its centre at (2 p + 1) / size - 1.
    row, column = (2 * row + 1) / h - 1, (2 * column + 1) / w - 1
    grid = torch.stack((column[:, None, :].expand(n, h, w), row[:, :, None].expand(n, h, w)), -1)
    return F.grid_sample(x, grid, mode, padding_mode, align_corners=False)


def luma(x: Tensor) -> Tensor:
    """The gray value (ITU-R BT.601) of RGB images, (n, 3, h, w) -> (n, 1, h, w)."""
    return (x[:, :1] * 0.299).add_(x[:, 1:2], alpha=0.587).add_(x[:, 2:], alpha=0.114)


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return x.mul_(factor)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return x.lerp_(luma(mean) if x.shape[1] == 3 else mean.mean(1, keepdim=True), 1 - factor)


def _saturation(x: Tensor, factor: Tensor) -> Tensor:
    return x.lerp_(luma(x), 1 - factor)


def _hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue of HSV, keeping saturation and value: so the largest and the smallest of r, g, b stay.

    With hues in turns, red is at 0, green at 1/3 and blue at 2/3; a channel is at its largest up to 1/6 from its own
    hue, at its smallest beyond 1/3, and linear between. Gray has no hue, but its chroma of 0 hides what is computed.
    """
    r, g, b = x.split(1, 1)
    high, low = torch.maximum(torch.maximum(r, g), b), torch.minimum(torch.minimum(r, g), b)
    chroma = (high - low).mul_(6)
    hue = torch.where(g == high, (b - r).add_(chroma, alpha=1 / 3), (r - g).add_(chroma, alpha=2 / 3))
    hue = torch.where(r == high, g - b, hue).div_(chroma.clamp(min=torch.finfo(x.dtype).tiny)).add_(turn)
    away = hue - torch.arange(3, device=x.device, dtype=x.dtype).div_(3)[:, None, None]
    away = away.sub_(away.round()).abs_().clamp_(1 / 6, 1 / 3)  # from the channel's own hue
    return torch.addcmul(low + chroma / 3, chroma, away, value=-1)


JITTER = (_brightness, _contrast, _saturation, _hue)  # each may overwrite its images


def _within(name: str, value: float, highest: float, because: str) -> None:
    if not 0 <= value <= highest:
        instead = f"between 0 and {highest:g}" if highest < inf else "0 or more"
        raise Refused(f"`{name}={value}` is impossible, because {because}; choose a value {instead}.")


def _range(name: str, value: tuple[float, float], highest: float = inf) -> None:
    if not 0 < value[0] <= value[1] <= highest:
        limit = f" <= {highest:g}" if highest < inf else ""
        raise Refused(
            f"`{name}={value}` is impossible, because it is the (lowest, highest) of a positive quantity; "
            f"choose 0 < lowest <= highest{limit}."
        )
