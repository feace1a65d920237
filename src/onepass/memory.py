"""What is remembered of the stream: a fixed number of rows with named columns, written by a reservoir."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from onepass.errors import Refused
from onepass.stream import Batch


@dataclass(frozen=True)
class Column:
    """A further value kept with each image: its shape, "classes" for one number a class, and its type."""

    shape: tuple[int, ...] | Literal["classes"]
    dtype: torch.dtype = torch.float32


class Memory:
    """A uniform sample of the stream so far (Vitter's reservoir, image by image), as uint8 images on the device.

    Which slot is written and which rows are drawn is decided on the host, so nothing ever waits for the device.
    """

    def __init__(
        self,
        rows: int,
        image: tuple[int, int, int],
        columns: Mapping[str, Column] | None = None,
        *,
        classes: int = 0,
        device: torch.device | str = "cpu",
    ):
        if rows < 1:
            raise Refused(f"`memory={rows}` keeps nothing to replay; take at least 1.")
        self.rows, self.count, self.device = rows, 0, torch.device(device)
        self.x = torch.zeros((rows, *image), dtype=torch.uint8, device=self.device)
        self.y = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.extra = {
            name: torch.zeros((rows, *((classes,) if c.shape == "classes" else c.shape)), dtype=c.dtype, device=self.device)
            for name, c in (columns or {}).items()
        }
        self.labels = self.y if self.y.device.type == "cpu" else torch.zeros(rows, dtype=torch.int64)  # on the host

    def __len__(self) -> int:
        return min(self.count, self.rows)

    def add(self, x: Tensor, y: Tensor, extra: Mapping[str, Tensor] | None = None, *, rng: torch.Generator) -> None:
        """Show the rows to the reservoir, one after the other.  `y` had better be on the host."""
        extra = extra or {}
        if extra.keys() != self.extra.keys():
            raise Refused(
                f"The memory keeps the columns {sorted(self.extra)} and was given {sorted(extra)}; `remember` must give the "
                "method's `columns`, all of them and no others."
            )
        number = torch.arange(self.count, self.count + len(y), dtype=torch.float64)
        chance = torch.rand(len(y), dtype=torch.float64, generator=rng)
        slots = torch.where(number < self.rows, number, (chance * (number + 1)).floor()).long().numpy()
        self.count += len(y)
        kept = np.flatnonzero(slots < self.rows)
        _, last = np.unique(slots[kept][::-1], return_index=True)  # of two rows for one slot, the later one stays
        kept = kept[::-1][last]
        if not len(kept):
            return
        source, slot = torch.from_numpy(kept.copy()), torch.from_numpy(slots[kept])
        self.labels[slot] = y.cpu()[source]
        columns = {"x": (self.x, x), "y": (self.y, y)} | {k: (self.extra[k], v) for k, v in extra.items()}
        for mine, new in columns.values():
            there = slot.to(mine.device, non_blocking=True)
            mine[there] = new[source.to(new.device, non_blocking=True)].to(mine.device, mine.dtype, non_blocking=True)

    def draw(
        self,
        n: int,
        *,
        rng: torch.Generator,
        classes: Tensor | None = None,
        replace: bool = False,
        name: str = "replay",
    ) -> Batch:
        """`n` rows at random, fewer if there are fewer; of the `classes` in a mask on the host, if one is given."""
        rows: Tensor | None = None
        if classes is not None:
            rows = classes[self.labels[: len(self)]].nonzero().squeeze(1)
        among = len(self) if rows is None else len(rows)
        if replace and among:
            index = torch.randint(among, (n,), generator=rng)
        else:
            index = torch.randperm(among, generator=rng)[:n]
        return self.at(index if rows is None else rows[index], name)

    def all(self) -> Batch:
        return self.at(torch.arange(len(self)), "memory")

    def at(self, index: Tensor, name: str) -> Batch:
        return Batch(self.x, self.y, self.extra).take(index.to(self.device, non_blocking=True), name)

    def state_dict(self) -> dict[str, Tensor]:
        extra = {f"extra.{k}": v for k, v in self.extra.items()}
        return {"x": self.x, "y": self.y, "count": torch.tensor(self.count)} | extra

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.count = int(state["count"])
        self.x.copy_(state["x"])
        self.y.copy_(state["y"])
        for name, column in self.extra.items():
            column.copy_(state[f"extra.{name}"])
        if self.labels is not self.y:
            self.labels.copy_(state["y"])
