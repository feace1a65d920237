"""A search: points of a space are tried, each as a run judged by held-out training images; killed at any moment, it goes on."""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from onepass.config import Config, to_json
from onepass.engine import AtWork, Engine, Outcome, Tell, drive
from onepass.errors import Refused, unknown
from onepass.files import locked, write_json
from onepass.loop import Interrupted, Progress, prepare
from onepass.pool import Processes
from onepass.probes import Predictions
from onepass.record import Busy, Diverged, Record, Recorder
from onepass.seeds import Seeds
from onepass.space import Dimension, Point, Range, Space, Value, grid

SAMPLERS = ("tpe", "grid")
FIRST = 5  # trials that are not stopped early: what the others are measured against

# -- what is asked, and what was found -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """What to search and how.  More `trials` are the same search, further on."""

    space: Space
    trials: int
    sampler: Literal["tpe", "grid"] = "tpe"
    early: bool = True  # stop those that do worse than half of the others at a quarter or at half of the stream

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise Refused(f"`--trials {self.trials}` would try nothing; take at least 1.")
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, SAMPLERS)
        if self.base.held_out is None:
            raise Refused("A search judges by held-out training images, and `held_out` is none; take `held_out=LastTenth()`.")
        if not any(isinstance(probe, Predictions) for probe in self.base.probes):
            raise Refused("A search judges by predictions, and `probes` has none; add `Predictions()`.")
        judge = next((n for n in self.space.dimensions if n.partition(".")[0] in ("held_out", "probes", "seed")), None)
        if judge is not None:
            raise Refused(f"`{judge}` is part of what judges, and all trials are judged alike; leave it out of the space.")
        if not any(isinstance(values, Range) or len(values) > 1 for values in self.space.dimensions.values()):
            raise Refused("The space has one point, and there is nothing to choose; give a field more than one value.")
        if self.sampler == "grid":
            _ = self.points

    @property
    def base(self) -> Config:
        return self.space.base

    @cached_property
    def points(self) -> list[Point]:
        """The grid's, in an order drawn from the seed: any number of the first are a fair sample of all."""
        points = grid(self.space)
        return [points[i] for i in Seeds(self.base.seed).numpy("search", "grid").permutation(len(points))]

    @property
    def count(self) -> int:
        return min(self.trials, len(self.points)) if self.sampler == "grid" else self.trials

    def to_json(self) -> dict[str, Any]:
        dimensions = {n: vars(v) if isinstance(v, Range) else list(v) for n, v in self.space.dimensions.items()}
        tree = {"space": type(self.space).__name__, "dimensions": dimensions, "sampler": self.sampler, "early": self.early}
        return tree | {"base": self.base.identity, "config": to_json(self.base)}

    @property
    def folder(self) -> Path:
        """Where it is kept, below the folder of all runs: by everything but the number of trials."""
        tree = {name: value for name, value in self.to_json().items() if name != "config"}
        return Path(f"{self.base.place}-search-{sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:8]}")


Became = Literal["done", "stopped", "failed", "open"]
STATES: dict[str, Became] = {"COMPLETE": "done", "PRUNED": "stopped", "FAIL": "failed", "RUNNING": "open", "WAITING": "open"}


@dataclass(frozen=True)
class Trial:
    """One point that was tried, and what came of it."""

    number: int
    point: Point
    state: Became
    accuracy: float | None  # at the end of the stream, or when last measured
    seen: int | None  # images, when it was stopped
    why: str = ""


@dataclass(frozen=True)
class Findings:
    """What a search has found so far."""

    trials: tuple[Trial, ...]
    importance: Mapping[str, float]  # of each dimension, of all variance 1; empty where it cannot be said
    stopped: bool = False  # by Ctrl-C: the same search goes on

    @property
    def best(self) -> Trial | None:
        return next(iter(self.ranked), None) if any(t.state == "done" for t in self.trials) else None

    @property
    def ranked(self) -> list[Trial]:
        """Those that saw all first, by their accuracy; then those that were stopped, the later the better."""
        order = {"done": 0, "stopped": 1, "failed": 2, "open": 3}
        return sorted(self.trials, key=lambda t: (order[t.state], -(t.seen or 0), -(t.accuracy or 0.0), t.number))


# -- doing it ------------------------------------------------------------------------------------------------------


def search(
    plan: Search,
    root: Path | str = "runs",
    *,
    engine: Engine | None = None,
    data_dir: Path | None = None,
    begun: Callable[[int, Point], None] | None = None,
    tell: Tell | None = None,
) -> Findings:
    """Try so many points, each a run of its own; the same search again goes on where it is.

    `begun` hears of each trial and its point when it begins, `tell` of its progress and its end.
    """
    optuna, root, length = _optuna(), Path(root), check(plan, data_dir)
    folder = root / plan.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise Refused(f"`{folder}` cannot be written ({error.strerror}); give another folder with `--runs`.") from error
    with locked(folder / "lock", lambda: _busy(folder)):
        write_json(folder / "search.json", plan.to_json())
        study = _study(optuna, folder, quarter=-(-length // 4))
        state = _State(plan, optuna, study, root, begun or (lambda n, point: None), tell or (lambda n, event: None))
        stopped = False
        if state.left:
            where = engine or Processes()
            with where.open(root, state.hear, runs=state.left, device=plan.base.device, data_dir=data_dir) as at_work:
                state.at_work = at_work
                stopped = drive(at_work, lambda: state.more, state.begin)
            if state.error is not None:
                raise state.error
        return Findings(state.trials, _importance(optuna, study, plan.base.seed), stopped or state.over)


def check(plan: Search, data_dir: Path | None = None) -> int:
    """The images that each trial sees; what is wrong with them all is said here, before anything is written."""
    _optuna()
    stream = prepare(plan.base, data_dir)[0]
    plan.base.learner(stream.spec, sharp=stream.sharp)
    return len(stream)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise Refused("`onepass search` needs Optuna, which is not installed: `pip install 'onepass[optuna]'`.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _busy(folder: Path) -> None:
    raise Busy(f"`{folder}` is being searched by another process; wait for it, or stop it.")


class _Held:
    """Optuna's lock of its file, which nobody needs who has the folder's."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...


def _study(optuna: Any, folder: Path, quarter: int) -> Any:
    """Optuna's own log, a line of JSON for each thing that happened; one that was cut short by a power cut is left out."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    file = folder / "trials.jsonl"
    if file.is_file() and not (text := file.read_bytes()).endswith(b"\n"):
        with open(file, "r+b") as cut:
            cut.truncate(text.rfind(b"\n") + 1)
    mine: Any = _Held()
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(file), lock_obj=mine)),
        study_name="search",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=0),  # of nothing: all that is asked for was drawn before
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=quarter, reduction_factor=2),
    )


def _importance(optuna: Any, study: Any, seed: int) -> dict[str, float]:
    """What part of the variance of the accuracy is each dimension's, by fANOVA; none where there is no variance to speak of."""
    values = [t.value for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    if len(values) < 2 or len(set(values)) < 2:
        return {}
    try:
        found = optuna.importance.get_param_importances(study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=seed))
    except (ValueError, RuntimeError):
        return {}
    return {name: float(value) for name, value in found.items()}


class _State:
    """Where a search is.

    A trial is drawn first, then written down with its whole point in one line, then begun: killed at any moment, it is there
    with all its values, or it is not there.  What is drawn for trial n is a function of the seed, n, and the trials before it
    as far as they have ended.
    """

    at_work: AtWork

    def __init__(self, plan: Search, optuna: Any, study: Any, root: Path, begun: Callable[[int, Point], None], tell: Tell):
        self.plan, self.optuna, self.study, self.root, self._begun, self._tell = plan, optuna, study, root, begun, tell
        self.error: Refused | None = None
        self.over = False  # no more are begun
        self.open: dict[int, Any] = {}  # begun, and nothing has come of them yet
        self.under_way: set[int] = set()  # at work; a trial that was stopped is, for a moment, though nothing is open
        there = study.get_trials(deepcopy=False)
        self.drawn = len(there)
        self.broken = deque(t for t in there if not t.state.is_finished() and t.number < plan.count)
        self.runs: dict[str, int] = {}  # which trial a config is first tried by
        self.twins: dict[int, list[int]] = {}  # trials of the same config, which wait for the first
        for t in there:
            if t.state.is_finished() and (config := self._config(t)) is not None:
                self.runs.setdefault(config.identity, t.number)

    @property
    def left(self) -> int:
        return len(self.broken) + max(0, self.plan.count - self.drawn)

    @property
    def more(self) -> bool:
        return bool(self.under_way) or (self.left > 0 and not self.over)

    @property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(_read(t) for t in self.study.get_trials(deepcopy=False))

    def begin(self) -> None:
        """As many as the engine has room for."""
        while self.left and not self.over and len(self.under_way) < self.at_work.slots:
            self._begin(*self._next())

    def _next(self) -> tuple[Any, Point]:
        """The next trial and its point: one that was broken off, or a new one."""
        if self.broken:
            frozen: Any = self.broken.popleft()
            if frozen.state.name == "RUNNING":
                return self.optuna.trial.Trial(self.study, frozen._trial_id), frozen.user_attrs["point"]
        else:
            point = self.plan.points[self.drawn] if self.plan.sampler == "grid" else self._draw(self.drawn)
            self.study.enqueue_trial(dict(point), user_attrs={"point": dict(point)})
            self.drawn += 1
        trial = self.study.ask()
        return trial, trial.user_attrs["point"]

    def _draw(self, number: int) -> Point:
        """What TPE proposes, on a copy of the study in memory."""
        seed = int(Seeds(self.plan.base.seed).numpy("search", number).randint(2**31))
        copy = self.optuna.create_study(
            direction="maximize", sampler=self.optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        )
        copy.add_trials(self.study.get_trials(deepcopy=False))
        trial, point = copy.ask(), dict[str, Value]()
        for name, values in self.plan.space.dimensions.items():
            if self.plan.space.asks(name, point):
                point[name] = _suggested(trial, name, values)
        return point

    def _begin(self, trial: Any, point: Point) -> None:
        number = trial.number
        for name in point:
            _suggest(trial, name, self.plan.space.dimensions[name])
        self.open[number] = trial
        self._begun(number, point)
        try:
            config = self.plan.space.at(point)
        except ValueError as error:
            self._close(number, "FAIL", why=str(error))
            self._tell(number, Refused(str(error)))
            return
        first = self.runs.setdefault(config.identity, number)
        if first != number:
            if first in self.open:
                self.twins.setdefault(first, []).append(number)
            else:
                self._same(number, self.study.get_trials(deepcopy=False)[first])
            self._tell(number, Interrupted(f"as trial {first}"))
            return
        self.under_way.add(number)
        recorder = Recorder(self.root, config)
        if recorder.finished:
            self.hear(number, recorder.record)
        else:
            self.at_work.submit(number, config)

    def hear(self, number: int, event: Progress | Outcome) -> None:
        if isinstance(event, Progress):
            self._measured(number, event)
        else:
            self.under_way.discard(number)
            if isinstance(event, Record) and number in self.open:
                self._close(number, "COMPLETE", event.summary["accuracy"])
            elif isinstance(event, Diverged):
                self._close(number, "PRUNED", why=str(event))
            elif isinstance(event, Interrupted):
                self.over |= number in self.open  # asked for by somebody else
            elif isinstance(event, Refused):  # no fault of the point's; all that is open is taken up when it is mended
                self.error, self.over = self.error or event, True
                self.at_work.stop_all()
        self._tell(number, event)

    def _measured(self, number: int, progress: Progress) -> None:
        trial = self.open.get(number)
        if trial is None or progress.accuracy is None or progress.measured in self._steps(number):
            return
        trial.report(progress.accuracy, progress.measured)
        if self.plan.early and progress.samples < progress.total and trial.should_prune() and number >= FIRST:
            self._close(number, "PRUNED", why="in the worse half")
            self.at_work.stop(number)

    def _steps(self, number: int) -> Mapping[int, float]:
        return self.study.get_trials(deepcopy=False)[number].intermediate_values

    def _close(self, number: int, state: str, value: float | None = None, why: str = "") -> None:
        trial = self.open.pop(number, None)
        if trial is None:
            return
        if why:
            trial.set_user_attr("why", why)
        self.study.tell(number, value, state=self.optuna.trial.TrialState[state])
        for twin in self.twins.pop(number, []):
            self._same(twin, self.study.get_trials(deepcopy=False)[number])

    def _same(self, number: int, other: Any) -> None:
        """A trial of a config that was tried before: what came of it then."""
        for step, value in other.intermediate_values.items():
            if step not in self._steps(number):
                self.open[number].report(value, step)
        value = other.value if other.state.name == "COMPLETE" else None
        self._close(number, other.state.name, value, other.user_attrs.get("why", ""))

    def _config(self, trial: Any) -> Config | None:
        try:
            return self.plan.space.at(trial.user_attrs["point"])
        except ValueError:
            return None


def _suggest(trial: Any, name: str, values: Dimension) -> Any:
    if not isinstance(values, Range):
        return trial.suggest_categorical(name, values)
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _suggested(trial: Any, name: str, values: Dimension) -> Value:
    value = _suggest(trial, name, values)
    return values.near(value) if isinstance(values, Range) and not values.whole else value


def _read(trial: Any) -> Trial:
    state, steps = STATES[trial.state.name], trial.intermediate_values
    last = max(steps, default=None)
    accuracy = trial.value if state == "done" else None if last is None else steps[last]
    seen = None if state == "done" else last
    return Trial(trial.number, trial.user_attrs["point"], state, accuracy, seen, trial.user_attrs.get("why", ""))
