"""How fast images come: decoding, a second start, building streams, feeding batches: `python bench/data.py [--quick] [--write]`.

Everything is made in a temporary folder: trees of JPEGs, and files as large as CIFAR-10's, in its format.  `--write` replaces this
script's section of bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from table import GOALS, Report, goal, header  # noqa: E402

from onepass import Seeds, recipe, source  # noqa: E402
from onepass.data.cache import available_cores  # noqa: E402
from onepass.data.folder import Folder  # noqa: E402
from onepass.data.stored import Stored  # noqa: E402
from onepass.nets import ResNet18  # noqa: E402
from onepass.stream import Batch, Blurry, Clear, Pass, Spec  # noqa: E402

BATCH, CLASSES = 10, 10


def seconds(call: Callable[[], Any], turns: int, before: Callable[[], Any] = lambda: None) -> float:
    """The median time of a call."""
    times: list[float] = []
    for _ in range(turns):
        before()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


# -- decoding ------------------------------------------------------------------------------------------------------


def tree(root: Path, images: int, side: int) -> Path:
    """A folder of JPEGs with the detail of photographs: a blurred pattern under a little noise."""
    rng = np.random.default_rng(0)
    for i in range(images):
        folder = root / ("test" if i % 10 == 9 else "train") / f"class{i // 10 % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pattern = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
        noise = rng.integers(-12, 13, (side, side, 3))
        pixels = (np.asarray(pattern) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.jpg", quality=90)
    return root


def plain(root: Path, side: int) -> np.ndarray:
    """What anybody would write: Pillow, one file after the other, into one array."""
    files = sorted(root.rglob("*.jpg"))
    rows = np.empty((len(files), side, side, 3), dtype=np.uint8)
    for row, file in zip(rows, files, strict=True):
        with Image.open(file) as image:
            row[:] = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
    return rows


def decoding(report: Report, home: Path, quick: bool) -> None:
    report.say("### Decoding", "")
    rows: list[list[str]] = []
    goals: list[list[str]] = []
    for images, side, to in (300, 64, 64), (1_000 if quick else 10_000, 64, 64), (300 if quick else 2_000, 300, 224):
        root, cache = tree(home / f"tree{images}x{side}", images, side), home / "cache" / "onepass"
        data = Folder(path=str(root), size=to)
        ours = seconds(data.load, 1 if quick else 3, before=lambda cache=cache: shutil.rmtree(cache, ignore_errors=True))
        theirs = seconds(lambda root=root, to=to: plain(root, to), 1 if quick else 3)
        words = f"{images:,} JPEGs of {side}x{side}" + (f" to {to}x{to}" if to != side else "")
        rows.append([words, f"{images / ours:,.0f}", f"{images / theirs:,.0f}", f"{theirs / ours:.2f}"])
        goals.append(goal(f"second start: {words}", seconds(data.load, 5), most=3, form=".3f", unit=" s"))
    head = ("images/s", f"ours, {available_cores()} cores, into the cache", "plain Pillow, one process", "times faster")
    report.table(head, rows)
    report.say(
        "Ours checks every file, digests what it holds and brings the cache to the disk; a few hundred it decodes alone.", ""
    )
    cifar(home)
    goals.insert(
        0, goal("a start with CIFAR-10, official files", seconds(lambda: source("cifar10").load(home), 5), most=1, unit=" s")
    )
    report.table(GOALS, goals)


def cifar(home: Path) -> None:
    """Random images in files like CIFAR-10's: those of Python 2 hold bytes as bytes, as protocol 4 does."""
    root = home / "cifar-10-batches-py"
    root.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        values = {b"data": rng.integers(0, 256, (10_000, 3072), dtype=np.uint8), b"labels": [i % CLASSES for i in range(10_000)]}
        (root / name).write_bytes(pickle.dumps(values, protocol=4))
    (root / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"%d" % i for i in range(CLASSES)]}, protocol=4))


# -- streams -------------------------------------------------------------------------------------------------------


def rows_of(x: Any, classes: int) -> tuple[Batch, tuple[str, ...]]:
    return Batch(x, torch.arange(len(x)) % classes), tuple(map(str, range(classes)))


def building(report: Report, quick: bool) -> None:
    report.say("### Building a stream", "")
    rows, names = rows_of(torch.zeros(130_000, 1, 1, 1, dtype=torch.uint8), 100)  # no image is looked at
    goals: list[list[str]] = []
    for order in Blurry(tasks=10, scale=500), Blurry(tasks=10, scale=3000), Clear(tasks=10):
        words = f"{type(order).__name__.lower()}{f' at scale {order.scale:g}' if isinstance(order, Blurry) else ''}"
        took = seconds(lambda order=order: order.over(rows, names, Seeds(0)), 1 if quick else 5)
        goals.append(goal(f"130,000 images of 100 classes, {words}", took, most=2, form=".2f", unit=" s"))
    report.table(GOALS, goals)


# -- feeding -------------------------------------------------------------------------------------------------------


def training(stream: Pass, side: int, updates: int) -> float:
    """Images per second of ER at width 20, its narrowest here, with a full memory of 1,000."""
    from dataclasses import replace

    config = replace(recipe("er", source("cifar10")), net=ResNet18(20, stem="small" if side <= 64 else "large"), memory=1000)
    learner = config.learner(Spec(CLASSES, (3, side, side), stream.spec.tasks), sharp=stream.sharp)
    for batch in islice(stream.batches(1000), 1):
        learner.memory.add(batch.x, batch.y, rng=torch.Generator().manual_seed(0))
    fed = stream.batches(BATCH)
    learner.observe(next(fed))
    times: list[float] = []
    for batch in islice(fed, updates):
        start = time.perf_counter()
        learner.observe(batch)
        times.append(time.perf_counter() - start)
    return BATCH / median(times)


def feeding(report: Report, home: Path, quick: bool) -> None:
    report.say("### Feeding batches", "")
    wide, file = 224, home / "rows.u8"
    count = 500 if quick else 2_000
    shape = (count, 3, wide, wide)
    with open(file, "wb") as opened:
        for _ in range(count):
            opened.write(os.urandom(3 * wide * wide))
    random = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    table: list[list[str]] = []
    goals: list[list[str]] = []
    for words, x, side in (
        ("50,000 of 32x32, in memory", random, 32),
        (f"{count:,} of 224x224, on the disk", Stored(file, shape), 224),
    ):
        rows, names = rows_of(x, CLASSES)
        stream = Blurry(tasks=5, scale=50).over(rows, names, Seeds(0))

        def fed(stream: Pass = stream) -> Iterator[Batch]:
            return stream.batches(BATCH)

        rate = len(stream) / seconds(lambda fed=fed: sum(1 for _ in fed()), 1 if quick else 5)
        trained = training(stream, side, 3 if quick else 20)
        table.append([words, f"{rate:,.0f}", f"{trained:,.1f}"])
        goals.append(goal(f"{words}: fed / learnt", rate / trained, least=50, form=".0f"))
    report.table(("images/s, batches of 10", "fed", "learnt: ER, width 20, memory batch 64"), table)
    report.table(GOALS, goals)
    some = torch.from_numpy(np.random.default_rng(0).permutation(count)[: count // 2 // BATCH * BATCH]).split(BATCH)
    stored = Stored(file, shape)
    read = seconds(lambda: each(stored, some), 5) / len(some)
    mapped = seconds(lambda: each(np.memmap(file, np.uint8, "r", shape=shape), [rows.numpy() for rows in some]), 5) / len(some)
    report.say(
        f"Ten images of 224x224 at random, from the system's cache: read {1e3 * read:.2f} ms; through a memory map whose pages "
        f"were not touched before {1e3 * mapped:.2f} ms. What a map has touched counts as the process's memory, so rows are read.",
        "",
    )


def each(images: Any, some: Sequence[Any]) -> None:
    """Read these rows, and forget them."""
    for rows in some:
        images[rows]


# -- the command ---------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a look: fewer images, and no number to quote")
    parser.add_argument("--write", action="store_true", help="replace this script's section of bench/RESULTS.md")
    known = parser.parse_args()
    report = Report()
    report.say(*header(" ".join(["python bench/data.py", *sys.argv[1:]])), "")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(home / "cache")
        decoding(report, home, known.quick)
        building(report, known.quick)
        feeding(report, home, known.quick)
    report.end("data" if known.write else None)


if __name__ == "__main__":
    main()
