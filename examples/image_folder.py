"""A classifier over a folder of images that keeps changing: it learns what is new, once, and says what it is forgetting.

`python examples/image_folder.py photos` looks into `photos/<class>/` every few seconds, until Ctrl-C; begun again, it goes on from
`photos.safetensors`.  Without a folder it makes one of handwritten digits, to which two classes are added at a time.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from sklearn.datasets import load_digits

from onepass import OnlineLearner, Partial, ResNet18


def new(folder: Path, known: set[str]) -> list[Path]:
    """The images that have come since the last look, in random order: sorted, each class would come alone."""
    found = [f for f in folder.glob("*/*") if f.suffix.lower() in (".png", ".jpg", ".jpeg") and str(f) not in known]
    return random.sample(found, len(found))


def read(file: Path) -> Image.Image | None:
    """None: it is no image, or is still being copied here."""
    try:
        with Image.open(file) as image:
            return image.convert("RGB")  # the learner brings it to its own size and colours
    except (OSError, UnidentifiedImageError):
        return None


class Watcher:
    def __init__(self, folder: Path, learner: OnlineLearner):
        self.folder, self.file, self.list = folder, folder.with_suffix(".safetensors"), folder.with_suffix(".txt")
        self.learner = OnlineLearner.load(self.file) if self.file.exists() else learner
        self.known = set(self.list.read_text().splitlines()) if self.list.exists() else set[str]()

    def look(self) -> int:
        """Predict what is new, then learn it; say how many images that was."""
        files = new(self.folder, self.known)
        for at in range(0, len(files), 100):
            pairs = [(file, image) for file in files[at : at + 100] if (image := read(file)) is not None]
            names, images = [file.parent.name for file, _ in pairs], [image for _, image in pairs]
            known = [i for i, name in enumerate(names) if name in self.learner.classes_]
            if known:
                share = self.learner.score([images[i] for i in known], [names[i] for i in known])
                print(f"{len(known)} new images of known classes: {100 * share:.1f} % were right before they were learnt")
            self.learner.learn(images, names)
            self.learner.save(self.file)  # killed here, the old file is there or the new one,
            self.known |= {str(file) for file, _ in pairs}
            aside = self.list.with_suffix(".txt.aside")
            aside.write_text("\n".join(sorted(self.known)))
            aside.replace(self.list)  # and at worst a hundred images are learnt twice
        if files and self.learner.images_seen:
            print(self.learner.report())
        return len(files)


def demo(folder: Path, each: int = 60, width: int = 16) -> Watcher:
    """Five looks at a folder to which two more digits have been added each time, and a test on others."""
    digits = load_digits()
    bytes_ = (digits.images * 255 / 16).astype(np.uint8)
    learner = OnlineLearner(
        method="er",  # the default, er+mkd, wants a longer stream: docs/when.md
        memory=100,
        image=(1, 8, 8),
        net=ResNet18(width=width),  # narrow: these images have 64 pixels
        augment=Partial(padding=1, flip=0.0),  # a digit in the mirror is another one, or none
        batch_size=2,
        replay_size=20,
    )
    watcher = Watcher(folder, learner)
    for first in range(0, 10, 2):
        for c in (first, first + 1):
            (folder / f"digit {c}").mkdir(parents=True)
            for i in np.flatnonzero(digits.target == c)[:each]:
                Image.fromarray(bytes_[i]).save(folder / f"digit {c}" / f"{i}.png")
        watcher.look()
    rest = np.concatenate([np.flatnonzero(digits.target == c)[each:] for c in range(10)])
    share = watcher.learner.score(bytes_[rest], [f"digit {c}" for c in digits.target[rest]])
    print(f"{len(rest)} digits that were never learnt: {100 * share:.1f} % right")
    return watcher


if __name__ == "__main__":
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as place:
            demo(Path(place) / "digits")
    else:
        watcher = Watcher(Path(sys.argv[1]), OnlineLearner(image=(3, 32, 32)))
        while True:
            watcher.look()
            time.sleep(5)
