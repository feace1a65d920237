"""What there is to know of a data set before training on it: counts, balance, means, and what cannot be read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onepass.data import Dataset, Source
from onepass.stream import Batch

OFFICIAL = {"cifar10": (10, 5000, 1000), "cifar100": (100, 500, 100), "tiny-imagenet": (200, 500, 50)}
"""Classes, and images of each for training and for testing."""

SAMPLE = 10_000  # images whose channels are looked at, evenly spaced


def report(source: Source, folder: Path | None = None) -> Iterator[str]:
    """Lines for a person.  Images that cannot be read are skipped here, whatever the source says, and named at the end."""
    data = lenient(source).load(folder)
    shape = "x".join(map(str, data.train.x.shape[1:]))
    counts = f"{len(data.train):,} images to learn from, {len(data.test):,} to test on"
    yield f"{source.name}: {counts}; {len(data.names)} classes; {shape}"
    yield from _balance("to learn from", data.train, data.names)
    yield from _balance("to test on", data.test, data.names)
    mean, std, seen = channels(data.train.x)
    many = "all" if seen == len(data.train) else f"{seen:,}, evenly spaced,"
    yield f"channels of {many} images to learn from: mean {_values(mean)}, standard deviation {_values(std)} (of 1)"
    yield from _official(source, data)
    yield f"fingerprint: {data.fingerprint}"
    if data.skipped:
        yield f"left out: {len(data.skipped):,}"
        yield from (f"  {what}" for what in data.skipped)


def lenient(source: Source) -> Source:
    """The same source, which skips what cannot be read."""
    return cast(Source, replace(cast(Any, source), corrupt="skip")) if hasattr(source, "corrupt") else source


def channels(x: Tensor) -> tuple[list[float], list[float], int]:
    """Mean and standard deviation of each channel, in [0, 1], and of how many images."""
    few = len(x) * x[0].numel() > 2**28
    index = torch.linspace(0, len(x) - 1, min(len(x), SAMPLE) if few else len(x)).round().long()
    often = np.zeros((x.shape[1], 256))  # of each value in each channel
    for rows in index.split(256):
        part = x[rows].numpy()
        often += [np.bincount(part[:, c].ravel(), minlength=256) for c in range(len(often))]
    often /= often.sum(1, keepdims=True)
    value = np.arange(256) / 255
    mean = often @ value
    return mean.tolist(), np.sqrt(np.maximum(0, often @ value**2 - mean**2)).tolist(), len(index)


def _balance(what: str, rows: Batch, names: tuple[str, ...]) -> Iterator[str]:
    count = np.bincount(rows.y.numpy(), minlength=len(names))
    if count.min() == count.max():
        yield f"images of each class {what}: {count.min():,}"
        return
    few, many = int(count.argmin()), int(count.argmax())
    yield (
        f"images of a class {what}: {count.min():,} (`{names[few]}`) to {count.max():,} (`{names[many]}`), "
        f"{int(np.median(count)):,} in the middle"
    )
    none = [names[c] for c in np.flatnonzero(count == 0)]
    if none:
        yield f"classes with nothing {what}: {', '.join(f'`{name}`' for name in none)}"


def _official(source: Source, data: Dataset) -> Iterator[str]:
    if source.name in OFFICIAL:
        classes, train, test = OFFICIAL[source.name]
        counts = [np.bincount(part.y.numpy(), minlength=classes) for part in (data.train, data.test)]
        same = len(data.names) == classes and all((c == n).all() for c, n in zip(counts, (train, test), strict=True))
        said = "are the official ones" if same else f"are not the official ones, {classes} classes of {train} and {test} images"
        yield f"these counts {said}"
    if source.name == "imagenet100" and (data.names[0], data.names[-1]) != ("n01440764", "n01855672"):
        yield "these are not the paper's classes, the first hundred of ILSVRC-2012, which run from n01440764 to n01855672"


def _values(values: list[float]) -> str:
    return ", ".join(f"{v:.4f}" for v in values)
