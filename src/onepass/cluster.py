"""Runs as tasks of a Ray cluster: each with its cores, memory and share of a device, taken up elsewhere when its worker dies."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from onepass.config import Config
from onepass.data.cache import available_cores
from onepass.engine import NOT_BEGUN, AtWork, Engine, Lost, Outcome, Tell
from onepass.errors import Refused, unknown
from onepass.loop import Interrupted, Progress
from onepass.needs import Need
from onepass.nets import resolve_precision
from onepass.place import Place, checked
from onepass.pool import Processes
from onepass.record import Record
from onepass.store import Store
from onepass.worker import measured, trained

RETRIES = 5  # of a run whose worker died; a run that kills its worker each time is given up
GIB = 2**30


def engine(name: str = "local", *, workers: int | None = None, address: str | None = None, store: str | None = None) -> Engine:
    """An engine by the name that the command line knows it by."""
    if workers is not None and workers < 1:
        raise Refused(f"`--workers {workers}` would run nothing; take at least 1.")
    if name == "local":
        for flag, given in (("--address", address), ("--store", store)):
            if given is not None:
                raise Refused(f"`{flag}` is of a cluster, and the engine is local; add `--engine ray`, or leave it out.")
        return Processes(workers)
    if name != "ray":
        raise unknown("engine", name, ("local", "ray"))
    return Ray(address, workers, store)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster that is there, by the `address` of its head (`auto`: of this machine's); none starts a local one.

    Workers read and write the same folder as this process, by the same path, or, if they cannot see it, a `store` that both
    reach by an address; finished records are then fetched from it into the folder.
    """

    address: str | None = None
    workers: int | None = None
    store: str | None = None

    @contextmanager
    def open(
        self, root: Path, tell: Tell, *, runs: int, device: str = "cpu", data_dir: Path | None = None
    ) -> Generator[AtWork, None, None]:
        if ":" in device:
            raise Refused(f"`device={device}` is one device of one machine, and Ray chooses among those it has; take `cuda`.")
        ray: Any = _ray()
        mine = not ray.is_initialized()
        try:
            if mine:
                _join(ray, self.address, self.workers)
            with Place.found(root, self.store, data_dir) as place:
                _check_from_everywhere(ray, place)
                yield _Tasks(ray, place, tell, *_shares(ray, self.workers, runs, device))
        finally:
            if mine:
                ray.shutdown()


# -- joining -------------------------------------------------------------------------------------------------------


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody else's business
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise Refused("`--engine ray` needs Ray, which is not installed: `pip install 'onepass[ray]'`.") from error
    return ray


def _join(ray: Any, address: str | None, workers: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        cores = max(available_cores(), workers or 1)
        os.environ.setdefault("RAY_worker_niceness", "0")  # as urgent as the local pool's
        ray.init("local", num_cpus=cores, include_dashboard=False, object_store_memory=100 * 2**20, **quiet)
        return
    if address != "auto":
        _answers(address)
    try:
        ray.init(address, **quiet)
    except Exception as error:
        said = " ".join(str(error).split())
        raise Refused(f"The Ray cluster `--address {address}` cannot be joined: {said}") from error


def _answers(address: str) -> None:
    """Whether a Ray cluster answers, within ten seconds; Ray itself would try for more than a minute."""
    began = time.monotonic()
    silent = Refused(
        f"No Ray cluster answers at `--address {address}`; give the head's HOST:PORT as `ray start --head` printed it, or leave "
        "`--address` out to start a local one."
    )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in address:
        raise Refused(f"`--address {address}` is not HOST:PORT of a cluster's head, nor `auto` for the one of this machine.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=4).close()
    except OSError as error:
        raise silent from error
    ask = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=9.5 - (time.monotonic() - began))
    except subprocess.TimeoutExpired as error:
        raise silent from error
    if "AuthenticationError" in done.stderr:
        raise Refused(
            f"The Ray cluster at `--address {address}` wants its token; set RAY_AUTH_MODE=token here, and RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH to the head's (`ray get-auth-token` there)."
        )
    if done.returncode:
        raise silent


def _shares(ray: Any, workers: int | None, runs: int, device: str) -> tuple[int, int]:
    """How many runs go side by side, and the cores of each: as in the local pool, all cores to so many runs."""
    cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    slots = max(1, min(workers or sum(cores), runs))
    # On CUDA the host only draws and launches, and how many go side by side is a matter of the device.
    return slots, max(1, min(sum(cores) // slots, max(cores))) if device == "cpu" else 1


def _check_from_everywhere(ray: Any, place: Place) -> None:
    """Before anything is trained, ask one worker on each machine."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    ask: Any = ray.remote(num_cpus=0, max_retries=0)(checked)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    asked = [ask.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote(place) for node in nodes]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=120)  # one that is slow is asked again by its first run
    for answer in answered:
        try:
            wrong = ray.get(answer)
        except Exception as error:
            raise Refused(
                f"A worker could not begin ({' '.join(str(error).split())[-300:]}); install the same onepass, Ray and Python "
                "on every machine."
            ) from error
        if wrong is not None:
            raise wrong


# -- at work -------------------------------------------------------------------------------------------------------


class _Tasks:
    """Runs as tasks; each kind of run is measured once, by a task of its own, before those of its kind are begun."""

    def __init__(self, ray: Any, place: Place, tell: Tell, slots: int, cores: int):
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        self.ray, self.place, self.tell, self.slots, self.cores = ray, place, tell, slots, cores
        here = On(ray.get_runtime_context().get_node_id(), soft=False)
        self._post: Any = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._needs: dict[str, Need | None] = {}
        self._measuring: dict[Any, str] = {}
        self._waiting: dict[str, list[tuple[int, Config]]] = {}
        self._running: dict[Any, tuple[int, Config]] = {}
        self._unwanted: set[int] = set()
        self._over = False
        self._measure: Any = ray.remote(num_cpus=cores, max_retries=RETRIES)(measured)
        self._train: Any = ray.remote(num_cpus=cores, max_retries=RETRIES)(trained)

    def submit(self, i: int, config: Config) -> None:
        precision: Any = resolve_precision(config.precision, torch.device(config.device))
        config = replace(config, precision=precision)  # not that of the machine it happens to come to
        kind = replace(config, seed=0).identity
        if kind in self._needs:
            self._begin(i, config, self._needs[kind])
            return
        if kind not in self._waiting:
            whole = self._measure.options(num_gpus=float(config.device != "cpu"))
            self._measuring[whole.remote(config.to_json(), self.place)] = kind
        self._waiting.setdefault(kind, []).append((i, config))

    def _begin(self, i: int, config: Config, need: Need | None) -> None:
        need = need or Need(0, float(config.device != "cpu"))
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(n.get("memory", 0) >= need.memory and n.get("GPU", 0) >= need.device for n in nodes):
            most = max(n.get("memory", 0) for n in nodes) / GIB
            devices = max(n.get("GPU", 0) for n in nodes)
            refused = Refused(
                f"A run of `{config.title}` takes {need.memory / GIB:.1f} GiB and {need.device:g} of a CUDA device, and no machine "
                f"of the cluster lends that (at most {most:.1f} GiB and {devices:g} devices); add one that does."
            )
            self.tell(i, refused)
            return
        declared = self._train.options(memory=need.memory, num_gpus=need.device, name=config.title)
        ref = declared.remote(i, config.to_json(), config.identity, self.place, self.cores, need.device, self._post)
        self._running[ref] = i, config

    def listen(self, seconds: float) -> None:
        refs = [*self._measuring, *self._running]
        if not refs:
            time.sleep(seconds)
        ready = self.ray.wait(refs, num_returns=len(refs), timeout=seconds)[0] if refs else []
        under_way = {i for i, _ in self._running.values()}
        for i, progress in self._news():
            if i in under_way:
                self.tell(i, progress)
        for ref in ready:
            if ref in self._measuring:
                self._measured(ref)
            else:
                i, config = self._running.pop(ref)
                self.tell(i, self._outcome(ref, config))

    def _news(self) -> list[tuple[int, Progress]]:
        size = self._post.size()
        return self._post.get_nowait_batch(size) if size else []

    def _measured(self, ref: Any) -> None:
        kind = self._measuring.pop(ref)
        try:
            self._needs[kind] = self.ray.get(ref)
        except self.ray.exceptions.RayError:
            self._needs[kind] = None
        for i, config in self._waiting.pop(kind, []):
            if self._over or i in self._unwanted:
                self.tell(i, Interrupted(NOT_BEGUN))
            else:
                self._begin(i, config, self._needs[kind])

    def _outcome(self, ref: Any, config: Config) -> Outcome:
        errors = self.ray.exceptions
        try:
            outcome: Outcome = self.ray.get(ref)
        except errors.TaskCancelledError:
            return Interrupted(NOT_BEGUN)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.ObjectLostError) as error:
            if self._over:
                return Interrupted("stopped at once")
            return Lost(
                f"The worker of `{config.title}` (seed {config.seed}) died, and those after it "
                f"({' '.join(str(error).split())[:200]}); the same command resumes from the last checkpoint."
            )
        if not isinstance(outcome, Record):
            return outcome
        if self.place.store is not None:
            try:
                Store(self.place.store).fetch(config.folder, self.place.root)
            except Refused as error:
                return error
        return Record(self.place.root / config.folder)

    def stop(self, i: int) -> None:
        self._unwanted.add(i)
        for ref, (j, _) in self._running.items():
            if i == j:
                self.ray.cancel(ref)

    def stop_all(self, now: bool = False) -> None:
        self._over = True
        for ref in [*self._measuring, *self._running]:
            self.ray.cancel(ref, force=now)
