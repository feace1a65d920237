"""Many runs: on this machine in local processes, with the threads shared out among them, or on any other engine."""

import json
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onepass.config import Config
from onepass.data.cache import available_cores
from onepass.engine import NOT_BEGUN, AtWork, Engine, Lost, Outcome, Tell, drive
from onepass.errors import Refused
from onepass.loop import Interrupted, Progress, run
from onepass.record import Recorder


def sweep(
    configs: Sequence[Config],
    root: Path | str = "runs",
    *,
    workers: int | None = None,
    data_dir: Path | None = None,
    tell: Tell | None = None,
    engine: Engine | None = None,
) -> list[Outcome]:
    """Run every config; what each came to, in their order.  `tell` hears of each run's progress, and of its end.

    The engine is `Processes(workers)` unless another is given (`onepass.cluster.engine("ray")`), which knows of its workers
    itself.
    """
    outcomes: dict[int, Outcome] = {}

    def hear(i: int, event: Progress | Outcome) -> None:
        if not isinstance(event, Progress):
            outcomes[i] = event
        if tell is not None:
            tell(i, event)

    for i, config in enumerate(configs):
        recorder = Recorder(Path(root), config)
        if recorder.finished:
            hear(i, recorder.record)
    waiting = [i for i in range(len(configs)) if i not in outcomes]
    if waiting:
        device = next((d for i in waiting if (d := configs[i].device) != "cpu"), "cpu")
        where = engine or Processes(workers)
        with where.open(Path(root), hear, runs=len(waiting), device=device, data_dir=data_dir) as at_work:
            for i in waiting:
                at_work.submit(i, configs[i])
            drive(at_work, lambda: len(outcomes) < len(configs))
    return [outcomes[i] for i in range(len(configs))]


@dataclass(frozen=True)
class Processes:
    """This machine.

    On CPU as many runs go side by side as there are cores, each on its share of the threads: for one run more threads help
    less than another run does (bench/RESULTS.md).  On CUDA one after the other, unless `workers` says otherwise.
    """

    workers: int | None = None

    @contextmanager
    def open(
        self, root: Path, tell: Tell, *, runs: int, device: str = "cpu", data_dir: Path | None = None
    ) -> Generator[AtWork, None, None]:
        cores = available_cores()
        workers = min(self.workers or (cores if device == "cpu" else 1), runs)
        if workers == 1:
            yield _Here(root, data_dir, tell)
            return
        pool = _Pool(root, data_dir, tell, workers, max(1, cores // workers))
        try:
            yield pool
        except BaseException:
            pool.stop_all()
            raise
        finally:
            pool.close()


def _one(config: Config, root: Path, data_dir: Path | None, tell: Callable[[Progress], None]) -> Outcome:
    try:
        return run(config, root, data_dir=data_dir, tell=tell)
    except (Refused, Interrupted) as error:
        return error


class _Here:
    """One run after the other, in this process."""

    slots = 1

    def __init__(self, root: Path, data_dir: Path | None, tell: Tell):
        self.root, self.data_dir, self.tell = root, data_dir, tell
        self._waiting: deque[tuple[int, Config]] = deque()
        self._unwanted: set[int] = set()

    def submit(self, i: int, config: Config) -> None:
        self._waiting.append((i, config))

    def listen(self, seconds: float) -> None:
        if not self._waiting:
            time.sleep(seconds)
            return
        i, config = self._waiting.popleft()

        def heard(progress: Progress) -> None:
            self.tell(i, progress)
            if i in self._unwanted:
                raise Interrupted("not wanted any more")

        outcome = _one(config, self.root, self.data_dir, heard)
        self.tell(i, outcome)
        if isinstance(outcome, Interrupted) and i not in self._unwanted:
            self.stop_all()

    def stop(self, i: int) -> None:
        self._unwanted.add(i)

    def stop_all(self, now: bool = False) -> None:
        while self._waiting:
            self.tell(self._waiting.popleft()[0], Interrupted(NOT_BEGUN))


class _Pool:
    """Several runs side by side, in processes of their own."""

    def __init__(self, root: Path, data_dir: Path | None, tell: Tell, workers: int, threads: int):
        self.root, self.data_dir, self.tell, self.slots = root, data_dir, tell, workers
        context = multiprocessing.get_context("spawn")
        self._threads = str(threads)
        self._news: Any = context.Queue()
        self._over: Any = context.Event()
        self._pids: set[int] = set()
        self._at: dict[int, int] = {}  # which process a run is in
        self._futures: dict[int, Future[Outcome]] = {}
        self._configs: dict[int, Config] = {}
        self._unwanted: set[int] = set()
        begin = (threads, 1 / workers, self._news, self._over)
        self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=begin)

    def submit(self, i: int, config: Config) -> None:
        self._configs[i] = config
        with _environment(OMP_NUM_THREADS=self._threads):  # a process is started when there is something for it to do
            try:
                self._futures[i] = self._pool.submit(_work, i, portable(config), self.root, self.data_dir)
            except BrokenProcessPool as error:
                self._futures[i] = Future()
                self._futures[i].set_exception(error)

    def listen(self, seconds: float) -> None:
        self._hear(seconds)
        for i, future in list(self._futures.items()):
            if future.done():
                del self._futures[i]
                outcome = Interrupted(NOT_BEGUN) if future.cancelled() else _result(future)
                if isinstance(outcome, Interrupted) and not self._over.is_set() and i not in self._unwanted:
                    self.submit(i, self._configs[i])  # it was hit by what was meant for the one before it
                else:
                    del self._configs[i]
                    self.tell(i, outcome)

    def _hear(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                i, event = self._news.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(event, Progress):
                self.tell(i, event)
            else:
                self._pids.add(event)
                self._at[i] = event

    def stop(self, i: int) -> None:
        self._unwanted.add(i)
        if i in self._futures and not self._futures[i].cancel() and i in self._at:
            _send(self._at[i], signal.SIGTERM)

    def stop_all(self, now: bool = False) -> None:
        self._over.set()
        self._hear(0.0)
        for future in self._futures.values():
            future.cancel()
        for pid in self._pids:
            _send(pid, signal.SIGKILL if now else signal.SIGTERM)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._news.close()


def _result(future: "Future[Outcome]") -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return Lost(
            "A worker process was killed from outside (by the system for want of memory?); the same command resumes from the last "
            "checkpoints, and `--workers 1` runs one after the other."
        )


def _begin(threads: int, share: float, news: Any, over: Any) -> None:
    """What a worker does first.  A terminal's Ctrl-C reaches it too, but it waits for the parent's word."""
    global _news, _over, _share
    _news, _over, _share = news, over, share
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # between runs; a run itself takes it to save and stop
    torch.set_num_threads(threads)
    threading.Thread(target=_go_with_the_parent, daemon=True).start()
    news.put((-1, os.getpid()))


def _go_with_the_parent() -> None:
    """A worker whose parent was killed would go on, hold its run's lock against the same command, and never end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def portable(config: Config) -> Config | dict[str, Any]:
    """What another process can read: a class from a file of the user's has no name there to unpickle it by."""
    tree = config.to_json()
    return tree if ".py:" in json.dumps(tree) else config


def _work(i: int, config: Config | dict[str, Any], root: Path, data_dir: Path | None) -> Outcome:
    if _over.is_set():
        return Interrupted(NOT_BEGUN)
    _news.put((i, os.getpid()))
    config = config if isinstance(config, Config) else Config.from_json(config)
    if config.device.startswith("cuda"):  # side by side on one device: each its share of the memory
        torch.cuda.set_per_process_memory_fraction(_share, torch.device(config.device).index or 0)
    return _one(config, root, data_dir, seldom(lambda progress: _news.put((i, progress))))


def seldom(tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Says no more than a person can follow, but every new accuracy."""
    last, measured = 0.0, None

    def told(progress: Progress) -> None:
        nonlocal last, measured
        if time.monotonic() - last > 0.25 or progress.measured != measured:
            last, measured = time.monotonic(), progress.measured
            tell(progress)

    return told


_news: Any = None
_over: Any = None
_share = 1.0


@contextmanager
def _environment(**values: str) -> Generator[None, None, None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
