"""`onepass paper`: the paper's tables and figures from the runs that exist, and the runs that they still need."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.commands import add_engine
from onepass.errors import Refused, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onepass.commands import Commands
    from onepass.config import Config
    from onepass.engine import Engine
    from onepass.paper.ask import Part
    from onepass.paper.found import Found

PAPER = """\
The tables and figures of the paper, and some of our own, each beside what was published.

`onepass paper list` has their names and labels, how many runs each needs, and how many are there.
Without --run, what exists is shown, and cells that were not run are blank.  With it, the command first says what is missing
and what that will cost, and then runs it; stopped at any moment, the same command goes on.

  onepass paper tab_clear --where data=cifar100 memory=5000 method=er,er+mkd --run
  onepass paper all --scale smoke --run --out results    every table and figure on digits, in minutes, and a page of them
"""
FORMATS = ("terminal", "markdown", "latex", "csv")
KINDS = ("svg", "png", "pdf")
FIGURES = ["svg", "png"]


def add(commands: "Commands") -> None:
    paper = commands.add_parser(
        "paper", help="the paper's tables and figures", description=PAPER, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    paper.add_argument("what", nargs="+", metavar="WHAT", help="list, all, or names (tab_clear) or labels (tab:ablation)")
    paper.add_argument(
        "--where", nargs="+", default=[], metavar="KEY=VALUE,...", help="only these cells, e.g. method=er,er+mkd seed=0"
    )
    paper.add_argument("--run", action="store_true", help="run what is missing; the cost is said first")
    paper.add_argument("--scale", default="full", metavar="NAME", help="full (the paper), small (width 20) or smoke (digits)")
    paper.add_argument("--recipe", default="default", metavar="NAME", help="default (the paper's text) or published (its code)")
    paper.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where records are (default: runs)")
    paper.add_argument(
        "--out", type=Path, metavar="DIR", help="write tables (.md, .tex, .csv), figures and a page of all, index.md, here"
    )
    paper.add_argument("--figures", nargs="+", default=FIGURES, metavar="KIND", help="svg, png, pdf (default: svg png)")
    paper.add_argument("--format", default="terminal", metavar="NAME", help=f"of printed tables: {', '.join(FORMATS)}")
    add_engine(paper)
    paper.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cpu)")
    paper.add_argument("--data-dir", type=Path, metavar="DIR", help="where data lies (default: $ONEPASS_DATA, the user's cache)")
    paper.set_defaults(do=do)


def do(known: argparse.Namespace) -> int:
    from onepass.cluster import engine
    from onepass.paper.ask import asked_of_all, look, parsed, parts, wanting
    from onepass.paper.item import FAMILIES, SCALES

    for name, value, there in (
        ("scale", known.scale, SCALES),
        ("recipe", known.recipe, FAMILIES),
        ("format", known.format, FORMATS),
    ):
        if value not in there:
            raise unknown(name, value, there)
    for kind in known.figures:
        if kind not in KINDS:
            raise unknown("kind of figure", kind, KINDS)
    where = engine(known.engine, workers=known.workers, address=known.address, store=known.store)
    listed = known.what == ["list"]
    asked = parts(["all"] if listed else known.what, parsed(known.where), known.scale, known.recipe)
    found = look(asked, known.runs, known.scale, known.recipe, known.data_dir)
    if listed:
        print(_listing(asked, found, known))
        return 0
    code = 0
    if known.run:
        configs = wanting(found, known.scale, known.device)
        if configs:
            code = _run(asked_of_all(configs, known.scale, known.recipe), where, known)
            found = look(asked, known.runs, known.scale, known.recipe, known.data_dir)
        else:
            print("onepass: every run is there.", file=sys.stderr)
    if code != 130:
        _show(asked, found, known)
    return code


def _run(configs: "list[Config]", where: "Engine", known: argparse.Namespace) -> int:
    """Say what it will cost, then do it."""
    from onepass.commands.run import gather
    from onepass.paper.cost import Pace, wall
    from onepass.pool import sweep
    from onepass.terminal import Live, counted, duration, ended

    gather(configs, known)
    pace, workers = Pace(), _workers(len(configs), known)
    pace.measure(configs, 10.0, workers)
    seconds, alone = wall(configs, pace, workers, known.runs), "" if known.engine == "local" else " alone"
    print(
        f"onepass: {counted(len(configs), 'run')} to do: about {duration(seconds or 0)} on this machine{alone}, {workers} side by "
        "side, by a measurement of ten seconds.",
        file=sys.stderr,
        flush=True,
    )
    with Live(configs) as live:
        outcomes = sweep(configs, known.runs, data_dir=known.data_dir, tell=live.tell, engine=where)
    return ended(outcomes)


def _workers(runs: int, known: argparse.Namespace) -> int:
    """How many runs go side by side, as `pool.Processes` has it."""
    from onepass.data.cache import available_cores

    return min(known.workers or (available_cores() if known.device == "cpu" else 1), max(runs, 1))


def _listing(asked: "Sequence[Part]", found: "Sequence[Found]", known: argparse.Namespace) -> str:
    """Each label: what it shows, its runs, and what those that are not there would cost here."""
    from onepass.paper.ask import wanting
    from onepass.paper.cost import Pace, wall
    from onepass.terminal import duration, table

    pace = Pace()
    missing = [[*wanting([part], known.scale, known.device).values()] for part in found]
    every = [*wanting(found, known.scale, known.device).values()]
    workers = _workers(len(every), known)
    if new := [config for config in every if not pace.knows(config, workers)]:
        print("onepass: measuring this machine, once, for about ten seconds", file=sys.stderr, flush=True)
        pace.measure(new, 10.0, workers)
    rows = [["name", "label", "shows", "runs", "there", "cost left here"]]
    for part, there, configs in zip(asked, found, missing, strict=True):
        seconds = wall(configs, pace, workers, known.runs)
        runs = str(len(part.cells)), str(len(there.runs))
        rows.append([part.item.name, part.label, part.shows, *runs, "" if seconds is None else duration(seconds)])
    needed, there = (len({cell.config.folder for cell in cells}) for cells in (
        [cell for part in asked for cell in part.cells],
        [run.cell for part in found for run in part.runs],
    ))  # fmt: skip
    seconds = wall(every, pace, workers, known.runs)
    rows.append(["all", "", "each run once", str(needed), str(there), "" if seconds is None else duration(seconds)])
    return table(rows, left=3)


def _show(asked: "Sequence[Part]", found: "Sequence[Found]", known: argparse.Namespace) -> None:
    """Print the tables, draw the figures, and say where they are."""
    from onepass.paper.page import Entry, page
    from onepass.paper.table import ENDINGS, Table

    entries: list[Entry] = []
    out = known.out or known.runs / "paper" / f"{known.scale}-{known.recipe}"
    for part, there in zip(asked, found, strict=True):
        if part.cells and not there.runs and part.item.name.startswith("fig_"):
            print(f"{part.label}: nothing to draw; {'; '.join(there.notes)}")
            entries.append(Entry(part.label, part.shows, there, ()))
            continue
        drawn = part.item.render(there)
        if isinstance(drawn, Table):
            print(drawn.text(known.format) + "\n")
            if known.out:
                for form in FORMATS[1:]:
                    _write(out / f"{drawn.stem}.{ENDINGS[form]}", drawn.text(form))
            entries.append(Entry(part.label, part.shows, there, drawn))
            continue
        from onepass.figures import save

        files = [save(figure, out / stem, known.figures) for stem, figure in drawn]
        about = there.notes if part.cells else ["drawn from the data alone"]
        print(f"{part.label}: {', '.join(str(path) for paths in files for path in paths)}; {'; '.join(about)}")
        shown = [next((path for path in paths if path.suffix != ".pdf"), paths[0]) for paths in files]
        entries.append(Entry(part.label, part.shows, there, [path.name for path in shown]))
    if known.out:
        _write(out / "index.md", page(_again(known), known.scale, entries))


def _again(known: argparse.Namespace) -> str:
    """The command that makes the same page, and first the runs that it wants."""
    words = ["onepass", "paper", *known.what, "--scale", known.scale, "--recipe", known.recipe]
    words += ["--where", *known.where] if known.where else []
    words += ["--run", "--out", str(known.out)]
    return shlex.join([*words, "--figures", *known.figures] if known.figures != FIGURES else words)


def _write(path: Path, text: str) -> None:
    from onepass.record import aside

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        raise Refused(f"`{path}` could not be written ({error.strerror}); give another folder with `--out`.") from error
