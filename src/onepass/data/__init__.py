"""Where images come from: one file for each source, and what every one of them must give."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from onepass.augment import Augment
from onepass.errors import Refused, unknown
from onepass.stream import Batch


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with the labels of the source: uint8 (n, c, h, w), int64 (n,), on the host."""

    train: Batch
    test: Batch
    names: tuple[str, ...]  # of the classes
    fingerprint: str  # of the contents: a run is not resumed on other data


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


class Source(Protocol):
    """A frozen description of a data set."""

    name: ClassVar[str]
    habits: ClassVar[Habits]

    def load(self, folder: Path | None = None) -> Dataset: ...


def find(tree: str, folder: Path | None, name: str) -> Path:
    """Where a data set's official folder lies: in `folder`, in $ONEPASS_DATA or in the user's cache, in this order."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onepass"
    places = [Path(p) for p in (folder, os.environ.get("ONEPASS_DATA"), cache) if p]
    for place in places:
        for path in (place / tree, place):
            if path.name == tree and path.is_dir():
                return path
    looked = ", ".join(f"`{place}`" for place in places)
    raise Refused(
        f"There is no `{tree}` in {looked}. Put the official folder of {name} into one of them, or say where it is with "
        "`--data-dir` or $ONEPASS_DATA."
    )


def source(name: str) -> Source:
    """The source that the command line calls `name`."""
    from onepass.data.cifar import Cifar10, Cifar100
    from onepass.data.digits import Digits

    sources: dict[str, Source] = {s.name: s for s in (Digits(), Cifar10(), Cifar100())}
    by_class = {type(s).__name__: s for s in sources.values()}
    if name in by_class:
        return by_class[name]
    if name not in sources:
        raise unknown("data set", name, sources)
    return sources[name]
