"""The time of one call of the augmentations, against kornia's: `python bench/augment.py`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from onepass.augment import Full, Partial

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import kornia.augmentation as K

REPEATS = 300
SIZE = 32


def milliseconds(calls: list[Callable[[Tensor], Tensor]], x: Tensor) -> list[float]:
    """The median time of each call; they take turns, so that whatever else the machine does falls on all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for repeat in range(REPEATS + 10):
        for call, mine in zip(calls, times, strict=True):
            start = time.perf_counter()
            call(x)
            if repeat >= 10:
                mine.append(1e3 * (time.perf_counter() - start))
    return [median(mine) for mine in times]


def main() -> None:
    torch.manual_seed(0)
    # A training step frees far larger blocks: after that the allocator keeps its pages, as it does here.
    torch.zeros(8_000_000)
    rng = torch.Generator().manual_seed(0)
    full, partial = Full(), Partial()
    kornia_full = nn.Sequential(
        K.RandomResizedCrop((SIZE, SIZE), scale=(0.2, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
    )
    kornia_partial = nn.Sequential(K.RandomCrop((SIZE, SIZE), padding=4), K.RandomHorizontalFlip())
    calls = [lambda x: full(x, rng), kornia_full, lambda x: partial(x, rng), kornia_partial]
    line = f"{SIZE}x{SIZE}, {torch.get_num_threads()} threads, median of {REPEATS}, ms, ours / kornia's (ratio)"
    for n in (74, 64, 10):
        a, b, c, d = milliseconds(calls, torch.rand(n, 3, SIZE, SIZE))
        line += f" | n={n}: full {a:.2f} / {b:.2f} ({b / a:.1f}x), partial {c:.2f} / {d:.2f} ({d / c:.1f}x)"
    print(line)


if __name__ == "__main__":
    main()
