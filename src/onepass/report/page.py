"""The page itself: what there is at a glance, then each setting in figures and tables, then where the numbers come from."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from textwrap import wrap

import numpy as np

from onepass import figures, metrics
from onepass.__about__ import __version__
from onepass.figures.style import plain
from onepass.report.gathered import NETWORKS, Flat, Gathered, Group, Run, Setting, Tell, differing, every_field
from onepass.report.html import Cell, Drawer, folded, number, table

NUMBERS = ("accuracy", "anytime", "backward_transfer", "forgetting", "recency")  # of a summary
HEADINGS = [name.replace("_", " ") for name in NUMBERS]
LINES, PANELS = 14, 6  # that one figure has room for


def page(gathered: Gathered, tell: Tell | None = None) -> str:
    """All of it, as one file of HTML."""
    runs, draw = gathered.runs, Drawer()
    seeds = sorted({run.seed for run in runs})
    name = f"onepass: {len(runs)} runs"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(name)}</title>",
        f"<style>\n{_file('page.css')}</style></head><body><main>",
        f"<h1>{escape(name)}</h1>",
        f'<p class="soft">{_number_of(gathered.groups, "config")}, {_number_of(gathered.settings, "setting")}, '
        f"{_number_of(seeds, 'seed')}. Written {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} by onepass {__version__}.</p>",
        _left_out(gathered),
        '<nav aria-label="Contents"><ul>',
        *(f'<li><a href="#setting-{i}">{escape(s.name)}</a></li>' for i, s in enumerate(gathered.settings, 1)),
        '<li><a href="#runs">Every run</a></li><li><a href="#origins">Where the numbers come from</a></li></ul></nav>',
        *_summary(gathered),
    ]
    for i, setting in enumerate(gathered.settings, 1):
        parts += [f'<section id="setting-{i}"><h2>{escape(setting.name)}</h2>', *_setting(setting, draw), "</section>"]
        if tell is not None:
            tell("drawn", i, len(gathered.settings))
    parts += ['<section id="runs"><h2>Every run</h2>', _runs(gathered), "</section>"]
    parts += ['<section id="origins"><h2>Where the numbers come from</h2>', *_origins(gathered), "</section>"]
    return "\n".join([*parts, f"</main><script>\n{_file('page.js')}</script></body></html>\n"])


def _file(name: str) -> str:
    return files("onepass.report").joinpath(name).read_text("utf-8")


def _number_of(things: Sequence[object], what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


def _left_out(gathered: Gathered) -> str:
    if not gathered.left_out:
        return ""
    notes = [
        folded(note, "<br>".join(f"<code>{escape(str(path))}</code>" for path in paths))
        for note, paths in zip(gathered.notes(), gathered.left_out.values(), strict=True)
    ]
    return f'<div class="left-out"><p>Not on this page:</p>{"".join(notes)}</div>'


# -- at a glance ---------------------------------------------------------------------------------------------------


def _mean(group: Group, measure: Callable[[Run], float], digits: int = 1) -> Cell:
    mean, std = metrics.mean_std(group.over_seeds(measure))
    return number(mean, digits, std=std)


def _percent_of(name: str) -> Callable[[Run], float]:
    return lambda run: 100 * run.number(name)


def _summary(gathered: Gathered) -> Iterator[str]:
    several = len(gathered.settings) > 1
    heading = ["method", *HEADINGS, "seeds", "images/s", "seconds", *(["setting"] if several else [])]
    rows = [
        [
            Cell(group.label),
            *(_mean(group, _percent_of(name)) for name in NUMBERS),
            number(len(group.runs), 0),
            _mean(group, lambda run: run.speed, 0),
            _mean(group, lambda run: run.seconds),
            *([Cell(setting.name, kind="wraps")] if several else []),
        ]
        for setting in gathered.settings
        for group in setting.groups
    ]
    yield "<h2>By method</h2>"
    yield table("Results by method, over seeds", heading, rows, sorts=True)
    yield (
        '<p class="soft">Mean over seeds ± standard deviation of the sample; one seed has none. Shares are in percent, at the end '
        "of the stream, by the network that predicts. Recency: how many of the older tasks' test images are taken for a class of "
        "the last task. Click on a heading to sort.</p>"
    )


def _runs(gathered: Gathered) -> str:
    rows = [
        [
            Cell(group.label),
            number(run.seed, 0),
            *(number(100 * run.number(name)) for name in NUMBERS),
            *(number(100 * run.number(f"accuracy_{which}")) for which in NETWORKS),
            number(run.speed, 0),
            number(run.seconds),
            number(run.peak, 0),
            Cell(setting.name, kind="wraps"),
        ]
        for setting in gathered.settings
        for group in setting.groups
        for run in group.runs
    ]
    heading = ["method", "seed", *HEADINGS, *NETWORKS, "images/s", "seconds", "peak MiB", "setting"]
    return table("Results of every run", heading, rows, sorts=True)


# -- a setting -----------------------------------------------------------------------------------------------------


def _setting(setting: Setting, draw: Drawer) -> Iterator[str]:
    groups, ends = setting.groups, setting.groups[0].runs[0].stream["task_ends"]
    yield "<h3>Accuracy along the stream</h3>"
    for some in _parts(groups, LINES):
        curves = {_plain(g.label): [figures.Curve(*run.curve) for run in g.runs] for g in some}
        yield draw(figures.along_the_stream(curves, ends, ""), "Accuracy along the stream")
    yield from _networks(groups, ends, draw)
    yield from _tasks(groups)
    yield from _confusion(groups, draw)
    yield from _recency(groups, ends, draw)
    yield from _drift(groups, ends, draw)
    yield from _time(groups)
    yield from _configs(groups)


def _parts(groups: Sequence[Group], most: int) -> Iterator[Sequence[Group]]:
    """As many figures as it takes."""
    return (groups[i : i + most] for i in range(0, len(groups), most))


def _plain(text: str) -> str:
    """A name as matplotlib is to write it, in lines that a legend has room for."""
    return plain("\n".join(wrap(text, 34)))


def _networks(groups: Sequence[Group], ends: Sequence[int], draw: Drawer) -> Iterator[str]:
    groups = [group for group in groups if len(group.runs[0].networks) > 1]
    if not groups:
        return
    yield "<h3>Student, teacher and average</h3>"
    yield '<p class="soft">Three networks of one training, on the tasks so far; the mean over seeds.</p>'
    for some in _parts(groups, PANELS):
        panels = {
            _plain(g.label): {
                which: figures.Curve(g.runs[0].ends, _mean_of([r.networks[which] for r in g.runs])) for which in g.runs[0].networks
            }
            for g in some
        }
        yield draw(figures.networks(panels, ends, ""), "Accuracy of student, teacher and average at the ends of tasks")
    heading = ["method", *NETWORKS, "teacher − student", "average − student", "predicts"]
    rows = [
        [
            Cell(group.label),
            *(_mean(group, _percent_of(f"accuracy_{which}")) for which in NETWORKS),
            *(_mean(group, _less_student(which)) for which in NETWORKS[1:]),
            Cell(group.config["infer"]),
        ]
        for group in groups
    ]
    yield table("Final accuracy of student, teacher and average in percent", heading, rows, sorts=True)


def _less_student(which: str) -> Callable[[Run], float]:
    return lambda run: 100 * (run.number(f"accuracy_{which}") - run.number("accuracy_student"))


def _mean_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over seeds of those arrays that are of the first one's shape."""
    return np.mean([array for array in arrays if array.shape == arrays[0].shape], axis=0)


def _tasks(groups: Sequence[Group]) -> Iterator[str]:
    yield "<h3>Accuracy on each task</h3>"
    yield '<p class="soft">In percent, the mean over seeds. Row: after this task. Column: on that one.</p>'
    yield '<div class="side">'
    for group in groups:
        matrix = _mean_of([run.matrix for run in group.runs])
        rows = [
            [Cell(f"after {t + 1}"), *(Cell(_percent(v), float(v), share=float(v) if v == v else 0.0) for v in row)]
            for t, row in enumerate(matrix)
        ]
        shown = table(
            f"Accuracy of {group.label} on each task", ["", *map(str, range(1, matrix.shape[1] + 1))], rows, kind="matrix"
        )
        yield f"<div><p><b>{escape(group.label)}</b></p>{shown}</div>"
    yield "</div>"


def _percent(value: float) -> str:
    return "" if value != value else f"{100 * value:.0f}"


def _confusion(groups: Sequence[Group], draw: Drawer) -> Iterator[str]:
    seed = min(Counter(run.seed for group in groups for run in group.runs).items(), key=lambda item: (-item[1], item[0]))[0]
    there = {group.label: run for group in groups for run in group.runs if run.seed == seed}
    yield "<h3>Confusion</h3>"
    without = [group.label for group in groups if group.label not in there]
    more = f" Not run with it: {escape(', '.join(without))}." if without else ""
    yield f'<p class="soft">At the end, seed {seed}; classes in the order in which they came, lines between tasks.{more}</p>'
    shown = [group for group in groups if group.label in there]
    for some in _parts(shown, 2 * 4):
        stream = there[some[0].label].stream
        matrices = {_plain(group.label): there[group.label].confusion for group in some}
        yield draw(
            figures.confusions(matrices, stream["names"], stream["tasks"], "", columns=min(3, len(some))), "Confusion matrices"
        )


def _recency(groups: Sequence[Group], ends: Sequence[int], draw: Drawer) -> Iterator[str]:
    groups = [group for group in groups if len(group.runs[0].ends) > 1]
    if not groups:
        return
    yield "<h3>Recency</h3>"
    yield (
        '<p class="soft">How many of the older tasks\' test images, in percent, are taken for a class of the newest task, at the '
        "end of each. Near 100, the network knows the newest task alone.</p>"
    )
    for some in _parts(groups, LINES):
        curves = {_plain(g.label): [figures.Curve(run.ends[1:], run.recency[1:]) for run in g.runs] for g in some}
        yield draw(figures.along_the_stream(curves, ends, "", "taken for the newest task (%)"), "Recency at the ends of tasks")


def _drift(groups: Sequence[Group], ends: Sequence[int], draw: Drawer) -> Iterator[str]:
    there = [(group, run) for group in groups if (run := next((run for run in group.runs if run.drift), None))]
    if not there:
        return
    yield "<h3>Feature drift</h3>"
    yield (
        '<p class="soft">How far one update moves the features of what is remembered of past tasks; one seed of each. Each has a '
        "scale of its own.</p>"
    )
    for i in range(0, len(there), PANELS):
        panels = {
            _plain(f"{group.label}, seed {run.seed}"): {which: figures.Drift(*of) for which, of in run.drift.items()}
            for group, run in there[i : i + PANELS]
        }
        yield draw(figures.drifts(panels, ends, ""), "Feature drift along the stream")


def _time(groups: Sequence[Group]) -> Iterator[str]:
    parts = ("train", "probe", "save")
    longest = max(_seconds(group, "total") for group in groups)
    yield "<h3>Time and memory</h3>"
    yield (
        '<p class="soft key">Seconds of a run, the mean over seeds.'
        + "".join(f'<i class="k{i}"></i>{part}' for i, part in enumerate(parts))
        + ". Compare only what ran on the same device with the same threads, one beside as many others.</p>"
    )
    rows = [
        [
            Cell(group.label),
            *(number(_seconds(group, part), 1) for part in ("total", *parts)),
            _mean(group, lambda run: run.speed, 0),
            _mean(group, lambda run: run.peak, 0),
            Cell(", ".join(sorted({str(run.env.get("device", "")) for run in group.runs}))),
            Cell(", ".join(sorted({str(run.env.get("threads", "")) for run in group.runs}))),
        ]
        for group in groups
    ]
    heading = ["method", "seconds", *parts, "images/s", "peak MiB", "device", "threads"]
    yield table("Time and memory", heading, rows, sorts=True)
    for group in groups:
        bar = "".join(
            f'<i class="k{i}" style="width:{100 * _seconds(group, p) / max(longest, 1e-9):.1f}%"></i>' for i, p in enumerate(parts)
        )
        yield f'<div class="timed"><span>{escape(group.label)}</span><div class="bar" aria-hidden="true">{bar}</div></div>'


def _seconds(group: Group, part: str) -> float:
    values = group.over_seeds(lambda run: run.seconds if part == "total" else float(run.done["seconds_of"].get(part, np.nan)))
    return metrics.mean_std(values)[0] if values else 0.0


def _configs(groups: Sequence[Group]) -> Iterator[str]:
    configs = {group.label: group.config for group in groups}
    fields = [field for field in differing([*configs.values()]) if field != "name"]
    yield "<h3>Configs</h3>"
    if fields:
        yield '<p class="soft">The fields in which they differ; marked is what is not as in most.</p>'
        yield _fields_table("Fields that differ", configs, fields)
    elif len(groups) > 1:
        yield '<p class="soft">They differ in no field.</p>'
    every = every_field([*configs.values()])
    yield folded(f"all {len(every)} fields", _fields_table("All fields", configs, every))


def _fields_table(label: str, configs: Mapping[str, Flat], fields: Sequence[str]) -> str:
    rows: list[list[Cell]] = []
    for field in fields:
        values = [config.get(field) for config in configs.values()]
        (usual, most), (_, second) = [*Counter(v for v in values if v is not None).most_common(2), (None, 0)][:2]
        kinds = ["differs" if v is not None and (v != usual or most == second) else "" for v in values]
        rows.append([Cell(field), *(Cell("" if v is None else v, kind=kind) for v, kind in zip(values, kinds, strict=True))])
    return table(label, ["field", *configs], rows)


# -- where the numbers come from -----------------------------------------------------------------------------------

BORN = ("commit", "onepass", "torch", "python", "device", "precision", "threads", "began")


def _origins(gathered: Gathered) -> Iterator[str]:
    commands = Counter(str(run.env.get("command", "")) for run in gathered.runs)
    yield '<p class="soft">Each command, and how many of these runs it made; then each run with all that its folder says of it.</p>'
    rows = [[number(times, 0), Cell(command, kind="command")] for command, times in commands.most_common()]
    yield table("Commands", ["runs", "command"], rows)
    rows = [
        [
            Cell(str(run.path), kind="path"),
            Cell(group.label),
            number(run.seed, 0),
            *(Cell("" if (value := run.env.get(key)) is None else str(value)) for key in BORN),
            Cell(str(run.done["ended"])),
            number(len(run.env.get("resumed", [])), 0),
            Cell(run.stream["data"][:12]),
            Cell(str(run.env.get("command", "")), kind="command"),
        ]
        for group in gathered.groups
        for run in group.runs
    ]
    heading = ["folder", "method", "seed", *BORN, "ended", "resumed", "data", "command"]
    yield folded(f"all {_number_of(gathered.runs, 'run')}", table("Birth certificates", heading, rows, sorts=True))
