"""What there is here, and how long a run takes: measured on a few real updates, not guessed."""

import os
import platform
import shutil
import statistics
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onepass.config import Config
from onepass.data import cache_folder, find, places, source
from onepass.data.cache import available_cores
from onepass.data.fetch import ARCHIVES
from onepass.data.imagenet100 import tree_of
from onepass.errors import Refused
from onepass.learner import Learner
from onepass.loop import prepare
from onepass.nets import resolve_precision
from onepass.recipes import recipe
from onepass.record import processor
from onepass.stream import Batch, Spec
from onepass.terminal import duration

IMAGES = {
    "digits": (10, (1, 8, 8)),
    "cifar10": (10, (3, 32, 32)),
    "cifar100": (100, (3, 32, 32)),
    "tiny-imagenet": (200, (3, 64, 64)),
    "imagenet100": (100, (3, 224, 224)),
}
"""Classes and images of the data sets that need not be here to be timed."""


def seconds_per_update(config: Config, budget: float = 10.0) -> float:
    """What an update of this config takes here, on the threads that torch has now: the median of real `Learner.observe` calls
    on random images, in a later task and with a full memory.  As many as `budget` seconds have room for, at least two.
    """
    return _measured(*midway(config), config, time.monotonic() + budget)


def _measured(learner: Learner, batches: Iterator[Batch], config: Config, end: float) -> float:
    for _ in range(6 if config.graph else 1):  # the first one allocates; graphs are captured in the fifth
        learner.observe(next(batches))
    took: list[float] = []
    while len(took) < 2 or time.monotonic() < end:
        batch = next(batches)
        began = _now(learner)
        learner.observe(batch)
        took.append((_now(learner) - began) / config.updates)
    return statistics.median(took)


def midway(config: Config) -> tuple[Learner, Iterator[Batch]]:
    """A learner that has met all classes but those of its last task, its memory full of noise, and batches of this task."""
    spec = _spec(config)
    learner = config.learner(spec, sharp=config.stream.sharp)
    rng = torch.Generator().manual_seed(0)
    *earlier, now = spec.tasks or (tuple(range(spec.classes)),)
    past = torch.tensor([c for task in earlier for c in task] or now)
    memory = learner.memory
    block = _noise(min(256, memory.rows), spec, past, learner, rng)
    extra = {name: torch.zeros_like(column[: len(block)]) for name, column in memory.extra.items()}
    while memory.count < memory.rows:
        n = min(len(block), memory.rows - memory.count)
        memory.add(block.x[:n], block.y[:n], {k: v[:n] for k, v in extra.items()}, rng=rng)
    if earlier:
        learner.seen[past] = True
    learner.clock.batches, learner.since = 1, 10**6  # long after the last boundary, whatever the rule
    return learner, cycle([_noise(config.batch_size, spec, torch.tensor(now), learner, rng) for _ in range(8)])


def _noise(n: int, spec: Spec, classes: Tensor, learner: Learner, rng: torch.Generator) -> Batch:
    x = torch.randint(256, (n, *spec.image), dtype=torch.uint8, generator=rng)
    return Batch(x.to(learner.device), classes[torch.randint(len(classes), (n,), generator=rng)], name="stream")


def _spec(config: Config) -> Spec:
    if config.data.name not in IMAGES:
        return prepare(config)[0].spec
    classes, image = IMAGES[config.data.name]
    parts = np.array_split(np.arange(classes), max(1, min(config.stream.tasks, classes)))
    order = tuple(range(classes))
    return Spec(classes, image, tuple(tuple(p.tolist()) for p in parts), order, tuple(map(str, order)))


def _now(learner: Learner) -> float:
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    return time.perf_counter()


# -- for a person --------------------------------------------------------------------------------------------------------


def examine(device: str | None = None, folder: Path | None = None, budget: float = 10.0) -> Iterator[str]:
    """Lines that say what there is here and, after `budget` seconds, how long a run of the paper takes."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    configs = [recipe(word, source("cifar100"), device=device) for word in ("er", "er+mkd")]  # refuses a device that is not there
    auto, threads = resolve_precision("auto", torch.device(device)), torch.get_num_threads()
    yield _line("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    yield _line("torch", torch.__version__)
    for i, said in enumerate(devices()):
        yield _line("" if i else "devices", said)
    yield _line("precision", f"`auto` is {auto} on {device}: {why(device)}")
    yield _line("threads", f"{threads} in torch; {available_cores()} cores to use")
    yield _line("memory", memory())
    yield _line("disk", f"{room(places(folder)[0])} free for data, in {places(folder)[0]}")
    yield _line("", f"{room(Path.cwd())} free here, in {Path.cwd()}")
    for i, (name, where) in enumerate(data(folder)):
        yield _line("" if i else "data", f"{name:<15}{where}")
    updates, looks = 5000, 55_000  # batches of 10; test images of the tasks so far after each of ten
    yield _line("a run", f"CIFAR-100 in the paper's setting, {updates:,} updates; measuring for {budget:.0f} s ...")
    for config in configs:
        learner, batches = midway(config)
        update = _measured(learner, batches, config, time.monotonic() + 0.45 * budget)
        whole = updates * update + looks * len(learner.networks) * _seconds_per_image(learner, batches)
        yield _line("", f"{config.title:<15}{duration(whole)}: {1000 * update:,.0f} ms an update, and then its evaluation")
    yield _line("", f"one at a time, in {auto} on {device}{f' with {threads} threads' if device == 'cpu' else ''}")
    if device == "cpu" and (others := others_at_work()) > 0.25:
        yield _line("", f"other processes keep {others:.1f} of {available_cores()} cores busy: this is slower than the machine is")


def _seconds_per_image(learner: Learner, batches: Iterator[Batch]) -> float:
    """Of predicting, by the student."""
    x = torch.cat([next(batches).x for _ in range(5)])
    began = _now(learner)
    learner.predict(x, "student")
    return (_now(learner) - began) / len(x)


def _line(what: str, said: str) -> str:
    return f"{what:<12}{said}"


def devices() -> list[str]:
    """What can be computed on, as `--device` calls it."""
    found = [f"cpu ({processor()})"]
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        found.append(f"cuda:{i} ({about.name}, {about.total_memory / 2**30:.0f} GiB)")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def why(device: str) -> str:
    """Why `auto` is the precision that it is."""
    kind = torch.device(device)
    if kind.type == "cuda":
        major, minor = torch.cuda.get_device_capability(kind)
        return f"compute capability {major}.{minor}, and bf16 is native from 8.0 on"
    if kind.type == "cpu":
        native = resolve_precision("auto", kind) == "bf16"
        return f"this processor {'multiplies' if native else 'does not multiply'} in bf16 (AVX512-BF16 or AMX)"
    return "bf16 is taken on cpu and cuda alone"


def others_at_work(seconds: float = 0.3) -> float:
    """How many cores are busy while this process waits; 0 where the system does not say."""

    def busy() -> float:
        fields = [int(n) for n in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
        return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # all but idle and waiting for a disk

    try:
        before, began = busy(), time.monotonic()
        time.sleep(seconds)
        return (busy() - before) / (time.monotonic() - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def memory() -> str:
    """Of the machine, or of the container if that has less."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (1024 * int(lines[k].split()[0]) for k in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return "not known"
        return f"{total / 2**30:.1f} GiB"
    said = f"{total / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free"
    for file in "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes":
        try:
            most = int(Path(file).read_text())
        except (OSError, ValueError):
            continue
        if most < total:
            said += f"; this container may have {most / 2**30:.1f}"
    return said


def room(folder: Path) -> str:
    """Free space where a folder is, or will be."""
    there = next(p for p in (folder, *folder.resolve().parents) if p.exists())
    return f"{shutil.disk_usage(there).free / 1e9:.1f} GB"


def data(folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """Each data set with a name, and where it lies."""
    yield "digits", "comes with scikit-learn"
    for name, archive in ARCHIVES.items():
        try:
            yield name, str(find(archive.tree, folder, name))
        except Refused:
            yield name, f"not here; `onepass data get {name}` gets it"
    tree = tree_of(folder)
    yield "imagenet100", str(tree) if tree else "not here; `onepass data get imagenet100` says how to get it"
    decoded = [f for f in (cache_folder() / "decoded").rglob("*") if f.is_file()]
    if decoded:
        size = sum(f.stat().st_size for f in decoded)
        yield "decoded", f"{size / 1e9:.2f} GB in {cache_folder() / 'decoded'}, which may be deleted"
