"""`onepass search`: find the recipe that learns best, judged by held-out training images."""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.commands import Parser, fields
from onepass.errors import Refused, unknown

if TYPE_CHECKING:
    from onepass.commands import Commands
    from onepass.config import Config
    from onepass.held_out import HeldOut
    from onepass.search import Findings, Search
    from onepass.space import Space

SEARCH = """\
Find the recipe that learns best, judged by held-out training images; test images have no say.

Each trial is a run of its own in --runs.  The same command again goes on where it is; with more --trials, further.
`onepass search alpha` searches alpha and lambda of er+mkd around the law; name other methods behind it.

  onepass search er+mkd --data cifar100 --memory 5000 --space optim.lr=log:1e-4:1e-1 teacher.alpha=log:1e-3:0.3

Every other flag is one of `onepass run`: what the trials have in common (--seeds takes one).
"""
TRIALS = 40


def add(commands: "Commands") -> None:
    search = commands.add_parser(
        "search", help="find the recipe that learns best", description=SEARCH, add_help=False, allow_abbrev=False,
        usage="onepass search METHOD [METHOD ...] --space FIELD=VALUES ... [flags]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    search.add_argument("-h", "--help", action="store_true", help="this")
    search.add_argument(
        "--space", nargs="+", metavar="FIELD=VALUES", help="log:LO:HI, lin:LO:HI or a,b,c; or by name: paper (its grid), alpha"
    )
    search.add_argument("--trials", metavar="N", help=f"points to try (default: {TRIALS}; of a grid, all)")
    search.add_argument("--sampler", default="tpe", metavar="NAME", help="tpe or grid (default: tpe)")
    search.add_argument(
        "--held-out", default="last-tenth", metavar="NAME", help="what judges: last-tenth or first-tasks:K (default: last-tenth)"
    )
    search.add_argument("--to-the-end", action="store_true", help="let every trial see the whole stream, however badly it does")
    search.add_argument("--explain", action="store_true", help="say what would be searched, and how")


def main(arguments: Sequence[str]) -> int:
    from onepass.commands import run

    words = list(takewhile(lambda a: not a.startswith("-"), arguments))
    top = Parser(prog="onepass")
    commands = top.add_subparsers(parser_class=Parser)
    add(commands)
    known, rest = commands.choices["search"].parse_known_args(arguments[len(words) :])
    if known.help:
        commands.choices["search"].print_help()
        return 0
    ours, flags = run.parser().parse_known_args(rest)
    if words[:1] == ["alpha"]:
        if known.space is not None:
            raise Refused("`onepass search alpha` has its space; leave out `--space`, or name a method: `onepass search er+mkd`.")
        words, known.space = words[1:] or ["er+mkd"], ["alpha"]
    plans = [_plan(word, known, ours, fields(flags)) for word in words or [None]]
    if known.explain:
        print("\n\n".join(_explained(plan, ours.runs) for plan in plans))
        return 0
    code = 0
    for plan, word in zip(plans, words or [None], strict=True):
        code = max(code, _searched(plan, word, rest, ours))
        if code == 130:  # stopped by Ctrl-C, and the others with it
            break
    return code


# -- what is asked -------------------------------------------------------------------------------------------------


def _plan(word: str | None, known: argparse.Namespace, ours: argparse.Namespace, flags: dict[str, str]) -> "Search":
    from dataclasses import replace

    from onepass.commands.run import plans
    from onepass.config import build
    from onepass.search import Search

    if word is None and ours.config is None:
        raise Refused("Nothing to search; name a method, e.g. `onepass search er+mkd --space optim.lr=log:1e-4:1e-1`.")
    if ours.seeds is not None and len(ours.seeds) > 1:
        raise Refused("A search judges all trials by one stream, that of one seed; give `--seeds` one number.")
    if known.trials is not None:
        build(int, known.trials, "trials")
    (planned,) = plans([] if word is None else [word], ours, flags)
    space = _space(known.space, replace(planned.config, held_out=_held_out(known.held_out)), ours.recipe or "default")
    trials = int(known.trials) if known.trials is not None else TRIALS if known.sampler != "grid" else sys.maxsize
    return Search(space, trials, known.sampler, early=not known.to_the_end)


def _held_out(text: str) -> "HeldOut":
    """A protocol of choosing by the name that the command line knows it by."""
    from onepass.config import build
    from onepass.held_out import FirstTasks, LastTenth

    name, colon, tasks = text.partition(":")
    if name == "last-tenth" and not colon:
        return LastTenth()
    if name == "first-tasks" and colon:
        return FirstTasks(build(int, tasks, "held-out first-tasks"))
    raise unknown("protocol of `--held-out`", text, ("last-tenth", "first-tasks:2"))


def _space(words: list[str] | None, base: "Config", family: Any) -> "Space":
    from onepass.paper.tab_hp import Grid
    from onepass.space import AroundTheLaw
    from onepass.space import fields as space_of

    if not words:
        raise Refused(
            "`--space` says what is searched, and it is missing; e.g. `--space optim.lr=log:1e-4:1e-1`, or `--space paper`."
        )
    named = [word for word in words if word in ("alpha", "paper")]
    if named and len(words) > 1:
        raise Refused(f"`{named[0]}` is a whole space; leave out what stands beside it, or list fields alone.")
    if named:
        return AroundTheLaw(base) if named == ["alpha"] else Grid(base, family)
    return space_of(base, words)


def _explained(plan: "Search", root: Path) -> str:
    from onepass.space import Range
    from onepass.terminal import explain, table

    rows = [["searched", "values"]]
    for name, values in plan.space.dimensions.items():
        scale = f"{'log' if values.log else 'lin'}, {values.low:g} to {values.high:g}" if isinstance(values, Range) else ""
        rows.append([name, scale or ", ".join(str(v) for v in values)] if not isinstance(values, Range) else [name, scale])
    about = f"{_many(plan.count)}, {plan.sampler} -> {root / plan.folder}"
    return f"{about}\n\n{table(rows, left=2)}\n\n{explain([(plan.base, {})], root)}"


def _many(trials: int) -> str:
    return f"{trials} trial{'s' * (trials != 1)}"


# -- doing it, and what was found ----------------------------------------------------------------------------------


def _searched(plan: "Search", word: str | None, rest: list[str], ours: argparse.Namespace) -> int:
    from onepass.cluster import engine
    from onepass.commands.run import gather
    from onepass.search import check, search
    from onepass.terminal import Live

    configs: list[Any] = []
    names: dict[int, str] = {}

    class Trials(Live):
        """Those that have begun; `configs` grows as they do."""

        def _about(self) -> str:
            return f"{plan.base.title}: {_many(plan.count)}, {plan.sampler}, in {ours.runs / plan.folder}"

        def _name(self, i: int) -> str:
            return names.get(i, f"trial {i}")

    def begun(number: int, point: Mapping[str, Any]) -> None:
        names[number] = f"trial {number}  {_point(point)}"
        configs.extend([None] * (number + 1 - len(configs)))

    where = engine(ours.engine, workers=ours.workers, address=ours.address, store=ours.store)
    gather([plan.base], ours)
    check(plan, ours.data_dir)
    with Trials(configs) as live:
        found = search(plan, ours.runs, engine=where, data_dir=ours.data_dir, begun=begun, tell=live.tell)
    if found.stopped:
        print("onepass: the search was stopped; the same command goes on where it is.", file=sys.stderr)
        return 130
    print(_table(plan, found))
    for line in dict.fromkeys(t.why for t in found.trials if t.state == "failed"):
        print(f"onepass: {' '.join(line.split())}", file=sys.stderr)
    if found.importance:
        from onepass import figures
        from onepass.figures.style import plain

        figure = figures.importance(found.importance, plain(f"{plan.base.title}: what mattered"), plain(_note(plan, found)))
        paths = figures.save(figure, ours.runs / plan.folder / "importance", ("svg", "png", "pdf"))
        print("\n" + "\n".join(str(path) for path in paths))
    else:
        print("\nno importance: it takes at least two trials to the end that are not equally accurate")
    if found.best is None:
        print("onepass: no trial came to the end; widen the space, or take `--to-the-end`.", file=sys.stderr)
        return 2
    print(f"\nbest: {_command(plan, word, rest, plan.space.at(found.best.point), ours.runs)}")
    return 0


def _point(point: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {_text(value)}" for name, value in point.items())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(plan: "Search", found: "Findings") -> str:
    """Every trial, the best first."""
    from onepass.terminal import table

    names = list(plan.space.dimensions)
    rows = [["trial", *names, "held-out accuracy", ""]]
    for trial in found.ranked:
        accuracy = "" if trial.accuracy is None else f"{100 * trial.accuracy:.1f}"
        became = {"done": "", "failed": "no such recipe", "open": "not over"}.get(trial.state)
        if became is None:
            became = f"stopped at {trial.seen} images" if trial.why.startswith("in the") else "diverged"
        rows.append([str(trial.number), *(_text(trial.point.get(name, "")) for name in names), accuracy, became])
    return table(rows, left=0)


def _note(plan: "Search", found: "Findings") -> str:
    done = sum(trial.state == "done" for trial in found.trials)
    about = f"{plan.base.data.name}, {type(plan.base.stream).__name__.lower()}, memory {plan.base.memory}"
    return f"{about}; fANOVA over {_many(done)} that saw the whole stream"


def _command(plan: "Search", word: str | None, rest: list[str], best: "Config", root: Path) -> str:
    """What runs the best recipe on the test images: by flags, or by the file of its run where flags cannot say it."""
    from dataclasses import replace

    from onepass.config import changes

    texts = changes(replace(plan.base, held_out=None), replace(best, held_out=None))
    if texts is None:
        return shlex.join(["onepass", "run", "--config", str(root / best.folder / "config.json"), "--held-out", "none"])
    flags = [part for path, text in texts.items() for part in (f"--{path.replace('_', '-')}", text)]
    return shlex.join(["onepass", "run", *([] if word is None else [word]), *rest, *flags])
