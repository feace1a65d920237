"""The command line: `onepass run`, `runs`, `predict`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onepass.__about__ import __version__
from onepass.errors import Refused, unknown

if TYPE_CHECKING:
    from onepass.config import Config

WORDS = "er er+mkd"  # what `run` knows, for the help that must not wait for torch

RUN = """\
Train on a stream, once, and say how much was kept.

Each word is a method, with a suffix for what is added to it: er, er+mkd.
`onepass run er+mkd --help` lists every field that can be set as a flag, e.g. --optim.lr 1e-3.
The same command again returns finished runs at once and takes up broken ones.
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")


def parsers() -> tuple[Parser, Parser]:
    """The whole parser, and that of `run`, which may be asked for the fields of a config."""
    top = Parser(prog="onepass", description="Online continual learning with replay and momentum distillation.")
    top.add_argument("--version", action="version", version=f"onepass {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    run = commands.add_parser(
        "run", help="train on a stream", description=RUN, add_help=False, allow_abbrev=False,
        usage="onepass run METHOD [METHOD ...] [flags]", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    run.add_argument("-h", "--help", action="store_true", help="this, or with a METHOD every field of its config")
    run.add_argument("--data", metavar="NAME", help="the data set: digits (default: digits)")
    run.add_argument("--data-dir", type=Path, metavar="DIR", help="where data lies (default: $ONEPASS_DATA, the user's cache)")
    run.add_argument("--memory", metavar="N", help="images remembered (default: the data's)")
    run.add_argument("--stream", metavar="KIND", help="clear or blurry (default: clear)")
    run.add_argument("--tasks", metavar="N", help="tasks in the stream (default: the data's)")
    run.add_argument("--seeds", nargs="+", metavar="N", help="one run for each (default: 0)")
    run.add_argument("--recipe", metavar="NAME", help="default (the paper's text) or published (what its code ran)")
    run.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cpu)")
    run.add_argument("--precision", metavar="NAME", help="auto, fp32, bf16, fp16 or fp64 (default: auto)")
    run.add_argument("--net", metavar="NET", help="file.py:build for a network of your own (default: ResNet18)")
    run.add_argument("--limit", metavar="N", help="stop after N images of the stream")
    run.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where records go (default: runs)")
    run.add_argument("--workers", type=int, metavar="N", help="runs side by side (default: one for each core)")
    run.add_argument("--config", type=Path, metavar="FILE", help="fields from a JSON file, or the config.json of a run")
    run.add_argument("--explain", action="store_true", help="say what would run, and where each value comes from")

    runs = commands.add_parser("runs", help="list runs, or delete some", description="List the runs in a folder.")
    runs.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="default: runs")
    runs.add_argument("--match", default="", metavar="TEXT", help="only those whose path contains TEXT")
    runs.add_argument("--delete", action="store_true", help="delete those listed (asks first)")
    runs.add_argument("--yes", action="store_true", help="do not ask")

    predict = commands.add_parser("predict", help="classify images with a finished run", description="Classify images.")
    predict.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    predict.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="image files, or folders of them")
    predict.add_argument("--top", type=int, default=1, metavar="K", help="the K likeliest classes of each")
    return top, run


def main(argv: Sequence[str] | None = None) -> int:
    """What the shell runs.  A mistake of the user's is one line on stderr and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    top, run = parsers()
    try:
        if arguments[:1] == ["run"]:
            words = list(takewhile(lambda a: not a.startswith("-"), arguments[1:]))
            known, rest = run.parse_known_args(arguments[1 + len(words) :])
            if known.help and not words:
                run.print_help()
                return 0
            return _run(words, known, rest)
        known = top.parse_args(arguments)
        if known.command == "runs":
            return _runs(known)
        if known.command == "predict":
            return _predict(known)
        top.print_help()
        return 0
    except Refused as error:
        print(f"onepass: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt as error:
        print(f"onepass: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130


# -- run ----------------------------------------------------------------------------------------------------------------


def _run(words: list[str], known: argparse.Namespace, rest: list[str]) -> int:
    from onepass.pool import sweep
    from onepass.terminal import Live, explain, fields_help, results

    plans = _plans(words, known, _flags(rest))
    if known.help:
        parsers()[1].print_help()
        for word, plan in {plan.config.title: plan for plan in plans}.items():
            print(f"\nfields of {word}:\n\n{fields_help(plan.config)}")
        return 0
    if known.explain:
        print(explain([(plan.config, plan.sources) for plan in plans], known.runs))
        return 0
    configs = [plan.config for plan in plans]
    with Live(configs) as live:
        outcomes = sweep(configs, known.runs, workers=known.workers, data_dir=known.data_dir, tell=live.tell)
    return results(configs, outcomes, known.runs)


@dataclass(frozen=True)
class Plan:
    """A config, and where those of its values came from that are neither the recipe's nor a default."""

    config: "Config"
    sources: dict[str, str]


def _flags(rest: list[str]) -> dict[str, str]:
    """`--optim.lr 1e-3` and `--optim.lr=1e-3` as {"optim.lr": "1e-3"}."""
    flags: dict[str, str] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise Refused(f"`{word}` is not a flag; flags begin with `--`, and methods come before them.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise Refused(f"`{word}` needs a value.")
            value = words.pop(0)
        flags[name.replace("-", "_")] = value
    return flags


def _plans(words: list[str], known: argparse.Namespace, flags: dict[str, str]) -> list[Plan]:
    """The configs that were asked for: the recipe, then --config, then flags."""
    from onepass.config import Config, build, to_json, with_fields
    from onepass.data import source
    from onepass.recipes import recipe

    tree = _tree(known.config)
    whole = "method" in tree and "data" in tree
    if not words and not whole:
        raise Refused(f"Nothing to run; name a method, e.g. `onepass run {WORDS}`.")
    if whole:
        for word in (*words, *(f"--{n}" for n in ("data", "stream", "recipe") if getattr(known, n) is not None)):
            raise Refused(f"`{known.config}` is a whole config, with its own method, data and stream; leave out `{word}`.")
    if known.workers is not None and known.workers < 1:
        raise Refused(f"`--workers {known.workers}` would run nothing; take at least 1.")
    seeds: list[int | None] = [build(int, s, "seeds") for s in known.seeds or ()] or [None]
    given = {k: v for k in ("memory", "precision", "limit", "device", "net") if (v := getattr(known, k)) is not None}
    if known.tasks is not None:
        given["stream.tasks"] = known.tasks
    if ".py:" in given.get("net", ""):
        given["net"] = {"is": "Custom", "build_from": given["net"]}
    given |= flags
    plans: dict[str, Plan] = {}
    wrong = dict.fromkeys(given, 0) | dict.fromkeys((leaves := {} if whole else dict(_leaves(tree))), 0)
    asked = [(word, seed) for word in words or [None] for seed in seeds]
    for word, seed in asked:
        sources: dict[str, str] = {}
        mine = given if seed is None else given | {"seed": seed}
        if word is None:
            config = Config.from_json(tree)
        else:
            config = recipe(
                word,
                source(known.data or "digits"),
                memory=None if known.memory is None else build(int, known.memory, "memory"),
                stream=cast(Any, (known.stream or "clear").lower()),
                tasks=None if known.tasks is None else build(int, known.tasks, "tasks"),
                family=known.recipe or "default",
                seed=seed or 0,
                device=known.device or "cpu",
            )
            named = {n: to_json(getattr(config, n)) for n in ("data", "stream") if getattr(known, n) is not None}
            config, missing = with_fields(config, {k: v for k, v in leaves.items() if k not in named})
            sources = {path: str(known.config) for path in leaves.keys() - missing - named.keys()}
            sources |= dict.fromkeys(named, "flag")
            for path in missing:
                wrong[path] += 1
        config, missing = with_fields(config, mine)
        for path in missing:
            wrong[path] += 1
        sources |= dict.fromkeys(mine.keys() - missing, "flag")
        plans.setdefault(str(config.folder), Plan(config, sources))
    for path, times in wrong.items():
        if times == len(asked):
            raise _no_field(path, path in flags, list(plans.values()))
    return list(plans.values())


def _tree(file: Path | None) -> dict[str, Any]:
    import json

    if file is None:
        return {}
    try:
        tree = json.loads(file.read_text())
    except OSError as error:
        raise Refused(f"`{file}` cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise Refused(f"`{file}` is not JSON ({error}).") from error
    if not isinstance(tree, dict):
        raise Refused(f'`{file}` holds no object of fields; write e.g. {{"optim.lr": 0.001}}.')
    return tree.get("config", tree)  # a run's own config.json has more around it


def _leaves(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """{"optim": {"lr": 1}} as [("optim.lr", 1)]; an object that names its class is a value of its own."""
    out: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and "is" not in value:
            out += _leaves(value, f"{prefix}{key}.")
        else:
            out.append((prefix + key, value))
    return out


def _no_field(path: str, flag: bool, plans: list[Plan]) -> Refused:
    from onepass.config import leaves

    names = {p for plan in plans for p, _, _, _ in leaves(plan.config)}
    main = {o[2:] for a in parsers()[1]._actions for o in a.option_strings} if flag else set[str]()  # pyright: ignore[reportPrivateUsage]
    near = get_close_matches(path, main - names, n=1, cutoff=0.8)
    return Refused(f"There is no flag `--{path}`; did you mean `--{near[0]}`?") if near else unknown("field", path, names)


# -- runs, predict -------------------------------------------------------------------------------------------------


def _runs(known: argparse.Namespace) -> int:
    from onepass.record import delete, records
    from onepass.terminal import listing

    found = [r for r in records(known.folder) if known.match in str(r.path)]
    print(listing(found))
    if not known.delete or not found:
        return 0
    if not known.yes:
        if not sys.stdin.isatty():
            raise Refused("`--delete` asks before it deletes, and there is nobody to ask; add `--yes`.")
        if input(f"Delete these {len(found)} runs? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    delete(found)
    print(f"deleted {len(found)} runs")
    return 0


def _predict(known: argparse.Namespace) -> int:
    from onepass.predict import classify

    for line in classify(known.run, known.images, known.top):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
