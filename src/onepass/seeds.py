"""One random generator for each purpose, keyed by the seed and stable for ever."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import device as Device


@dataclass(frozen=True)
class Seeds:
    """Where every random number of a run comes from.

    A generator is made anew for each (seed, purpose, key): `seeds.torch("aug", update, "stream")`.  Nothing that is
    drawn for one purpose moves another, so adding MKD, a probe or a head changes no draw of the baseline, and a
    resumed run needs no generator's state.  Generators live on the host, so that every device draws the same.
    """

    seed: int = 0

    def _key(self, *key: object) -> int:
        return int.from_bytes(blake2b(repr((int(self.seed), *key)).encode(), digest_size=8).digest(), "little")

    def torch(self, *key: object) -> torch.Generator:
        return torch.Generator().manual_seed(self._key(*key) >> 1)

    def numpy(self, *key: object) -> np.random.RandomState:
        """A legacy generator: the only kind of numpy's whose numbers are promised never to change."""
        word = self._key(*key)
        return np.random.RandomState([word & 0xFFFFFFFF, word >> 32])

    def class_order(self, classes: int) -> np.ndarray:
        """The order in which classes arrive: the paper's own at seeds 0-4."""
        order = np.arange(classes)
        np.random.RandomState(self.seed).shuffle(order)
        return order

    @contextmanager
    def scope(self, *key: object, device: Device | None = None) -> Generator[None, None, None]:
        """Within it torch's global generator is this purpose's (first weights, dropout), on CUDA too; then it is put back."""
        there = [device] if device is not None and device.type == "cuda" else []
        seed = self._key(*key) >> 1
        with torch.random.fork_rng(devices=there):
            torch.default_generator.manual_seed(seed)
            for device in there:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
