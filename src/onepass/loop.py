"""The loop: one stream, one learner, and everything a table may ask for written down."""

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from onepass.config import Config
from onepass.errors import Refused
from onepass.probes import Before, Moment
from onepass.record import Busy, Record, Recorder
from onepass.seeds import Seeds
from onepass.stream import Batch, Clear, Pass
from onepass.teachers import Frozen, FrozenFollower


@dataclass(frozen=True)
class Progress:
    """Where a run is: images seen of how many, training seconds so far, accuracy on the tasks so far when last measured."""

    samples: int
    total: int
    seconds: float
    accuracy: float | None
    measured: int | None = None  # images seen when it was


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; it saved where it was."""


def prepare(config: Config, data_dir: Path | None = None) -> tuple[Pass, Batch, str]:
    """The stream of a config, the images to test on, and the data's fingerprint."""
    data = config.data.load(data_dir)
    train, held = data.train, config.held_out
    if config.per_class is not None:
        rows = [(train.y == c).nonzero().squeeze(1)[: config.per_class] for c in range(len(data.names))]
        index = torch.cat(rows).sort().values
        train = Batch(train.x.index_select(0, index), train.y[index])
    if held is None:
        test = data.test
    else:  # the test images are not so much as looked at
        train, test = held.split(train, data.names)
    stream = config.stream.over(train, data.names, Seeds(config.seed))
    stream = (stream if held is None else held.cut(stream)).cut(config.limit)
    return stream, Batch(test.x, stream.number(test.y)), data.fingerprint


def run(
    config: Config,
    root: Path | str = "runs",
    *,
    data_dir: Path | None = None,
    tell: Callable[[Progress], None] | None = None,
) -> Record:
    """Play one stream to one learner.  The same config again returns the finished run, or takes up the broken one."""
    recorder = Recorder(Path(root), config)
    if recorder.finished:
        return recorder.record
    threads = _recorded_threads(recorder)
    with threads_of_torch(threads), _stoppable() as stop:
        stream, test, fingerprint = prepare(config, data_dir)
        learner = config.learner(stream.spec, sharp=stream.sharp)
        stream = stream.to(learner.device)
        teacher = learner.followers.get("teacher")
        if isinstance(teacher, FrozenFollower):
            teacher.load(weights_of_another(config, Path(root), data_dir))
        accuracy: float | None = None
        measured: int | None = None
        try:
            recorder.open(stream, fingerprint, test.y, learner)
            if recorder.finished:
                return recorder.record
            probes = recorder.probes
            for batch in stream.batches(config.batch_size, start=learner.clock.samples):
                began = time.perf_counter()
                clock, after = learner.clock, learner.clock.samples + len(batch)
                moment = Moment(clock.samples, after, stream.task_ends, after == len(stream), clock.batches)
                due = [probe for probe in probes if probe.due(moment)]
                moment.seen.update({p: p.before(learner, stream, moment) for p in due if isinstance(p, Before)})
                looked = time.perf_counter()
                recorder.log(clock, learner.observe(batch))
                learnt = time.perf_counter()
                if due:
                    for probe in due:
                        recorder.write(clock, probe(learner, stream, test, moment))
                    times, along = recorder.results.curve()
                    if len(times):
                        accuracy, measured = float(along[-1]), int(times[-1])
                recorder.seconds["train"] += learnt - looked
                recorder.seconds["probe"] += time.perf_counter() - learnt + looked - began
                stopping = stop.is_set()
                if moment.task_end or recorder.save_due or stopping:
                    recorder.save(learner)
                if tell is not None:  # after the checkpoint: who hears it may not want the rest
                    tell(Progress(after, len(stream), recorder.seconds["train"], accuracy, measured))
                if stopping:
                    raise Interrupted(f"stopped after {after} of {len(stream)} images; saved in {recorder.path}")
            return recorder.finish(learner)
        except OSError as error:
            raise Refused(
                f"`{recorder.path}` could not be written ({error.strerror or error}). The last checkpoint is whole: make room and "
                "give the same command again."
            ) from error
        finally:
            recorder.close()


def weights_of_another(config: Config, root: Path, data_dir: Path | None) -> dict[str, Tensor]:
    """The student of the run that a `Frozen` teacher is taken from: this one's, alone, on its first task several times over."""
    from safetensors.torch import load_file

    assert isinstance(config.teacher, Frozen)
    if not isinstance(config.stream, Clear):
        raise Refused("A `Frozen` teacher has seen one clear task several times, and this stream has none; take a `Clear` stream.")
    stream = replace(config.stream, first_task_epochs=config.teacher.epochs)
    alone = replace(config, teacher=None, distill=None, infer="student", stream=stream, name=f"{config.title}-teacher", probes=())
    alone = replace(alone, limit=prepare(alone, data_dir)[0].task_ends[0])
    while True:
        try:
            return load_file(run(alone, root, data_dir=data_dir).path / "model.safetensors")
        except Busy:  # a run beside this one needs the same teacher, and is making it
            time.sleep(1)


def _recorded_threads(recorder: Recorder) -> int | None:
    """The threads a broken run was begun with: its bits depend on their number."""
    try:
        return int(recorder.record.env["threads"])
    except (OSError, ValueError, KeyError):
        return None


@contextmanager
def threads_of_torch(number: int | None) -> Generator[None, None, None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _stoppable() -> Generator[threading.Event, None, None]:
    """Ctrl-C and SIGTERM are taken between two batches, where a checkpoint can be written.  A second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    heeded = (n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN)  # as shells have it
    before = {number: signal.signal(number, ask) for number in heeded}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
