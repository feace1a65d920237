"""What a run takes of a machine, from a short measurement: memory, and its share of a CUDA device."""

import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from onepass.boundaries import NewClass
from onepass.config import Config
from onepass.loop import prepare, run
from onepass.record import peak_memory

CONTEXT = 0.6 * 2**30  # bytes of CUDA itself, which no allocator sees


@dataclass(frozen=True)
class Need:
    """What a run like this one takes: bytes of its machine's memory, and the share of a CUDA device's."""

    memory: int
    device: float = 0.0


def measure(config: Config, data_dir: Path | None = None) -> Need:
    """The need of a run, by its own loop: from the first batch until a second task has begun, on few images of each class."""
    stream = prepare(config, data_dir)[0]
    in_a_task = len(stream.spec.tasks[0])
    rows = config.replay_size + config.batch_size  # after which a replay is as large as it gets
    per_class = max(2, -(-rows // in_a_task))
    few = replace(
        config,
        per_class=min(per_class, config.per_class or per_class),
        limit=min(per_class * in_a_task + 2 * config.batch_size, config.limit or sys.maxsize),
        boundaries=NewClass(lag=2) if isinstance(config.boundaries, NewClass) else config.boundaries,
    )
    there: Any = stream.x  # tensors, or images on the disk, which take none
    image = stream.x[0].nbytes + 8 + 4 * stream.spec.classes
    images = config.memory * image + (stream.x.nbytes if isinstance(there, torch.Tensor) else 0)
    cuda = torch.device(config.device) if config.device.startswith("cuda") else None
    if cuda is not None:
        torch.cuda.reset_peak_memory_stats(cuda)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak from now on
    with tempfile.TemporaryDirectory() as folder:
        run(few, folder, data_dir=data_dir)
    memory = int(1.1 * _peak() + images)
    if cuda is None:
        return Need(memory)
    share = (1.1 * torch.cuda.max_memory_reserved(cuda) + images + CONTEXT) / torch.cuda.get_device_properties(cuda).total_memory
    return Need(memory, min(1.0, -(-share * 100 // 1) / 100))


def _peak() -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return (peak_memory() or 1024) * 2**20
