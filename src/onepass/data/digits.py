"""Real handwritten digits, embedded in scikit-learn: 1,797 images of 8x8, for when there is nothing to download."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from onepass.augment import Partial
from onepass.data import Dataset, Habits
from onepass.stream import Batch

CROPS = Partial(padding=1, flip=0.0)  # a digit must not be mirrored, and has no colour


@dataclass(frozen=True)
class Digits:
    """Every fifth image of each class, in the order of the file, is for testing: 1,433 to learn from, 364 to test on."""

    name: ClassVar[str] = "digits"
    habits: ClassVar[Habits] = Habits(
        tasks=5,
        memory=20,
        scale=30.0,
        full=CROPS,
        partial=CROPS,
    )

    def load(self, folder: Path | None = None) -> Dataset:
        from sklearn.datasets import load_digits

        file: Any = load_digits()
        images = np.rint(file.images * (255 / 16)).astype(np.uint8)[:, None]
        labels = file.target.astype(np.int64)
        test = np.zeros(len(labels), dtype=bool)
        for c in range(10):
            test[np.flatnonzero(labels == c)[::5]] = True

        def rows(which: np.ndarray) -> Batch:
            return Batch(torch.from_numpy(images[which]), torch.from_numpy(labels[which]))

        names = tuple(str(c) for c in range(10))
        return Dataset(rows(~test), rows(test), names, sha256(images.tobytes() + labels.tobytes()).hexdigest())
