"""Images on the disk do what the same images in a tensor do, and take no memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from onepass.data.stored import Stored


@pytest.fixture
def both(tmp_path: Path) -> tuple[Stored, Tensor]:
    x = torch.randint(0, 256, (23, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x.numpy().tofile(tmp_path / "x.u8")
    return Stored(tmp_path / "x.u8", (23, 3, 5, 4)), x


INDICES = [
    torch.tensor([4, 0, 22, 4]), torch.tensor([], dtype=torch.int64), torch.arange(23) % 3 == 0, [2, 5], 7, -1,
    slice(3, 9), slice(None), slice(20, 40), slice(None, None, 4),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_it_is_indexed_as_a_tensor_is(both: tuple[Stored, Tensor], index: object) -> None:
    stored, x = both
    read = stored[index]
    assert isinstance(read, Tensor) and read.dtype == torch.uint8 and torch.equal(read, x[index])  # type: ignore[index]
    read.fill_(0)  # what was read is the reader's own
    assert torch.equal(stored[:], x)


def test_it_says_of_itself_what_a_tensor_says(both: tuple[Stored, Tensor]) -> None:
    stored, x = both
    assert stored.shape == tuple(x.shape) and len(stored) == len(x) and stored.nbytes == x.nbytes
    assert (stored.ndim, stored.dtype, stored.device) == (x.ndim, x.dtype, x.device)


@pytest.mark.parametrize("index", [torch.tensor([23]), 23, torch.tensor([-24])], ids=str)
def test_a_row_that_is_not_there_is_an_error_as_of_a_tensor(both: tuple[Stored, Tensor], index: object) -> None:
    with pytest.raises(IndexError):
        both[0][index]


def test_some_rows_stay_on_the_disk_until_they_are_read(both: tuple[Stored, Tensor]) -> None:
    stored, x = both
    index = torch.tensor([9, 2, 2, 17])
    some = stored.index_select(0, index)
    assert isinstance(some, Stored) and some.shape == (4, 3, 5, 4) and some.nbytes == 240
    assert torch.equal(some[:], x[index]) and torch.equal(some.index_select(0, torch.tensor([3]))[0], x[17])


def test_it_is_split_walked_and_moved(both: tuple[Stored, Tensor]) -> None:
    stored, x = both
    parts = list(stored.split(10))
    assert [len(p) for p in parts] == [10, 10, 3] and torch.equal(torch.cat(parts), x)
    assert torch.equal(torch.stack(list(stored)), x)
    assert stored.to(torch.device("cpu")) is stored
    assert stored.to(torch.device("meta")).shape == x.shape  # type: ignore[union-attr]


def test_its_rows_stay_when_the_file_is_replaced_and_deleted(both: tuple[Stored, Tensor], tmp_path: Path) -> None:
    stored, x = both
    other = tmp_path / "other"
    np.zeros(x.numel(), np.uint8).tofile(other)
    other.replace(tmp_path / "x.u8")
    assert torch.equal(stored[:], x)
    (tmp_path / "x.u8").unlink()
    assert torch.equal(stored[torch.tensor([3])], x[3:4])


def held() -> int:
    """Bytes that this process has in memory, those of mapped files included; 0 where the system does not say."""
    status = Path("/proc/self/status")
    found = re.search(r"^VmRSS:\s+(\d+) kB", status.read_text(), re.M) if status.is_file() else None
    return int(found[1]) * 1024 if found else 0


def test_of_imagenet_100s_20_gb_nothing_stays_in_memory(tmp_path: Path) -> None:
    """130,000 images of 224x224, all of them holes in a sparse file; 2,000 of them are read: 300 MB."""
    shape = (130_000, 3, 224, 224)
    with open(tmp_path / "x.u8", "wb") as file:
        file.truncate(int(np.prod(shape, dtype=np.int64)))
    before = held()
    stored = Stored(tmp_path / "x.u8", shape)
    assert stored.nbytes > 19e9
    rows = torch.randperm(len(stored), generator=torch.Generator().manual_seed(0))[:2000]
    assert not any(int(stored[part].max()) for part in rows.split(20))
    assert held() - before < 50e6
