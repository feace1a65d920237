"""A run on disk: its config, environment, log, probes, checkpoint and end, each written aside and renamed."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass import metrics
from onepass.__about__ import RESULTS_VERSION, __version__
from onepass.config import Config, build, hints_of
from onepass.errors import Refused
from onepass.files import aside, sync, write_json
from onepass.learner import Clock, Learner
from onepass.probes import Probe
from onepass.stream import Pass


@dataclass(frozen=True)
class Results:
    """What the probes of a run saw: arrays by name and time, and the stream they belong to."""

    arrays: Mapping[str, np.ndarray]  # "task/student@000000287", and "y": the test labels
    stream: Mapping[str, Any]  # stream.json

    def at(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The times (in images) at which something was measured, and the measurements."""
        keys = sorted(k for k in self.arrays if k.rpartition("@")[0] == name)
        times = np.array([int(k.rpartition("@")[2]) for k in keys], dtype=np.int64)
        return times, np.array([self.arrays[k] for k in keys])

    @property
    def tasks(self) -> list[list[int]]:
        return self.stream["tasks"]

    def matrix(self, which: str | None = None) -> np.ndarray:
        """(task ends, tasks): accuracy on each task, by the network that predicts or another."""
        _, predictions = self.at(f"task/{which or self.stream['infer']}")
        return metrics.accuracy_matrix(predictions, self.arrays["y"], self.tasks)

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Images seen, and the accuracy on the tasks so far."""
        points: dict[int, float] = {}
        for name in "curve", "task":
            times, predictions = self.at(f"{name}/{self.stream['infer']}")
            for t, row in zip(times, predictions, strict=True):
                matrix = metrics.accuracy_matrix(row[None], self.arrays["y"], self.tasks)
                points[int(t)] = metrics.average_accuracy(matrix[0])
        return np.array(sorted(points), dtype=np.int64), np.array([points[t] for t in sorted(points)])

    def latest(self) -> float | None:
        """The accuracy on the tasks so far when last measured."""
        accuracy = self.curve()[1]
        return float(accuracy[-1]) if len(accuracy) else None

    def confusion(self, which: str | None = None) -> np.ndarray:
        """(true, predicted) counts at the end, in training order."""
        _, predictions = self.at(f"task/{which or self.stream['infer']}")
        return metrics.confusion(predictions[-1], self.arrays["y"], self.stream["classes"])

    def summary(self) -> dict[str, float]:
        """The numbers of a finished run."""
        if not len(self.at(f"task/{self.stream['infer']}")[0]):
            return {}  # nothing was asked of it
        matrix = self.matrix()
        last = self.at(f"task/{self.stream['infer']}")[1][-1]
        out = {
            "accuracy": metrics.average_accuracy(matrix[-1]),
            "anytime": metrics.anytime_accuracy(matrix),
            "backward_transfer": metrics.backward_transfer(matrix),
            "forgetting": metrics.forgetting(matrix),
            "recency": metrics.recency(last, self.arrays["y"], self.tasks[: len(self.stream["task_ends"])]),
        }
        for which in "student", "teacher", "average":
            if len(self.at(f"task/{which}")[0]):
                out[f"accuracy_{which}"] = metrics.average_accuracy(self.matrix(which)[-1])
        return {k: float(v) for k, v in out.items()}


class Record:
    """A run's folder, for reading."""

    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        return _read_json(self.path / "config.json")

    @cached_property
    def env(self) -> dict[str, Any]:
        return _read_json(self.path / "env.json")

    @property
    def done(self) -> dict[str, Any] | None:
        """What was measured at the end; None: it has not ended."""
        return _read_json(self.path / "done.json") if (self.path / "done.json").is_file() else None

    @property
    def summary(self) -> dict[str, float]:
        """The numbers of a finished run; nan where there was nothing to measure."""
        numbers = (self.done or {}).get("summary", {})
        return {"accuracy": float("nan"), "backward_transfer": float("nan")} | {
            k: float("nan") if v is None else v for k, v in numbers.items()
        }

    @property
    def log(self) -> list[dict[str, float]]:
        file = self.path / "log.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    @cached_property
    def results(self) -> Results:
        with np.load(self.path / "probes.npz", allow_pickle=False) as file:
            return Results({k: file[k] for k in file.files}, _read_json(self.path / "stream.json"))

    @property
    def title(self) -> str:
        return self.path.resolve().parts[-3]

    @property
    def seed(self) -> int:
        return int(self.config["config"]["seed"])

    @property
    def bytes(self) -> int:
        return sum(f.stat().st_size for f in self.path.rglob("*") if f.is_file())

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"


class Records(list[Record]):
    """Some runs."""

    def frame(self) -> Any:
        """A pandas data frame: one row for each finished run, with its setting and its numbers."""
        try:
            import pandas
        except ImportError as error:
            raise Refused("A data frame needs pandas, which is not installed: `pip install pandas`.") from error
        rows: list[dict[str, Any]] = []
        for record in self:
            done = record.done
            if done is not None:
                setting, title, memory, _ = record.path.resolve().parts[-4:]
                rows.append(
                    {"setting": setting, "method": title, "memory": int(memory[1:]), "seed": record.seed}
                    | record.summary
                    | {k: done[k] for k in ("seconds", "images_per_second")}
                    | {"path": str(record.path)}
                )
        return pandas.DataFrame(rows)


def records(root: str | Path = "runs") -> Records:
    """Every run below a folder, finished or not, in the order of their paths."""
    root = Path(root)
    if not root.is_dir():
        raise Refused(f"There is no folder `{root}` to read runs from; give the one that `--runs` named.")
    return Records(Record(f.parent) for f in sorted(root.rglob("config.json")) if _is_record(f))


def _is_record(file: Path) -> bool:
    try:
        return "identity" in _read_json(file)
    except (OSError, ValueError, TypeError):
        return False


class Recorder:
    """A run's folder, for writing.  Killed at any moment, it loses what came since the last checkpoint and no more."""

    def __init__(self, root: Path, config: Config):
        self.config, self.path = config, root / config.folder
        self._lock: Any = None
        self._lines: list[tuple[int, int, dict[str, Tensor]]] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._log_bytes = 0
        self._last_save, self._last_flush, self._save_cost = time.monotonic(), time.monotonic(), 0.0
        self.seconds = {"train": 0.0, "probe": 0.0, "save": 0.0}
        self._resumed: list[dict[str, Any]] = []

    @property
    def record(self) -> Record:
        return Record(self.path)

    @property
    def finished(self) -> bool:
        """Whether it has ended, and was asked then all that is asked now; if not all, it has to be done again."""
        return (self.path / "done.json").is_file() and self._asked

    @property
    def _asked(self) -> bool:
        """Whether the probes of the run that is there are those of now, and perhaps more."""
        there = self.record.config["config"]["probes"]
        return all(probe in there for probe in self.config.to_json()["probes"])

    @property
    def probes(self) -> tuple[Probe, ...]:
        """What the run that is there is asked: at least what is asked now."""
        return build(hints_of(Config)["probes"], self.record.config["config"]["probes"], "probes")

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def open(self, stream: Pass, fingerprint: str, test_labels: Tensor, learner: Learner) -> None:
        """Claim the folder, and bring the learner to where the last checkpoint was, if there is one.

        Nothing is begun if another process has just ended the same run: then it is `finished`.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path / "lock")
        except OSError as error:
            raise Refused(f"`{self.path}` cannot be written ({error.strerror}); give another folder with `--runs`.") from error
        if self.finished:
            return
        self._stream = {
            "classes": stream.spec.classes,
            "image": stream.spec.image,
            "tasks": stream.spec.tasks,
            "original": stream.spec.original,
            "names": stream.spec.names,
            "task_ends": stream.task_ends,
            "length": len(stream),
            "infer": learner.infer,
            "data": fingerprint,
        }
        self._y = test_labels.numpy().astype(np.int16)
        if self._checkpoint.is_file() and self._asked:
            self._restore(learner)
        else:
            for name in "done.json", "model.safetensors", "checkpoint.safetensors":
                (self.path / name).unlink(missing_ok=True)
            self._reset(0)
            write_json(self.path / "stream.json", self._stream)
            write_json(self.path / "env.json", environment(learner))
            tree = {"identity": self.config.identity, "results": RESULTS_VERSION, "onepass": __version__}
            write_json(self.path / "config.json", tree | {"config": self.config.to_json()})

    def _restore(self, learner: Learner) -> None:
        from safetensors import SafetensorError, safe_open

        old = _read_json(self.path / "stream.json")
        if old["data"] != self._stream["data"]:
            raise Refused(
                f"`{self.path}` was begun on other data than is there now (its fingerprint differs); put the old data back, "
                "or delete that run with `onepass runs --delete`."
            )
        try:
            with safe_open(self._checkpoint, framework="pt") as file:
                meta = json.loads(file.metadata()["onepass"])
                state = {k: file.get_tensor(k) for k in file.keys()}
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise Refused(
                f"The checkpoint `{self._checkpoint}` is damaged ({error}); delete the file to start this run anew."
            ) from error
        if meta["identity"] != self.config.identity:
            raise Refused(
                f"The checkpoint `{self._checkpoint}` is of another config ({meta['identity']}, not {self.config.identity}); "
                "delete the file to start this run anew."
            )
        learner.load_state_dict(state)
        self.seconds = meta["seconds"]
        self._reset(meta["log_bytes"])
        probes = self.path / "probes.npz"
        if probes.is_file():
            with np.load(probes, allow_pickle=False) as file:
                kept = (k for k in file.files if "@" in k and int(k.rpartition("@")[2]) <= learner.clock.samples)
                self._arrays = {k: file[k] for k in kept}
        env = _read_json(self.path / "env.json")
        env.setdefault("resumed", []).append({"at": learner.clock.samples} | environment(learner))
        write_json(self.path / "env.json", env)

    def _reset(self, log_bytes: int) -> None:
        """Forget what was logged after the checkpoint."""
        self._log_bytes = log_bytes
        log = self.path / "log.jsonl"
        log.touch()
        os.truncate(log, log_bytes)
        if not log_bytes:
            (self.path / "probes.npz").unlink(missing_ok=True)
            (self.path / "timing.jsonl").unlink(missing_ok=True)
        for left in self.path.glob("*.aside"):
            left.unlink()

    # -- while it runs --

    def log(self, clock: Clock, values: Mapping[str, Tensor]) -> None:
        """Keep what a step said; it is looked at only when the log is flushed."""
        if values:
            self._lines.append((clock.samples, clock.updates, dict(values)))
        if len(self._lines) >= 512 or time.monotonic() - self._last_flush > 10:
            self.flush(clock)

    def flush(self, clock: Clock) -> None:
        """Write the log, and stop if a loss is not a number."""
        lines, self._lines = self._lines, []
        self._last_flush = time.monotonic()
        if not lines:
            return
        names = sorted({name for _, _, values in lines for name in values})
        columns = {n: torch.stack([v[n] for _, _, v in lines if n in v]).double().cpu().numpy() for n in names}
        cursors = {n: iter(columns[n]) for n in names}
        text: list[str] = []
        for samples, updates, values in lines:
            row = {n: float(next(cursors[n])) for n in names if n in values}
            if not np.isfinite(list(row.values())).all():
                self._append("log.jsonl", "".join(text))
                bad = next(n for n, v in row.items() if not np.isfinite(v))
                raise Diverged(
                    f"The {bad} of `{self.config.title}` (seed {self.config.seed}) is {row[bad]} at update {updates}, after "
                    f"{samples} images: it diverged. Take a smaller learning rate (`--optim.lr`); the last good checkpoint is kept."
                )
            text.append(json.dumps({"samples": samples, "updates": updates} | row) + "\n")
        self._append("log.jsonl", "".join(text))
        self._log_bytes += sum(len(t) for t in text)
        self._append(
            "timing.jsonl",
            json.dumps({"samples": clock.samples, "seconds": round(sum(self.seconds.values()), 3)}) + "\n",
        )

    def _append(self, name: str, text: str) -> None:
        with open(self.path / name, "a") as file:
            file.write(text)

    def write(self, clock: Clock, arrays: Iterator[tuple[str, np.ndarray]]) -> None:
        """Keep what a probe measured."""
        for name, array in arrays:
            self._arrays[f"{name}@{clock.samples:09d}"] = array
        with aside(self.path / "probes.npz") as file:
            np.savez_compressed(file, **(self._arrays | {"y": self._y}))  # pyright: ignore[reportArgumentType]

    @property
    def results(self) -> Results:
        return Results(self._arrays | {"y": self._y}, self._stream)

    @property
    def save_due(self) -> bool:
        """Whether a checkpoint would cost under 2 % of the time since the last."""
        return time.monotonic() - self._last_save > max(60.0, 50 * self._save_cost)

    def save(self, learner: Learner) -> None:
        began = time.monotonic()
        self.flush(learner.clock)
        sync(self.path / "log.jsonl")
        meta = {"identity": self.config.identity, "log_bytes": self._log_bytes, "seconds": self.seconds}
        state = {k: v.detach().contiguous() for k, v in learner.state_dict().items()}
        with aside(self._checkpoint) as file:
            _save_tensors(state, file.name, {"onepass": json.dumps(meta)})
        self._last_save = time.monotonic()
        self._save_cost = self._last_save - began
        self.seconds["save"] += self._save_cost

    def finish(self, learner: Learner) -> Record:
        """The end: what was measured, and the network that predicts."""
        self.flush(learner.clock)
        net = {k: v.detach().contiguous().cpu() for k, v in learner.network().state_dict().items()}
        meta = {"config": json.dumps(self.config.to_json()), "stream": json.dumps(self._stream)}
        with aside(self.path / "model.safetensors") as file:
            _save_tensors(net, file.name, meta)
        seconds = {k: round(v, 3) for k, v in self.seconds.items()}
        done = {
            "summary": {k: v if np.isfinite(v) else None for k, v in self.results.summary().items()},
            "seconds": round(sum(self.seconds.values()), 3),
            "seconds_of": seconds,
            "images_per_second": round(learner.clock.samples / max(self.seconds["train"], 1e-9), 2),
            "clock": asdict(learner.clock),
            "replayed_as_graphs": learner.graphs.replayed if learner.graphs is not None else None,
            "peak_memory_mib": peak_memory(),
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        write_json(self.path / "done.json", done)
        self._checkpoint.unlink(missing_ok=True)
        self.close()
        return self.record

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


# -- files ---------------------------------------------------------------------------------------------------------


def _save_tensors(tensors: dict[str, Tensor], name: str, meta: dict[str, str]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, name, metadata=meta)
    except SafetensorError as error:  # a full disk, most likely
        raise OSError(None, str(error)) from error


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


class Diverged(Refused):
    """A loss is no number any more."""


class Busy(Refused):
    """Another process is at it."""


def _lock(path: Path) -> Any:
    file = open(path, "w")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass  # not a POSIX system: two processes on one run are the user's affair
    except BlockingIOError:
        file.close()
        raise Busy(f"`{path.parent}` is being run by another process; wait for it, or stop it.") from None
    return file


def delete(runs: Sequence[Record]) -> None:
    """Remove runs, and the folders they leave empty.  One that is being run is refused, and none is removed."""
    locks = [_lock(record.path / "lock") for record in runs]
    for record, lock in zip(runs, locks, strict=True):
        shutil.rmtree(record.path)
        lock.close()
        for folder in list(record.path.parents)[:3]:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


# -- where it ran --------------------------------------------------------------------------------------------------


def environment(learner: Learner) -> dict[str, Any]:
    """The birth certificate of a run's numbers."""
    device = torch.cuda.get_device_name(learner.device) if learner.device.type == "cuda" else processor()
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "onepass": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{learner.device} ({device})",
        "precision": learner.precision,
        "threads": torch.get_num_threads(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def processor() -> str:
    """What the machine calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of onepass itself, if it runs from a checkout, with a `+` if files were changed since."""
    here = Path(__file__).resolve()

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, timeout=5)

    try:
        if git("ls-files", "--error-unmatch", here.name).returncode:  # installed, perhaps inside somebody's own repository
            return None
        out = git("describe", "--always", "--dirty=+", "--abbrev=12", "--match=")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() or None


def peak_memory() -> int | None:
    """The most memory this process ever had, in MiB."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
