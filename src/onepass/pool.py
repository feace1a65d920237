"""Many runs: in local processes, with the threads shared out among them."""

import json
import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from onepass.config import Config
from onepass.data.cache import available_cores
from onepass.errors import Refused
from onepass.loop import Interrupted, Progress, run
from onepass.record import Record, Recorder

NOT_BEGUN = "not begun"

Outcome = Record | Refused | Interrupted
Tell = Callable[[int, Progress | Outcome], None]


def sweep(
    configs: Sequence[Config],
    root: Path | str = "runs",
    *,
    workers: int | None = None,
    data_dir: Path | None = None,
    tell: Tell | None = None,
) -> list[Outcome]:
    """Run every config; what each came to, in their order.  `tell` hears of each run's progress, and of its end.

    On CPU as many runs go side by side as there are cores, each on its share of the threads: for one run more threads help
    less than another run does (bench/RESULTS.md).  On CUDA one after the other, unless `workers` says otherwise.
    """
    heard: Tell = tell or (lambda i, event: None)
    outcomes: dict[int, Outcome] = {}
    for i, config in enumerate(configs):
        recorder = Recorder(Path(root), config)
        if recorder.finished:
            outcomes[i] = recorder.record
            heard(i, outcomes[i])
    waiting = [i for i in range(len(configs)) if i not in outcomes]
    cores = available_cores()
    cpu = all(configs[i].device == "cpu" for i in waiting)
    workers = min(workers or (cores if cpu else 1), len(waiting))
    if workers > 1:
        outcomes |= _pool(configs, waiting, Path(root), workers, max(1, cores // workers), data_dir, heard)
    else:
        for i in waiting:
            outcomes[i] = _one(configs[i], Path(root), data_dir, lambda p, i=i: heard(i, p))
            heard(i, outcomes[i])
            if isinstance(outcomes[i], Interrupted):
                outcomes |= {j: Interrupted(NOT_BEGUN) for j in waiting if j not in outcomes}
                break
    return [outcomes[i] for i in range(len(configs))]


def _one(config: Config, root: Path, data_dir: Path | None, tell: Callable[[Progress], None]) -> Outcome:
    try:
        return run(config, root, data_dir=data_dir, tell=tell)
    except (Refused, Interrupted) as error:
        return error


def _pool(
    configs: Sequence[Config],
    waiting: list[int],
    root: Path,
    workers: int,
    threads: int,
    data_dir: Path | None,
    heard: Tell,
) -> dict[int, Outcome]:
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    over: Any = context.Event()
    outcomes: dict[int, Outcome] = {}
    workers_ids: set[int] = set()

    def listen(seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                i, event = news.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if i < 0:
                workers_ids.add(event)
            else:
                heard(i, event)

    with _environment(OMP_NUM_THREADS=str(threads)), _asked_to_stop() as stop:
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(threads, 1 / workers, news, over))
        futures: dict[int, Future[Outcome]] = {}
        try:
            for i in waiting:
                futures[i] = pool.submit(_work, i, _portable(configs[i]), root, data_dir)
            passed_on = 0
            while len(outcomes) < len(futures):
                listen(0.2)
                if len(stop) > passed_on:  # asked once, workers save and stop; asked again, they are killed
                    passed_on = len(stop)
                    over.set()
                    for future in futures.values():
                        future.cancel()
                    for pid in workers_ids:
                        _send(pid, signal.SIGTERM if passed_on == 1 else signal.SIGKILL)
                for i, future in futures.items():
                    if future.done() and i not in outcomes:
                        outcomes[i] = Interrupted(NOT_BEGUN) if future.cancelled() else _result(future)
                        heard(i, outcomes[i])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            news.close()
    return outcomes


def _result(future: "Future[Outcome]") -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return Refused(
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
    news.put((-1, os.getpid()))


def _portable(config: Config) -> Config | dict[str, Any]:
    """What another process can read: a class from a file of the user's has no name there to unpickle it by."""
    tree = config.to_json()
    return tree if ".py:" in json.dumps(tree) else config


def _work(i: int, config: Config | dict[str, Any], root: Path, data_dir: Path | None) -> Outcome:
    if _over.is_set():
        return Interrupted(NOT_BEGUN)
    last = 0.0

    def tell(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > 0.25:
            last = time.monotonic()
            _news.put((i, progress))

    config = config if isinstance(config, Config) else Config.from_json(config)
    if config.device.startswith("cuda"):  # side by side on one device: each its share of the memory
        torch.cuda.set_per_process_memory_fraction(_share, torch.device(config.device).index or 0)
    return _one(config, root, data_dir, tell)


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


@contextmanager
def _asked_to_stop() -> Generator[list[bool], None, None]:
    """Grows an entry when Ctrl-C or SIGTERM comes; the workers are told, save, and stop."""
    stop: list[bool] = []

    def ask(number: int, frame: object) -> None:
        stop.append(True)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever called is interrupted instead
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
