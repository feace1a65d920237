"""What a person sees in a terminal: live progress, tables of results, lists of fields."""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from onepass import metrics
from onepass.config import FAMILIES, Config, leaves, text_of
from onepass.engine import Outcome
from onepass.errors import Refused
from onepass.loop import Interrupted, Progress
from onepass.record import Record


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns side by side; the first row is the heading, the first columns are to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join([lines[0].rstrip(), "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])])


# -- while it runs -------------------------------------------------------------------------------------------------


MANY = 24  # runs that a screen has room for


class Live:
    """Progress of several runs: a table that renews itself on a terminal, a line every few seconds elsewhere."""

    def __init__(self, configs: Sequence[Config]):
        self.configs = configs
        self.state: dict[int, Progress | Outcome] = {}
        self.heard: dict[int, deque[tuple[float, int]]] = {}  # wall clock and images, of the last minute
        self._live: Any = None
        self._headed = False
        self._last = time.monotonic()

    def __enter__(self) -> "Live":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live as RichLive

            self._live = RichLive(self._table(), console=Console(stderr=True), refresh_per_second=4, get_renderable=self._table)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, i: int, event: Progress | Outcome) -> None:
        if isinstance(event, Progress):
            heard = self.heard.setdefault(i, deque())
            heard.append((time.monotonic(), event.samples))
            while len(heard) > 2 and heard[0][0] < heard[-1][0] - 60:
                heard.popleft()
        ended = not isinstance(event, Progress)
        self.state[i] = event
        if isinstance(event, Refused) and i not in self.heard:
            return  # it never began: why, is said at the end, in one line
        if self._live is None and not self._headed:
            self._headed = True
            print(self._about(), file=sys.stderr, flush=True)
        if self._live is None and (ended or time.monotonic() - self._last > 5):
            self._last = time.monotonic()
            shown = [i] if ended else [j for j, s in self.state.items() if isinstance(s, Progress)]
            for j in shown:
                print("  ".join((self._name(j), *(c for c in self._cells(j) if c))), file=sys.stderr, flush=True)

    def _about(self) -> str:
        names = [self._name(i) for i in range(len(self.configs))]
        shown = names if len(names) <= MANY else [*names[:MANY], "..."]
        return f"{counted(len(names), 'run')}: {', '.join(shown)}"

    def _name(self, i: int) -> str:
        return f"{self.configs[i].title} seed {self.configs[i].seed}"

    def _cells(self, i: int) -> tuple[str, str, str, str]:
        """Progress, speed, time left, accuracy so far."""
        state = self.state.get(i)
        if state is None:
            return "waiting", "", "", ""
        if isinstance(state, Record):
            done = state.done or {}
            return "done", f"{done['images_per_second']:.0f} images/s", "", f"{100 * state.summary['accuracy']:.1f} %"
        if not isinstance(state, Progress):
            return ("stopped" if isinstance(state, Interrupted) else "failed"), "", "", ""
        wall, first = self.heard[i][0]
        rate = (state.samples - first) / max(time.monotonic() - wall, 1e-9)
        left = f"{duration((state.total - state.samples) / rate)} left" if state.samples > first else ""
        accuracy = "" if state.accuracy is None else f"{100 * state.accuracy:.1f} %"
        return f"{state.samples}/{state.total} images", f"{rate:.0f} images/s", left, accuracy

    def _table(self) -> Any:
        from rich.table import Table

        shown = Table(box=None, pad_edge=False, header_style="bold")
        for heading in "run", "progress", "speed", "time", "accuracy so far":
            shown.add_column(heading, justify="left" if heading == "run" else "right")
        rows = range(len(self.configs))
        if len(rows) > MANY:  # more than fit a screen: those under way, and how many are over
            over = sum(not isinstance(state, Progress) for state in self.state.values())
            rows = [i for i in rows if isinstance(self.state.get(i), Progress)]
            shown.add_row(f"{len(self.configs)} runs", f"{over} over", "", "", "")
        for i in rows:
            shown.add_row(self._name(i), *self._cells(i))
        return shown


def counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# -- at the end ----------------------------------------------------------------------------------------------------


def results(configs: Sequence[Config], outcomes: Sequence[Outcome], root: Path) -> int:
    """Print what became of the runs: the table, the paths, the figures, then what went wrong.  Gives the exit code."""
    by_title: dict[str, list[Record]] = {}
    for config, outcome in zip(configs, outcomes, strict=True):
        if isinstance(outcome, Record):
            by_title.setdefault(config.title, []).append(outcome)
    if by_title:
        print(summary_table(by_title))
        print()
        for group in by_title.values():
            for record in group:
                print(record.path)
        try:
            for path in draw(configs[0], by_title, root):
                print(path)
        except OSError as error:
            raise Refused(f"The figures could not be written ({error}); the runs are whole.") from error
    return ended(outcomes)


def ended(outcomes: Sequence[Outcome]) -> int:
    """Say what went wrong, if anything did, and give the exit code."""
    failed = [o for o in outcomes if isinstance(o, Refused)]
    stopped = [o for o in outcomes if isinstance(o, Interrupted)]
    for line in dict.fromkeys(" ".join(str(error).split()) for error in failed):  # each mistake once
        print(f"onepass: {line}", file=sys.stderr)
    if stopped:
        print(
            f"onepass: {counted(len(stopped), 'run')} stopped and saved; the same command goes on from there.",
            file=sys.stderr,
        )
        return 130
    return 2 if failed else 0


def summary_table(by_title: Mapping[str, Sequence[Record]]) -> str:
    """One row a method: final average accuracy and backward transfer in percent, speed, seconds of a run."""
    rows = [["method", "accuracy", "std", "backward transfer", "images/s", "seconds", "seeds"]]
    for title, group in by_title.items():
        done = [record.done or {} for record in group]
        accuracy, std = metrics.mean_std([100 * r.summary["accuracy"] for r in group])
        transfer, _ = metrics.mean_std([100 * r.summary["backward_transfer"] for r in group])
        speed, _ = metrics.mean_std([d["images_per_second"] for d in done])
        seconds, _ = metrics.mean_std([d["seconds"] for d in done])
        cells = [_number(accuracy), _number(std), _number(transfer), f"{speed:.0f}", _number(seconds), str(len(done))]
        rows.append([title, *cells])
    return table(rows)


def _number(value: float) -> str:
    return "" if value != value else f"{value:.1f}"


def draw(config: Config, by_title: Mapping[str, Sequence[Record]], root: Path) -> list[Path]:
    """Accuracy along the stream of each method, and their confusion matrices side by side."""
    from onepass import figures
    from onepass.figures.style import plain

    by_title = {t: kept for t, group in by_title.items() if (kept := [r for r in group if r.results.latest() is not None])}
    if not by_title:
        return []
    first = next(iter(by_title.values()))[0]
    stream = first.results.stream
    setting = config.folder.parts[0]
    stem = root / setting / "figures" / f"m{config.memory}-{'-'.join(by_title)}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    about = plain(f"{config.data.name}, {type(config.stream).__name__.lower()}, memory {config.memory}")
    curves = {plain(title): [figures.Curve(*r.results.curve()) for r in group] for title, group in by_title.items()}
    along = figures.along_the_stream(curves, stream["task_ends"], about)
    seed = first.seed
    matrices = {plain(title): group[0].results.confusion() for title, group in by_title.items()}
    confused = figures.confusions(matrices, stream["names"], stream["tasks"], f"{about}, seed {seed}")
    paths = figures.save(along, stem.with_name(f"{stem.name}-accuracy"))
    return paths + figures.save(confused, stem.with_name(f"{stem.name}-confusion"))


def listing(found: Sequence[Record]) -> str:
    """Runs with their state and size."""
    if not found:
        return "no runs"
    rows = [["run", "accuracy", "state", "MiB"]]
    for record in found:
        try:
            state = "unfinished" if record.done is None else "done"
            accuracy = "" if record.done is None else _number(100 * record.summary["accuracy"])
        except ValueError:
            state, accuracy = "damaged", ""
        rows.append([str(record.path), accuracy, state, f"{record.bytes / 2**20:.1f}"])
    total = sum(record.bytes for record in found) / 2**20
    return f"{table(rows)}\n\n{len(found)} runs, {total:.1f} MiB"


# -- before it runs ------------------------------------------------------------------------------------------------


def fields_help(config: Config) -> str:
    """Every field of a config as a flag, with its type and its value."""
    rows = [["flag", "type", "value"]]
    for path, hint, _, value in leaves(config):
        shown = type(value).__name__ if is_dataclass(value) else text_of(value)
        rows.append([f"--{path.replace('_', '-')}", _kind(hint), shown])
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"  {a.ljust(widths[0])}  {b.ljust(widths[1])}  {c}".rstrip() for a, b, c in rows)


def explain(plans: Sequence[tuple[Config, Mapping[str, str]]], root: Path) -> str:
    """Each config's values and where they come from: a flag, the --config file, the recipe, or the default."""
    parts: list[str] = []
    for config, sources in plans:
        rows = [["field", "value", "from"]]
        for path, _, field, value in leaves(config):
            default = field.default is not MISSING and value == field.default
            above = [path[:i] for i in range(len(path) + 1) if path[:i] in sources and (path + ".")[i] == "."]
            source = sources[above[-1]] if above else "default" if default else "recipe"
            rows.append([path, type(value).__name__ if is_dataclass(value) else text_of(value), source])
        parts.append(f"{config.title}, seed {config.seed} -> {root / config.folder}\n\n{table(rows)}")
    return (
        "\n\n".join(parts) + "\n\nA flag comes before the --config file, the file before the recipe, the recipe before the default."
    )


def _kind(hint: Any) -> str:
    """A type as a person would say it: the choices where there are any."""
    args = [a for a in get_args(hint) if a is not type(None)]
    if get_origin(hint) is Literal:
        return "|".join(str(a) for a in args)
    if get_origin(hint) is tuple:
        return ",".join(_kind(a) for a in args if a is not Ellipsis) + (",..." if args[-1] is Ellipsis else "")
    if args:
        return "|".join(_kind(a) for a in args) + ("|none" if len(args) < len(get_args(hint)) else "")
    if hint in FAMILIES:
        return "|".join(k.__name__ for k in FAMILIES[hint])
    return getattr(hint, "__name__", str(hint))
