"""Where images come from: one file for each source, and what every one of them must give."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from onepass.augment import Augment, Full, Partial
from onepass.errors import Refused, unknown
from onepass.stream import Batch


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with the labels of the source: uint8 (n, c, h, w), int64 (n,), on the host.

    Where they are many, `train.x` and `test.x` are `stored.Stored`: on the disk, and indexed and sliced as tensors are.
    """

    train: Batch
    test: Batch
    names: tuple[str, ...]  # of the classes
    fingerprint: str  # of the contents: a run is not resumed on other data
    skipped: tuple[str, ...] = ()  # what was left out, each with its reason: images that cannot be read, classes without any


@dataclass(frozen=True)
class Habits:
    """How a data set is usually streamed, remembered and augmented: what a recipe starts from."""

    tasks: int
    memory: int
    scale: float  # of a blurry stream
    full: Augment
    partial: Augment
    mean: tuple[float, ...] = ()  # normalisation, if any: applied by the network, after augmentation
    std: tuple[float, ...] = ()
    stem: Literal["small", "large"] = "small"  # of a ResNet-18 for images of this size


class Source(Protocol):
    """A frozen description of a data set."""

    @property
    def name(self) -> str: ...  # as the command line calls it
    @property
    def habits(self) -> Habits: ...  # of an instance: a folder's are known when it was looked into
    def load(self, folder: Path | None = None) -> Dataset: ...


def cache_folder() -> Path:
    """What is downloaded or decoded goes here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onepass"


def places(folder: Path | None) -> list[Path]:
    """Where data is looked for: in `folder`, in $ONEPASS_DATA and in the user's cache, in this order."""
    return [Path(p) for p in (folder, os.environ.get("ONEPASS_DATA"), cache_folder()) if p]


def find(tree: str, folder: Path | None, name: str) -> Path:
    """Where a data set's official folder lies: in one of the places, or itself one of them."""
    if folder is not None and not Path(folder).is_dir():  # a typing mistake is not to train on other data than was meant
        raise Refused(f"There is no folder `{folder}` to look for `{tree}` in; mend `--data-dir`, or leave it out.")
    for place in places(folder):
        for path in (place / tree, place):
            if path.name == tree and path.is_dir():
                return path
    raise missing(tree, folder, name)


def missing(tree: str, folder: Path | None, name: str) -> Refused:
    """The error for a data set that is nowhere: where it was looked for, and how to get it."""
    looked = ", ".join(f"`{place}`" for place in places(folder))
    return Refused(
        f"There is no `{tree}` in {looked}. `onepass data get {name}` gets it, or says how; or say where it is with "
        "`--data-dir` or $ONEPASS_DATA."
    )


# -- what sources without a name of their own share ----------------------------------------------------------------


def habits_for(classes: int, images: int, size: int, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> Habits:
    """Of images nobody knows: some ten tasks of at least two classes, a tenth remembered, blurred as CIFAR is."""
    even = [t for t in range(2, 21) if classes % t == 0 and classes // t >= 2]
    return Habits(
        tasks=max(even) if even else classes if classes <= 20 else 1,
        memory=min(10_000, max(20, images // 10)),
        scale=max(1.0, images / 100),
        full=Full(),
        partial=Partial(),
        mean=mean,
        std=std,
        stem="large" if size > 64 else "small",
    )


def held_out(labels: Sequence[int], share: float) -> list[bool]:
    """Which images are for testing: as evenly spaced within each class as it goes, and one at least where there are two."""
    count, met, held = dict[int, int](), dict[int, int](), list[bool]()
    for label in labels:
        count[label] = count.get(label, 0) + 1
    for label in labels:
        i, n = met.get(label, 0), count[label]
        met[label] = i + 1
        held.append(int((i + 1) * share) > int(i * share) or (int(n * share) == 0 and i == n - 1 > 0))
    return held


def check_options(size: int | None, channels: int, split: float | None, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Refuse what makes no sense for images of any kind."""
    if size is not None and size < 1:
        raise Refused(f"`size={size}` is no size of an image; give height and width in pixels.")
    if channels not in (1, 3):
        raise Refused(f"`channels={channels}` is neither 1 (gray) nor 3 (red, green and blue); take one of them.")
    if split is not None and not 0 < split < 1:
        raise Refused(f"`split={split}` is no share to hold out for testing; take one between 0 and 1, e.g. 0.2.")
    if len(mean) != len(std) or len(mean) not in (0, channels) or not all(s > 0 for s in std):
        raise Refused(f"`mean` and `std` have {len(mean)} and {len(std)} values; give each {channels}, those of `std` above 0.")


def source(name: str) -> Source:
    """The source that the command line calls `name`: one with a name, or `folder:PATH`, `npz:PATH`, `parquet:PATH`."""
    from onepass.data.arrays import Npz
    from onepass.data.cifar import Cifar10, Cifar100
    from onepass.data.digits import Digits
    from onepass.data.folder import Folder
    from onepass.data.imagenet100 import ImageNet100
    from onepass.data.parquet import Parquet
    from onepass.data.tiny_imagenet import TinyImageNet

    kind, _, path = name.partition(":")
    kinds = {"folder": Folder, "npz": Npz, "parquet": Parquet}
    if kind in kinds:
        if not path:
            raise Refused(f"`{name}` names no {kind}; write `{kind}:PATH`.")
        return kinds[kind](path=path)
    named: list[Any] = [Digits(), Cifar10(), Cifar100(), TinyImageNet(), ImageNet100()]  # their ClassVars are a Source's properties
    sources: dict[str, Source] = {s.name: s for s in named}
    by_class = {type(s).__name__: s for s in sources.values()}
    if name in by_class:
        return by_class[name]
    if name not in sources:
        raise unknown("data set", name, [*sources, *(f"{kind}:PATH" for kind in kinds)])
    return sources[name]
