"""A user's own images: a folder for each class, in `train` and `test`, or in one folder of which a share is held out."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from onepass import images
from onepass.data import Dataset, Habits, check_options, habits_for, held_out
from onepass.data.cache import Decoded, Reading, files
from onepass.data.tree import Found, called, folders, images_in
from onepass.errors import Refused


@dataclass(frozen=True, kw_only=True)
class Folder:
    """`PATH/train/<class>/*` and `PATH/test/<class>/*` (or `val`), or `PATH/<class>/*` with a `split`; any format of Pillow's.

    size       height and width that all images are stretched to; None: they have one size already.
    channels   3, or 1 for gray.
    split      the share of each class that is for testing, where there is no `test`: evenly spaced in the order of the names.
    corrupt    "refuse" images that cannot be read, or "skip" them, which is counted.
    mean, std  of each channel, in [0, 1], if the network is to normalise.
    """

    path: str
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
        return f"folder:{self.path}"

    @property
    def habits(self) -> Habits:
        return self._habits

    @cached_property
    def _habits(self) -> Habits:
        """What suits as many classes and images as there are, of the size of the first."""
        train, _ = self._found()
        paths = [path for found in train.values() for path in found.paths]
        return habits_for(len(train), len(paths), self.size or images.side(paths), self.mean, self.std)

    def load(self, folder: Path | None = None) -> Dataset:
        train, test = self._found()
        names = tuple(name for name, found in train.items() if found.paths)
        empty = tuple(f"`{name}` (a class without images)" for name, found in train.items() if not found.paths)

        def read() -> Reading:
            learn = [(path, label) for label, name in enumerate(names) for path in train[name].paths]
            ask = [(path, label) for label, name in enumerate(names) if name in test for path in test[name].paths]
            if self.split is not None:
                held = held_out([label for _, label in learn], self.split)
                learn, ask = (
                    [f for f, h in zip(learn, held, strict=True) if not h],
                    [f for f, h in zip(learn, held, strict=True) if h],
                )
            return Reading(names, files(learn), files(ask), empty)

        return Decoded(
            title=self.name,
            place=["folder", str(Path(self.path).resolve()), self.split],
            stamp=" ".join(f"{name} {found.stamp}" for part in (train, test) for name, found in part.items()),
            channels=self.channels,
            size=self.size,
            refuse=self.corrupt == "refuse",
        ).load(read)

    def _found(self) -> tuple[dict[str, Found], dict[str, Found]]:
        """The images of each class, for training and for testing; the second is empty where a share is to be held out."""
        root = Path(self.path)
        if not root.is_dir():
            raise Refused(f"There is no folder `{self.path}` (looked for `{root.resolve()}`); give one of images as `folder:PATH`.")
        parts = folders(root)
        train = root / "train" if "train" in parts else root
        tests = [root / name for name in ("test", "val") if name in parts and train != root]
        if tests and self.split is not None:
            raise Refused(f"`{tests[0]}` is for testing, so there is no share to hold out; leave out `split={self.split}`.")
        if not tests and self.split is None:
            raise Refused(
                f"`{root}` has no {'`test`' if train != root else '`train` and `test`'} beside its classes; make them, or say "
                "what share of each class to hold out for testing, e.g. `--data.split 0.2`."
            )
        found, asked = _classes(train), _classes(tests[0]) if tests else {}
        if not any(f.paths for f in found.values()):
            raise Refused(
                f"`{train}` has no images in its {len(found)} folders; put those of each class into a folder of its own there, "
                f"e.g. `{train / 'cat' / '1.png'}`."
            )
        for name, those in asked.items():
            if those.paths and not (name in found and found[name].paths):
                raise Refused(
                    f"The class `{name}` has images in `{tests[0]}` and none in `{train}`: it would be asked for and never learnt. "
                    "Move some there, or remove the folder."
                )
        return found, asked


def _classes(root: Path) -> dict[str, Found]:
    return {called(folder): images_in(root / folder) for folder in folders(root)}
