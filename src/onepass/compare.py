"""Two runs, or two groups of seeds, side by side: what differs in config, in environment, and in results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onepass import metrics
from onepass.errors import Refused
from onepass.paper.agreement import Interval, paired
from onepass.report.gathered import APART, NETWORKS, Gathered, Group, Run, differing, gather, top
from onepass.terminal import table

ENVIRONMENT = ("commit", "onepass", "torch", "numpy", "python", "device", "precision", "threads")
TIMED = ("device", "precision", "threads")  # with another of these, seconds are not comparable
SHARES = {  # of a summary, in percent
    "accuracy": "accuracy",
    **{f"accuracy_{which}": f"accuracy, {which}" for which in NETWORKS},
    "anytime": "anytime",
    "backward_transfer": "backward transfer",
    "forgetting": "forgetting",
    "recency": "recency",
}


@dataclass(frozen=True, eq=False)
class Measure:
    """A number of a run, and how it is written."""

    name: str
    of: Callable[[Run], float]
    digits: int = 1


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two groups, the seeds by which they are paired, and what a reader has to know."""

    a: Group
    b: Group
    seeds: tuple[int, ...]  # that both have on the same stream; none: nothing is paired
    notes: tuple[str, ...]

    def text(self) -> str:
        """For the terminal."""
        parts = [f"A  {_called(self.a)}\nB  {_called(self.b)}"]
        fields = differing([self.a.config, self.b.config])
        parts.append(_two("config", {f: (self.a.config.get(f, ""), self.b.config.get(f, "")) for f in fields}))
        differ = {key: (_env(self.a, key), _env(self.b, key)) for key in ENVIRONMENT}
        parts.append(_two("environment", {key: both for key, both in differ.items() if both[0] != both[1]}))
        parts.append(self._results())
        return "\n\n".join([*parts, "\n".join(self.notes)])

    def _results(self) -> str:
        single = len(self.a.runs) == len(self.b.runs) == 1
        pairs = len(self.seeds) > 1
        rows = [["results", "A", "B", "B - A"] if single else ["results", "A", "std", "B", "std", "B - A"]]
        rows[0] += ["95 % interval"] if pairs else []
        for measure in _measures(self.a, self.b):
            a, b = ({run.seed: measure.of(run) for run in group.runs} for group in (self.a, self.b))
            a, b = ({seed: v for seed, v in values.items() if v == v} for values in (a, b))
            if not a and not b:
                continue
            (mean_a, std_a), (mean_b, std_b) = (metrics.mean_std([*values.values()]) for values in (a, b))
            said = [_written(v, measure.digits) for v in ((mean_a, mean_b) if single else (mean_a, std_a, mean_b, std_b))]
            apart = paired(b, a) if self.seeds else Interval(mean_b - mean_a, np.nan, np.nan, 0)
            row = [measure.name, *said, "" if apart is None else _written(apart.mean, measure.digits, "+")]
            if pairs:
                bounds = () if apart is None else (apart.low, apart.high)
                row.append(" to ".join(filter(None, (_written(bound, measure.digits, "+") for bound in bounds))))
            rows.append(row)
        return table(rows)


def compare(a: Path, b: Path) -> Comparison:
    """Read both, and pair them by seed where they can be."""
    one, two = _group(a), _group(b)
    notes: list[str] = []
    seeds = sorted({run.seed for run in one.runs} & {run.seed for run in two.runs})
    unlike = _unlike(one, two)
    if unlike:
        notes.append(f"They are not on the same stream: {', '.join(unlike)} differ. So no seed of A belongs to one of B.")
        seeds = []
    elif not seeds:
        notes.append("They share no seed, so nothing is paired: B - A is the difference of the means.")
    else:
        dropped = [
            f"seed {run.seed} of {name}" for name, group in (("A", one), ("B", two)) for run in group.runs if run.seed not in seeds
        ]
        one, two = (replace(group, runs=tuple(run for run in group.runs if run.seed in seeds)) for group in (one, two))
        if dropped:
            notes.append(f"Left out, for the other has no such seed: {', '.join(dropped)}.")
    notes.append(_how_sure(len(seeds), len(one.runs), len(two.runs)))
    if any(_env(one, key) != _env(two, key) for key in TIMED):
        notes.append("Seconds and images/s say nothing of the methods here: device, precision or threads differ.")
    return Comparison(one, two, tuple(seeds), tuple(notes))


def _how_sure(pairs: int, a: int, b: int) -> str:
    """What so many runs can tell, and no more."""
    if pairs > 1:
        return (
            f"Shares are in percent. {pairs} pairs by seed. The interval is Student's for the mean difference, a row for itself: "
            "one that holds 0 does not tell A from B."
        )
    if max(a, b) == 1:
        return "Shares are in percent. One run each: how much of a difference is chance, nobody can say. Run more seeds of both."
    return "Shares are in percent; std is that of the sample."


def _group(folder: Path) -> Group:
    """The runs of a folder, which must differ by their seed alone."""
    gathered = gather([folder])
    groups = gathered.groups
    if not groups:
        raise Refused(f"There is no finished run in `{folder}`{_why(gathered)}; `onepass runs` lists what there is.")
    if len(groups) > 1:
        names = ", ".join([g.label for g in groups[:4]] + ["..."] * (len(groups) > 4))
        raise Refused(
            f"`{folder}` holds runs of {len(groups)} configs ({names}), and one is compared with one; give a run, or a folder "
            "that holds the seeds of one config and nothing else."
        )
    return groups[0]


def _why(gathered: Gathered) -> str:
    return f" ({'; '.join(gathered.notes())})" if gathered.left_out else ""


def _unlike(a: Group, b: Group) -> list[str]:
    """In what their streams differ; the memory is no part of a stream."""
    fields = differing([{k: v for k, v in group.config.items() if top(k) in APART and k != "memory"} for group in (a, b)])
    data = {str(run.stream["data"]) for group in (a, b) for run in group.runs}
    return fields or (["the data's files"] if len(data) > 1 else [])


def _measures(a: Group, b: Group) -> Iterator[Measure]:
    for name, heading in SHARES.items():
        yield Measure(heading, _share(name))
    for task in range(max(run.matrix.shape[1] for group in (a, b) for run in group.runs)):
        yield Measure(f"task {task + 1}, at the end", _on_task(task))
    yield Measure("images/s", lambda run: run.speed, 0)
    yield Measure("seconds", lambda run: run.seconds)
    yield Measure("peak MiB", lambda run: run.peak, 0)


def _share(name: str) -> Callable[[Run], float]:
    return lambda run: 100 * run.number(name)


def _on_task(task: int) -> Callable[[Run], float]:
    return lambda run: 100 * float(run.matrix[-1, task]) if task < run.matrix.shape[1] else np.nan


def _env(group: Group, key: str) -> str:
    return ", ".join(sorted({str(run.env.get(key, "")) for run in group.runs}))


def _called(group: Group) -> str:
    paths = [str(run.path) for run in group.runs]
    seeds = ", ".join(str(run.seed) for run in group.runs)
    return paths[0] if len(paths) == 1 else f"{group.runs[0].path.parent}, {len(paths)} runs: seeds {seeds}"


def _two(what: str, rows: Mapping[str, tuple[str, str]]) -> str:
    return table([[what, "A", "B"], *([key, *both] for key, both in rows.items())], left=3) if rows else f"{what}: the same"


def _written(value: float, digits: int, sign: str = "") -> str:
    return "" if value != value else f"{value:{sign},.{digits}f}"
