"""Tiny ImageNet: 200 classes of 500 images of 64x64, in the official tree; its validation images are for testing."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from onepass.augment import Full, Partial
from onepass.data import Dataset, Habits, find
from onepass.data.cache import Decoded, Reading, files
from onepass.data.tree import Found, images_in
from onepass.errors import Refused


@dataclass(frozen=True, kw_only=True)
class TinyImageNet:
    """200 classes of 500 and 50 images of 64x64, in `tiny-imagenet-200`, numbered in the order of their WordNet names.

    corrupt   "refuse" images that cannot be read, or "skip" them, which is counted.
    """

    corrupt: Literal["refuse", "skip"] = "refuse"

    name: ClassVar[str] = "tiny-imagenet"
    habits: ClassVar[Habits] = Habits(tasks=20, memory=10_000, scale=500.0, full=Full(), partial=Partial())

    def load(self, folder: Path | None = None) -> Dataset:
        tree = find("tiny-imagenet-200", folder, self.name)
        ids = sorted(set(_lines(tree / "wnids.txt")))
        train = {wnid: images_in(tree / "train" / wnid) for wnid in ids}
        test = images_in(tree / "val" / "images")
        empty = [wnid for wnid in ids if not train[wnid].paths]
        if empty or not ids:
            where = tree / "train" / empty[0] if empty else tree / "wnids.txt"
            raise Refused(f"`{where}` has no {'images' if empty else 'classes'}: the tree is not whole; download it again.")
        annotations = tree / "val" / "val_annotations.txt"

        def read() -> Reading:
            learn = [(path, label) for label, wnid in enumerate(ids) for path in train[wnid].paths]
            return Reading(_names(tree, ids), files(learn), files(_annotated(annotations, test, ids)))

        return Decoded(
            title=self.name,
            place=["tiny-imagenet", str(tree.resolve())],
            stamp=" ".join(
                [*ids, *(train[wnid].stamp for wnid in ids), test.stamp, *map(_stamp, (annotations, tree / "words.txt"))]
            ),
            channels=3,
            size=64,
            refuse=self.corrupt == "refuse",
        ).load(read)


def _annotated(file: Path, test: Found, ids: list[str]) -> list[tuple[str, int]]:
    """The images for testing with their labels: the first two columns of the annotations."""
    number = {wnid: label for label, wnid in enumerate(ids)}
    paths = {Path(path).name: path for path in test.paths}
    rows: list[tuple[str, int]] = []
    for line in _lines(file):
        image, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0].strip()
        if wnid not in number:
            raise Refused(f"`{file}` puts `{image}` into the class `{wnid}`, which is not in `wnids.txt`; download the tree again.")
        if image not in paths:
            raise Refused(f"`{file}` names `{image}`, which is not in `{file.parent / 'images'}`; download the tree again.")
        rows.append((paths[image], number[wnid]))
    return rows


def _names(tree: Path, ids: list[str]) -> tuple[str, ...]:
    """The first word of each class, with its WordNet name where two classes share it."""
    words = dict(line.split("\t", 1) for line in _lines(tree / "words.txt") if "\t" in line)
    first = {wnid: words.get(wnid, wnid).split(",")[0].strip() or wnid for wnid in ids}
    often = Counter(first.values())
    return tuple(word if often[word] == 1 else f"{word} ({wnid})" for wnid, word in first.items())


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError as error:
        raise Refused(f"`{file}` cannot be read ({error.strerror}): the tree is not whole; download it again.") from error


def _stamp(file: Path) -> str:
    try:
        return f"{file.stat().st_size} {file.stat().st_mtime_ns}"
    except OSError:
        return "missing"
