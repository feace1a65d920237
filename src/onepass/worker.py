"""What a worker of a cluster does: measures a run, or does one and tells how far it is."""

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from onepass.config import Config
from onepass.engine import Outcome
from onepass.errors import Refused
from onepass.loop import Interrupted, Progress, run
from onepass.needs import Need, measure
from onepass.place import Place
from onepass.pool import seldom
from onepass.record import Busy, Record
from onepass.store import Store

PATIENCE = 60.0  # seconds for the lock of a worker that died on another machine to be let go


def measured(tree: dict[str, Any], place: Place) -> Need | None:
    """What cannot be measured is run, and says then itself what is wrong with it."""
    try:
        return measure(_read(tree, place), place.data_dir)
    except (Refused, Interrupted):
        return None


def _read(tree: dict[str, Any], place: Place) -> Config:
    if place.home.is_dir():
        os.chdir(place.home)
    return Config.from_json(tree)


def trained(i: int, tree: dict[str, Any], identity: str, place: Place, threads: int, share: float, post: Any) -> Outcome:
    try:
        place.check()
        config = _read(tree, place)
        if config.identity != identity:
            raise Refused(
                f"`{socket.gethostname()}` has another onepass than the machine that asks, or another version of a file that the "
                f"config names: there this is run {config.identity}, here {identity}. Install the same on both."
            )
        torch.set_num_threads(threads)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # by which Ray cancels; a cluster begun by a script ignores it
        if share:
            torch.cuda.set_per_process_memory_fraction(share)
        # Not waited for: Ray would lend a waiting task's cores to another.
        tell = seldom(lambda progress: post.actor.put_nowait.remote((i, progress)))
        if place.store is None:
            return _when_free(lambda: run(config, place.shared, data_dir=place.data_dir, tell=tell))
        return _by_store(Store(place.store), config, place.data_dir, tell)
    except (Refused, Interrupted) as error:
        return error


def _when_free(act: Callable[[], Record]) -> Record:
    """A machine that died may hold the lock of its run for a while yet, as network file systems have it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return act()
        except Busy:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def _by_store(store: Store, config: Config, data_dir: Path | None, tell: Callable[[Progress], None]) -> Record:
    """A run in a folder of this machine's own, of which the store is told at each checkpoint and at the end."""
    root = Path(tempfile.mkdtemp(prefix="onepass-"))
    checkpoint = root / config.folder / "checkpoint.safetensors"
    known = 0

    def put() -> None:
        nonlocal known
        if checkpoint.is_file() and checkpoint.stat().st_mtime_ns != known:
            known = checkpoint.stat().st_mtime_ns
            store.put(config.folder, root)

    def heard(progress: Progress) -> None:
        tell(progress)
        put()

    try:
        store.fetch(config.folder, root)
        known = checkpoint.stat().st_mtime_ns if checkpoint.is_file() else 0
        try:
            record = run(config, root, data_dir=data_dir, tell=heard)
        except (Refused, Interrupted):
            put()
            raise
        store.put(config.folder, root)
        return record
    finally:
        shutil.rmtree(root, ignore_errors=True)
