"""The finished runs in some folders, grouped so that only the seed differs within a group; what is left out is counted."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from onepass import metrics
from onepass.__about__ import RESULTS_VERSION
from onepass.errors import Refused
from onepass.record import Record, Results

Flat = Mapping[str, str]
"""A config as texts: {"optim": "Adam", "optim.lr": "0.001"}."""
Tell = Callable[[str, int, int], None]
"""Is told what is done, how much of it, and of how much."""

NETWORKS = ("student", "teacher", "average")
APART = ("data", "stream", "memory", "per_class", "limit", "held_out")  # runs that differ in these are not comparable
OWN = ("seed", "graph", "probes")  # runs of one group may differ in these


@dataclass(frozen=True, eq=False)
class Run:
    """What is read of a finished run."""

    path: Path
    identity: str
    seed: int
    config: Flat
    env: Mapping[str, Any]
    done: Mapping[str, Any]
    stream: Mapping[str, Any]
    summary: Mapping[str, float]
    ends: np.ndarray  # images seen at the task ends
    matrix: np.ndarray  # (task ends, tasks)
    curve: tuple[np.ndarray, np.ndarray]  # images seen, accuracy on the tasks so far
    networks: Mapping[str, np.ndarray]  # accuracy on the tasks so far at each task end, by each network
    recency: np.ndarray  # at each task end
    confusion: np.ndarray
    drift: Mapping[str, tuple[np.ndarray, np.ndarray]]  # images seen, distance

    def number(self, name: str) -> float:
        """One of the numbers at the end, nan if it is not there."""
        return self.summary.get(name, np.nan)

    @property
    def speed(self) -> float:
        return float(self.done["images_per_second"])

    @property
    def seconds(self) -> float:
        return float(self.done["seconds"])

    @property
    def peak(self) -> float:
        """Memory in MiB."""
        return float(self.done.get("peak_memory_mib") or np.nan)


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ by their seed alone."""

    label: str  # the method's name, and what sets the group apart from others of that name
    runs: tuple[Run, ...]

    @property
    def config(self) -> Flat:
        """What the runs have in common."""
        return {k: v for k, v in self.runs[0].config.items() if top(k) not in OWN}

    def over_seeds(self, measure: Callable[[Run], float]) -> list[float]:
        """What was measured, where there is a number."""
        return [value for value in map(measure, self.runs) if value == value]


@dataclass(frozen=True, eq=False)
class Setting:
    """Groups of runs on the same stream of the same data, with a memory of the same size."""

    name: str
    groups: tuple[Group, ...]


@dataclass(frozen=True, eq=False)
class Gathered:
    """Settings, and the runs that have no part in them, by why."""

    settings: tuple[Setting, ...]
    left_out: Mapping[str, tuple[Path, ...]]

    @property
    def groups(self) -> list[Group]:
        return [group for setting in self.settings for group in setting.groups]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    def notes(self) -> list[str]:
        """What is left out, and why; a line for each reason."""
        return [f"{len(paths)} left out: {why}" for why, paths in self.left_out.items()]


class LeftOut(Exception):
    """Why a run is not shown."""


def gather(folders: Sequence[Path], match: str = "", tell: Tell | None = None) -> Gathered:
    """Read the runs in some folders, each of which may be a run itself; only those with `match` in their path."""
    found = {path.resolve(): path for folder in folders for path in _folders(folder)}
    paths = [path for path in found.values() if match in str(path)]
    runs: dict[tuple[str, str], Run] = {}
    left_out: dict[str, list[Path]] = {}
    for i, path in enumerate(paths):
        try:
            run = read(path)
            key = run.identity, run.stream["data"]
            if key in runs:
                raise LeftOut("the same run lies in another folder, too")
            runs[key] = run
        except LeftOut as why:
            left_out.setdefault(str(why), []).append(path)
        if tell is not None:
            tell("read", i + 1, len(paths))
    return Gathered(tuple(_settings(runs.values())), {why: tuple(paths) for why, paths in left_out.items()})


def _folders(root: Path) -> list[Path]:
    """The folders of runs, also of those that were cut short while they were written."""
    if not root.is_dir():
        raise Refused(f"There is no folder `{root}` to read runs from; give a run, or the folder that `--runs` named.")
    found = {file.parent for name in ("config.json", "stream.json") for file in root.rglob(name)}
    return sorted(folder for folder in found if (folder / "stream.json").is_file() or _is_run(folder / "config.json"))


def _is_run(config: Path) -> bool:
    try:
        return "identity" in json.loads(config.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def read(path: Path) -> Run:
    """A run from its folder, or why it is left out."""
    record = Record(path)
    try:
        if record.config["results"] != RESULTS_VERSION:
            raise LeftOut("of another version of the results")
        done = record.done
        if done is None:
            raise LeftOut("not finished")
        if not done["summary"]:
            raise LeftOut("nothing was measured")
        if not zipfile.is_zipfile(path / "probes.npz"):
            raise LeftOut("damaged or half-written")
        return _measured(record, done, record.results)
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise LeftOut("damaged or half-written") from error


def _measured(record: Record, done: Mapping[str, Any], results: Results) -> Run:
    tree, env, stream = record.config["config"], record.env, results.stream
    y, tasks = results.arrays["y"], results.tasks
    ends, predicted = results.at(f"task/{stream['infer']}")
    drifts = {which: results.at(f"drift/{which}") for which in NETWORKS}
    networks = {which: results.matrix(which) for which in NETWORKS if len(results.at(f"task/{which}")[0])}
    for key in "images_per_second", "seconds", "seconds_of", "ended":
        done[key]  # a page is not begun that could not be finished
    return Run(
        path=record.path,
        identity=record.config["identity"],
        seed=record.seed,
        config=flat(tree | {"precision": env["precision"], "device": str(tree["device"]).partition(":")[0], "name": title(tree)}),
        env=env,
        done=done,
        stream=stream,
        summary=record.summary,
        ends=ends,
        matrix=results.matrix(),
        curve=results.curve(),
        networks={which: np.array([metrics.average_accuracy(row) for row in of]) for which, of in networks.items()},
        recency=np.array([metrics.recency(row, y, tasks[: t + 1]) for t, row in enumerate(predicted)]),
        confusion=results.confusion(),
        drift={which: of for which, of in drifts.items() if len(of[0])},
    )


def title(tree: Mapping[str, Any]) -> str:
    """What a config calls itself, as `Config.title` has it; nothing of the user's is loaded for it."""
    parts = [tree[part]["is"].rpartition(":")[2] for part in ("method", "distill", "teacher") if tree[part]]
    return tree["name"] or "+".join(part.lower() for part in parts[:2])


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The leaves of a config, by their flags' names; an object is the name of its class, and what is in it."""
    out: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            inner = cast(dict[str, Any], value)
            out[prefix + key] = inner.get("is", "")
            out |= flat({k: v for k, v in inner.items() if k != "is"}, f"{prefix}{key}.")
        else:
            out[prefix + key] = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return out


def top(field: str) -> str:
    return field.partition(".")[0]


# -- groups --------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def _settings(runs: Iterable[Run]) -> Iterator[Setting]:
    by_setting = _by(runs, lambda run: _key((k, v) for k, v in run.config.items() if top(k) in APART) + run.stream["data"])
    names = [_setting_name(group[0]) for group in by_setting]
    where = [{k: v for k, v in group[0].config.items() if top(k) in APART} for group in by_setting]
    fingerprints = [{"data's fingerprint": str(group[0].stream["data"])[:8]} for group in by_setting]
    for name, group in zip(apart(names, where, fingerprints), by_setting, strict=True):
        yield Setting(name, tuple(_groups(group)))


def _groups(runs: Iterable[Run]) -> Iterator[Group]:
    groups: list[list[Run]] = []
    for group in _by(runs, lambda run: _key((k, v) for k, v in run.config.items() if top(k) not in OWN)):
        # A seed that comes twice with one config: a file of the user's changed between, and nobody knows for which of the others.
        twice = len({run.seed for run in group}) < len(group)
        groups += [[run] for run in group] if twice else [group]
    names = [group[0].config["name"] for group in groups]
    configs = [{k: v for k, v in group[0].config.items() if top(k) not in OWN} for group in groups]
    for label, group in zip(apart(names, configs, [{"identity": group[0].identity} for group in groups]), groups, strict=True):
        yield Group(label, tuple(sorted(group, key=lambda run: run.seed)))


def _by(items: Iterable[T], key: Callable[[T], str]) -> list[list[T]]:
    out: dict[str, list[T]] = {}
    for item in items:
        out.setdefault(key(item), []).append(item)
    return list(out.values())


def _key(pairs: Iterable[tuple[str, str]]) -> str:
    return json.dumps(sorted(pairs))


def _setting_name(run: Run) -> str:
    config = run.config
    data = config["data"].lower() + (f" {Path(config['data.path']).name}" if "data.path" in config else "")
    held_out = "" if config["held_out"] == "none" else ", tested on held-out training images"
    return f"{data}, {config['stream'].lower()} stream, memory {config['memory']}{held_out}"


def differing(configs: Sequence[Flat]) -> list[str]:
    """The fields in which some configs differ, in the order of a config; what is in an object comes after it."""
    fields = every_field(configs)
    return [field for field in fields if len({config.get(field) for config in configs}) > 1]


def every_field(configs: Sequence[Flat]) -> list[str]:
    fields = dict.fromkeys(field for config in configs for field in config)
    tops = [*dict.fromkeys(map(top, fields))]
    return sorted(fields, key=lambda field: tops.index(top(field)))  # which is stable


def heads(fields: Sequence[str]) -> list[str]:
    """The fields without those inside of others: where the class of a teacher differs, what is in it says no more."""
    return [f for f in fields if not any(f[:i] in fields for i, c in enumerate(f) if c == ".")]


def apart(names: Sequence[str], configs: Sequence[Flat], otherwise: Sequence[Flat]) -> list[str]:
    """The names, and for those that come several times what sets each apart: fields, or if there are none something else."""
    out: list[str] = []
    for name, config, other in zip(names, configs, otherwise, strict=True):
        same = [i for i, n in enumerate(names) if n == name]
        told = [f"{field}={config[field]}" for field in heads(differing([configs[i] for i in same])) if field in config]
        if [configs[i] for i in same].count(config) > 1:
            told += [f"{field}={value}" for field, value in other.items()]
        out.append(name + (f" ({', '.join(told)})" if len(same) > 1 else ""))
    return out
