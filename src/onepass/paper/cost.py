"""What runs cost: images through networks, in units of one forward pass, times what a unit takes on this machine."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from onepass.config import Config, to_json
from onepass.data.cache import available_cores
from onepass.distill import MKD, SDP, Warm
from onepass.held_out import FirstTasks
from onepass.loop import threads_of_torch
from onepass.methods.derpp import DERpp
from onepass.methods.dvc import DVC
from onepass.methods.er import ER
from onepass.methods.er_ace import ERACE
from onepass.methods.gsa import GSA
from onepass.methods.ocm import OCM
from onepass.methods.pcr import PCR
from onepass.nets import resolve_precision
from onepass.record import processor, write_json
from onepass.stream import Clear
from onepass.teachers import Frozen

LENGTHS = {  # images for training and for testing
    "digits": (1433, 364),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "tiny-imagenet": (100_000, 10_000),
    "imagenet100": (126_689, 5_000),
}
SIZES = {"digits": 1 / 16, "cifar10": 1, "cifar100": 1, "tiny-imagenet": 4, "imagenet100": 3.3}
"""What one image costs in a full ResNet-18, next to one of 32x32: 224x224 goes through its large stem."""


def units(config: Config) -> float:
    """One update, in forward passes of an image: an image that is learnt from counts three, one that is only looked at counts one.

    As tests/test_budget.py counts them, for batches of any size; what a first task saves (OCM) is shared out over all tasks.
    """
    b, r, method = config.batch_size, config.replay_size, config.method
    if isinstance(method, DVC):
        kept = min(r, method.candidates)
        scored = 0 if method.candidates <= r else 2 * method.candidates
        return 6 * (b + kept) + scored + _added(config, b + kept)
    own = 3.0 * (b + r)
    if isinstance(method, DERpp):
        own += 3 * r
    elif isinstance(method, PCR):
        own *= 2
    elif isinstance(method, GSA):
        own += 3 * method.current_rows
    elif isinstance(method, OCM):
        tasks = getattr(config.stream, "tasks", 1)
        own = (3 * 33 * b + (tasks - 1) * (3 * (32 * b + 33 * r) + 17 * r)) / tasks
    return own + _added(config, b + r)


def _added(config: Config, n: int) -> float:
    """What the teacher and the loss from it add, on n images."""
    method, distill = config.method, config.distill
    if isinstance(distill, Warm):
        return n
    if isinstance(distill, SDP):
        return (2 if distill.draw == "main" else 5) * n
    if not isinstance(distill, MKD):
        return 0
    n *= 2 if distill.doubled else 1
    student = {view for view, _ in distill.pairs} | ({"aug"} if distill.cross_entropy else set[str]())
    if distill.draw == "main":  # what the method has forwarded already is free
        free = (
            {"raw", "aug"} if isinstance(method, PCR | DVC) else {"aug"} if isinstance(method, ER | ERACE | DERpp) else set[str]()
        )
        student -= free
    return n * (3 * len(student) + len({view for _, view in distill.pairs}))


def updates(config: Config) -> float:
    """How often the network is updated; a teacher's own run is counted as if it were the student's."""
    length = LENGTHS[config.data.name][0]
    if isinstance(config.stream, Clear):
        length += (config.stream.first_task_epochs - 1) * length / config.stream.tasks
    if config.held_out is not None:
        length *= 0.9
    if isinstance(config.held_out, FirstTasks):
        length *= min(1.0, config.held_out.tasks / config.stream.tasks)
    length = min(length, config.limit or length)
    if isinstance(config.teacher, Frozen):
        length += config.teacher.epochs * LENGTHS[config.data.name][0] / config.stream.tasks
    return length * config.updates / config.batch_size


def left(root: Path, config: Config) -> float:
    """The share of a run that is still to be done: one that was stopped goes on from about where its log ends."""
    try:
        path = root / config.folder
        if (path / "done.json").is_file():  # it was not asked all that is asked now, and is done again
            return 1.0
        last = json.loads((path / "timing.jsonl").read_text().splitlines()[-1])
        return max(0.0, 1 - last["samples"] / json.loads((path / "stream.json").read_text())["length"])
    except (OSError, ValueError, LookupError, TypeError):
        return 1.0


def looked_at(config: Config) -> float:
    """Images that the probes look at: those of the tasks so far, at each task's end, by each network."""
    tasks = config.stream.tasks
    networks = 1 if config.teacher is None else 3
    return networks * LENGTHS[config.data.name][1] * (tasks + 1) / 2


def work(config: Config) -> float:
    """An update, in forward passes of an image of 32x32."""
    return units(config) * SIZES[config.data.name]


class Pace:
    """Seconds of an update on this machine: measured, remembered in a file, and extended to what was not measured by its work.

    Only from the same network in the same precision: how a wide one goes tells little of a narrow one.
    """

    def __init__(self, file: Path | None = None):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onepass"
        self.file = file or cache / "pace.json"
        self.known: dict[str, dict[str, tuple[float, float]]] = {}  # by place, then by kind of update: seconds, and its work
        with suppress(OSError, ValueError, TypeError, AttributeError):  # damaged, it is measured again
            tree = json.loads(self.file.read_text())
            self.known = {k: {kind: (float(s), float(w)) for kind, (s, w) in there.items()} for k, there in tree.items()}

    def knows(self, config: Config, workers: int) -> bool:
        return _place(config, workers) in self.known

    def measure(self, configs: Sequence[Config], budget: float, workers: int) -> None:
        """Time as many kinds of update as the budget has room for, the cheapest first, but one of each network; remember them."""
        from onepass.doctor import seconds_per_update

        kinds = {(_place(c, workers), _kind(c)): c for c in sorted(configs, key=work, reverse=True)}
        end = time.monotonic() + budget
        with threads_of_torch(_threads(workers)):
            while kinds:
                share = (end - time.monotonic()) / len(kinds)
                (place, kind), config = kinds.popitem()
                expected = self.update(config, workers)
                if expected is None or 3 * expected < end - time.monotonic():
                    seconds = seconds_per_update(config, budget=max(share, 0.0))
                    self.known.setdefault(place, {})[kind] = seconds, work(config)
        with suppress(OSError):  # what cannot be remembered is measured again
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.file, self.known)

    def update(self, config: Config, workers: int) -> float | None:
        """Seconds, one run beside others; None: nothing like it was measured on this machine yet."""
        there = self.known.get(_place(config, workers), {})
        if _kind(config) in there:
            return there[_kind(config)][0]
        wanted = work(config)
        near = min(there.values(), key=lambda known: abs(math.log(known[1] / wanted)), default=None)
        return None if near is None else near[0] * wanted / near[1]

    def run(self, config: Config, workers: int) -> float | None:
        """Seconds of a whole run: its updates, and what its probes look at."""
        update = self.update(config, workers)
        return None if update is None else update * (updates(config) + looked_at(config) / units(config))


def wall(configs: Sequence[Config], pace: Pace, workers: int, root: Path) -> float | None:
    """Seconds until all are done, side by side; None: nothing was measured yet."""
    each = [cost * left(root, c) for c in configs if (cost := pace.run(c, workers)) is not None]
    return max(sum(each) / workers, *each) if each and len(each) == len(configs) else None


def _threads(workers: int) -> int:
    """Of each run, as `pool.Processes` shares them out; one run alone has what torch takes."""
    return max(1, available_cores() // workers) if workers > 1 else torch.get_num_threads()


def _place(config: Config, workers: int) -> str:
    """Where an update takes the time that others there let expect: machine, precision, network."""
    device = torch.device(config.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{processor()}, threads {_threads(workers)}"
    return f"{name}, torch {torch.__version__}, {resolve_precision(config.precision, device)}, {json.dumps(to_json(config.net))}"


def _kind(config: Config) -> str:
    """What else of a config an update's time depends on."""
    tree = to_json(config, defaults=False)
    names = "method", "teacher", "distill", "batch_size", "replay_size", "augment", "updates"
    return json.dumps({"data": config.data.name} | {name: tree[name] for name in names if name in tree}, sort_keys=True)
