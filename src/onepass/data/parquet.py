"""Parquet files with a column of images and one of labels, as Hugging Face stores data sets."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onepass import images
from onepass.data import Dataset, Habits, check_options, habits_for, held_out
from onepass.data.cache import CHUNK, Decoded, Item, Part, Reading
from onepass.errors import Refused

TRAIN, TEST = {"train", "training"}, ("test", "testing", "validation", "valid", "val")


@dataclass(frozen=True, kw_only=True)
class Parquet:
    """A file, or a folder of shards told apart by their names (`train-00000-of-00004.parquet`, `test/0000.parquet`).

    image      the column of images: their bytes, or a struct of `bytes` and `path`.
    label      the column of labels: whole numbers from 0.
    test       what the names of the shards for testing have in them; empty: the word `test`, or else `validation`.
    size, channels, split, corrupt, mean, std   as for a folder of images.
    """

    path: str
    image: str = "image"
    label: str = "label"
    test: str = ""
    size: int | None = None
    channels: int = 3
    split: float | None = None
    corrupt: Literal["refuse", "skip"] = "refuse"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_options(self.size, self.channels, self.split, self.mean, self.std)

    @property
    def name(self) -> str:
        return f"parquet:{self.path}"

    @property
    def habits(self) -> Habits:
        return self._habits

    @cached_property
    def _habits(self) -> Habits:
        train, _ = self._shards()
        names, labels = self._names(train), self._labels(train)
        classes = len(names) or int(labels.max()) + 1
        first = (item for chunk in self._images(train, None) for item in chunk)
        return habits_for(classes, len(labels), self.size or images.side(first), self.mean, self.std)

    def load(self, folder: Path | None = None) -> Dataset:
        train, test = self._shards()
        stats = [(str(shard), shard.stat().st_size, shard.stat().st_mtime_ns) for shard in (*train, *test)]

        def read() -> Reading:
            labels, asked = self._labels(train), self._labels(test)
            names = self._names(train) or tuple(map(str, range(int(labels.max()) + 1)))
            held = np.array(held_out(labels.tolist(), self.split)) if self.split is not None else None
            parts = [
                self._part(train, labels, None if held is None else ~held),
                self._part(test, asked, None) if held is None else self._part(train, labels, held),
            ]
            for part, which in zip(parts, ("train", "test"), strict=True):
                if len(part.labels) and part.labels.max() >= len(names):
                    raise Refused(
                        f"`{self.path}` has the label {part.labels.max()} in {which} and {len(names)} classes; name them all."
                    )
            unknown = np.setdiff1d(parts[1].labels, parts[0].labels)
            if len(unknown):
                raise Refused(
                    f"The class `{names[unknown[0]]}` of `{self.path}` is tested and has no training image; leave it out."
                )
            return Reading(names, parts[0], parts[1])

        return Decoded(
            title=self.name,
            place=["parquet", str(Path(self.path).resolve()), self.image, self.label, self.test, self.split],
            stamp=json.dumps(stats),
            channels=self.channels,
            size=self.size,
            refuse=self.corrupt == "refuse",
        ).load(read)

    def _shards(self) -> tuple[list[Path], list[Path]]:
        """The files for training and for testing; all are for training where a share is to be held out."""
        root = Path(self.path)
        if not root.exists():
            raise Refused(f"There is no `{self.path}` (looked for `{root.resolve()}`); give a parquet file or a folder of them.")
        shards = sorted(root.rglob("*.parquet")) if root.is_dir() else [root]
        if not shards:
            raise Refused(
                f"`{root}` has no `.parquet` file in it; give the folder that has, e.g. the `data` of a Hugging Face data set."
            )
        names = {s: str(s.relative_to(root) if root.is_dir() else s.name) for s in shards}
        words = {s: set(re.split(r"[^a-z]+", name.lower())) for s, name in names.items()}
        train = [s for s in shards if words[s] & TRAIN]
        tests = [[s for s in shards if word in words[s] and s not in train] for word in TEST]
        if self.test:
            tests = [[s for s in shards if self.test in names[s]]]
        test = next((found for found in tests if found), [])
        if test and self.split is not None:
            raise Refused(f"`{test[0]}` is for testing, so there is no share to hold out; leave out `split={self.split}`.")
        if not test and self.split is None:
            raise Refused(
                f"`{root}` has no shard for testing (one with `test` or `validation` in its name); say what share of each class to "
                "hold out, e.g. `--data.split 0.2`."
            )
        if test and not train:
            raise Refused(f"`{root}` has no shard for training, one with `train` in its name; give the folder that has it.")
        return train or shards, test

    def _part(self, shards: Sequence[Path], labels: np.ndarray, which: np.ndarray | None) -> Part:
        rows = np.arange(len(labels)) if which is None else np.flatnonzero(which)
        return Part(labels[rows], lambda: self._images(shards, which), lambda i: f"{self.path}, row {rows[i]}")

    def _labels(self, shards: Sequence[Path]) -> np.ndarray:
        columns = [_column(shard, self._column(shard, self.label, "label")) for shard in shards]
        values = [column.to_numpy() for column in columns]
        if not values:
            return np.zeros(0, np.int64)
        for shard, column, labels in zip(shards, columns, values, strict=True):
            if labels.dtype.kind not in "iu" or column.null_count:
                what = "has empty ones" if column.null_count else f"is of {column.type}"
                raise Refused(f"The labels of `{shard}` are no whole numbers (`{self.label}` {what}); number the classes from 0.")
            if len(labels) and labels.min() < 0:
                raise Refused(
                    f"`{shard}` has a label {labels.min()}: it is not labelled; take other shards, e.g. `--data.test validation`."
                )
        labels = np.concatenate(values).astype(np.int64)
        if not len(labels):
            raise Refused(f"`{shards[0]}` has no rows; give a file that has images.")
        return labels

    def _images(self, shards: Sequence[Path], which: np.ndarray | None) -> Iterator[list[Item]]:
        """The images of some rows in lists of CHUNK: a path where there is no content."""
        waiting: list[Item] = []
        row = 0
        for shard in shards:
            name = self._column(shard, self.image, "image")
            for values in _batches(shard, name):
                for value in values:
                    if which is None or which[row]:
                        waiting.append(_item(value, shard))
                    row += 1
                    if len(waiting) == CHUNK:
                        yield waiting
                        waiting = []
        if waiting:
            yield waiting

    def _column(self, shard: Path, name: str, what: str) -> str:
        there = _open(shard).schema_arrow.names
        if name not in there:
            columns = ", ".join(f"`{c}`" for c in there)
            raise Refused(f"`{shard}` has no column `{name}`, only {columns}; say which it is with `--data.{what} NAME`.")
        return name

    def _names(self, shards: Sequence[Path]) -> tuple[str, ...]:
        """The names of the classes, which Hugging Face keeps beside the schema."""
        meta = _open(shards[0]).schema_arrow.metadata or {}
        try:
            feature = json.loads(meta[b"huggingface"])["info"]["features"][self.label]
            return tuple(str(name) for name in feature["names"])
        except (KeyError, TypeError, ValueError):
            return ()


def _column(shard: Path, name: str) -> Any:
    try:
        return _open(shard).read(columns=[name]).column(0)
    except (OSError, ValueError) as error:
        raise _damaged(shard, error) from error


def _damaged(shard: Path, error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    return Refused(f"`{shard}` is no parquet file, or a damaged one ({error}); get it again.")


def _batches(shard: Path, column: str) -> Iterator[list[Any]]:
    try:
        for batch in _open(shard).iter_batches(CHUNK, columns=[column]):
            yield batch.column(0).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own are either
        raise _damaged(shard, error) from error


def _item(value: Any, shard: Path) -> Item:
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            return str(shard.parent / value["path"])
        value = value.get("bytes")
    return value if isinstance(value, bytes) else b""  # which is no image, and said so


def _open(shard: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Refused("Parquet files need pyarrow, which is not installed: `pip install 'onepass[parquet]'`.") from error
    try:
        return pyarrow.parquet.ParquetFile(shard)
    except (OSError, ValueError) as error:
        raise _damaged(shard, error) from error
