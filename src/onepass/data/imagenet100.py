"""ImageNet-100: a hundred classes of an ImageNet tree, at 224x224."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from onepass.augment import Full, Partial
from onepass.data import Dataset, Habits, missing, places
from onepass.data.cache import Decoded, Reading, files
from onepass.data.tree import folders, images_in
from onepass.errors import Refused


@dataclass(frozen=True, kw_only=True)
class ImageNet100:
    """100 classes of about 1,300 and 50 images, in `imagenet/train/<class>/*` and `imagenet/val/<class>/*`.

    classes   "first": the first hundred folders of `train` in sorted order, as in the paper; or a text file with a folder a line.
    size      height and width that all images are stretched to, not cropped (the paper's: 224).
    corrupt   "refuse" images that cannot be read, or "skip" them, which is counted.
    """

    classes: str = "first"
    size: int = 224
    corrupt: Literal["refuse", "skip"] = "refuse"

    name: ClassVar[str] = "imagenet100"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise Refused(f"`size={self.size}` is no size of an image; take the paper's 224, or less.")

    @property
    def habits(self) -> Habits:
        return Habits(
            tasks=20,
            memory=10_000,
            scale=500.0,
            full=Full(),
            partial=Partial(),
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            stem="large" if self.size > 64 else "small",
        )

    def load(self, folder: Path | None = None) -> Dataset:
        tree = tree_of(folder)
        if tree is None:
            raise missing("imagenet", folder, self.name)
        names = self._named(tree)
        train, test = ({name: images_in(tree / part / name) for name in names} for part in ("train", "val"))
        for part, found in ("train", train), ("val", test):
            empty = [name for name in names if not found[name].paths]
            if empty:
                raise Refused(f"`{tree / part / empty[0]}` has no images: the tree is not whole; unpack that class again.")

        def read() -> Reading:
            rows = [[(path, label) for label, name in enumerate(names) for path in part[name].paths] for part in (train, test)]
            return Reading(names, files(rows[0]), files(rows[1]))

        return Decoded(
            title=self.name,
            place=["imagenet100", str(tree.resolve()), names],
            stamp=" ".join(part[name].stamp for part in (train, test) for name in names),
            channels=3,
            size=self.size,
            refuse=self.corrupt == "refuse",
        ).load(read)

    def _named(self, tree: Path) -> tuple[str, ...]:
        there = folders(tree / "train")
        if self.classes == "first":
            if len(there) < 100:
                raise Refused(
                    f"`{tree / 'train'}` has {len(there)} classes, and the paper takes the first hundred; unpack the others, or "
                    "name yours in a text file, a folder a line: `--data.classes FILE`."
                )
            return tuple(there[:100])
        file = Path(self.classes)
        try:
            names = tuple(dict.fromkeys(line.split()[0] for line in file.read_text("utf-8").splitlines() if line.strip()))
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"`{file}` cannot be read ({error}); name a text file with the folder of one class a line.") from error
        absent = [name for name in names if name not in there]
        if absent or not names:
            what = f"`{absent[0]}`, which is no folder of `{tree / 'train'}`" if absent else "no class"
            raise Refused(f"`{file}` names {what}; write the folder of one class a line.")
        return names


def tree_of(folder: Path | None = None) -> Path | None:
    """Where an ImageNet tree lies, if one does."""
    there = [path for place in places(folder) for path in (place / "imagenet", place)]
    return next((path for path in there if (path / "train").is_dir() and (path / "val").is_dir()), None)
