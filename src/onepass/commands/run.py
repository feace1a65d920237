"""`onepass run`: train on a stream, once, and say how much was kept."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onepass.commands import Parser, add_engine, fields
from onepass.errors import Refused, unknown

if TYPE_CHECKING:
    from onepass.commands import Commands
    from onepass.config import Config

WORDS = "er er+mkd"  # what `run` knows, for the help that must not wait for torch

RUN = """\
Train on a stream, once, and say how much was kept.

Each word is a method, with a suffix for what is added to it: er, er+mkd.
`onepass run er+mkd --help` lists every field that can be set as a flag, e.g. --optim.lr 1e-3.
The same command again returns finished runs at once and takes up broken ones.
"""


def add(commands: "Commands") -> None:
    run = commands.add_parser(
        "run", help="train on a stream", description=RUN, add_help=False, allow_abbrev=False,
        usage="onepass run METHOD [METHOD ...] [flags]", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    run.add_argument("-h", "--help", action="store_true", help="this, or with a METHOD every field of its config")
    run.add_argument(
        "--data", metavar="NAME", help="digits, cifar10, cifar100, tiny-imagenet, imagenet100, folder:PATH, ... (default: digits)"
    )
    run.add_argument("--data-dir", type=Path, metavar="DIR", help="where data lies (default: $ONEPASS_DATA, the user's cache)")
    run.add_argument("--memory", metavar="N", help="images remembered (default: the data's)")
    run.add_argument("--stream", metavar="KIND", help="clear, blurry, imbalanced or blend (default: clear)")
    run.add_argument("--tasks", metavar="N", help="tasks in the stream (default: the data's)")
    run.add_argument("--seeds", nargs="+", metavar="N", help="one run for each (default: 0)")
    run.add_argument("--recipe", metavar="NAME", help="default (the paper's text) or published (what its code ran)")
    run.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cpu)")
    run.add_argument("--graph", nargs="?", const="true", metavar="YES", help="on CUDA: replay updates as graphs, same losses")
    run.add_argument("--precision", metavar="NAME", help="auto, fp32, bf16, fp16 or fp64 (default: auto)")
    run.add_argument("--net", metavar="NET", help="file.py:build for a network of your own (default: ResNet18)")
    run.add_argument("--limit", metavar="N", help="stop after N images of the stream")
    run.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where records go (default: runs)")
    add_engine(run)
    run.add_argument("--config", type=Path, metavar="FILE", help="fields from a JSON file, or the config.json of a run")
    run.add_argument("--explain", action="store_true", help="say what would run, and where each value comes from")


def parser() -> Parser:
    top = Parser(prog="onepass")
    commands = top.add_subparsers(parser_class=Parser)
    add(commands)
    return commands.choices["run"]


def main(arguments: Sequence[str]) -> int:
    words = list(takewhile(lambda a: not a.startswith("-"), arguments))
    mine = parser()
    known, rest = mine.parse_known_args(arguments[len(words) :])
    if known.help and not words:
        mine.print_help()
        return 0
    return _run(words, known, rest)


def _run(words: list[str], known: argparse.Namespace, rest: list[str]) -> int:
    from onepass.cluster import engine
    from onepass.pool import sweep
    from onepass.terminal import Live, explain, fields_help, results

    asked = plans(words, known, fields(rest))
    if known.help:
        parser().print_help()
        for word, plan in {plan.config.title: plan for plan in asked}.items():
            print(f"\nfields of {word}:\n\n{fields_help(plan.config)}")
        return 0
    if known.explain:
        print(explain([(plan.config, plan.sources) for plan in asked], known.runs))
        return 0
    configs = [plan.config for plan in asked]
    gather(configs, known)
    where = engine(known.engine, workers=known.workers, address=known.address, store=known.store)
    with Live(configs) as live:
        outcomes = sweep(configs, known.runs, data_dir=known.data_dir, tell=live.tell, engine=where)
    return results(configs, outcomes, known.runs)


def gather(configs: list["Config"], known: argparse.Namespace) -> None:
    """Decode what the runs need, once and before they begin, and say what is left out of it."""
    from onepass.record import Recorder

    for data in dict.fromkeys(config.data for config in configs if not Recorder(known.runs, config).finished):
        left_out = data.load(known.data_dir).skipped
        if left_out:
            more = f" and {len(left_out) - 3} more (`onepass data check` names all)" if len(left_out) > 3 else ""
            print(f"onepass: left out of {data.name}: {'; '.join(left_out[:3])}{more}", file=sys.stderr)


@dataclass(frozen=True)
class Plan:
    """A config, and where those of its values came from that are neither the recipe's nor a default."""

    config: "Config"
    sources: dict[str, str]


def plans(words: list[str], known: argparse.Namespace, flags: dict[str, str]) -> list[Plan]:
    """The configs that were asked for: the recipe, then --config, then flags."""
    from onepass.config import Config, build, to_json, with_fields, with_source_fields
    from onepass.data import source
    from onepass.recipes import recipe

    tree = _tree(known.config)
    whole = "method" in tree and "data" in tree
    if not words and not whole:
        raise Refused(f"Nothing to run; name a method, e.g. `onepass run {WORDS}`.")
    if whole:
        for word in (*words, *(f"--{n}" for n in ("data", "stream", "recipe") if getattr(known, n) is not None)):
            raise Refused(f"`{known.config}` is a whole config, with its own method, data and stream; leave out `{word}`.")
    seeds: list[int | None] = [build(int, s, "seeds") for s in known.seeds or ()] or [None]
    given = {k: v for k in ("memory", "precision", "limit", "device", "net", "graph") if (v := getattr(known, k)) is not None}
    if known.tasks is not None:
        given["stream.tasks"] = known.tasks
    if ".py:" in given.get("net", ""):
        given["net"] = {"is": "Custom", "build_from": given["net"]}
    given |= flags
    found: dict[str, Plan] = {}
    wrong = dict.fromkeys(given, 0) | dict.fromkeys((leaves := {} if whole else dict(_leaves(tree))), 0)
    wanted = [(word, seed) for word in words or [None] for seed in seeds]
    for word, seed in wanted:
        sources: dict[str, str] = {}
        mine = given if seed is None else given | {"seed": seed}
        if word is None:
            config = Config.from_json(tree)
        else:
            config = recipe(
                word,
                with_source_fields(source(known.data or "digits"), leaves | given),
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
        found.setdefault(str(config.folder), Plan(config, sources))
    for path, times in wrong.items():
        if times == len(wanted):
            raise _no_field(path, path in flags, list(found.values()))
    return list(found.values())


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
    tree = tree.get("config", tree)  # a run's own config.json has more around it
    if not isinstance(tree, dict):
        raise Refused(f"The `config` in `{file}` is no object of fields; give the config.json of a run.")
    return tree


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
    head, dot, _ = path.partition(".")
    if dot and all(getattr(plan.config, head, path) is None for plan in plans):
        titles = ", ".join(dict.fromkeys(f"`{plan.config.title}`" for plan in plans))
        return Refused(f"There is no field `{path}`, because {titles} has no {head}; take a method that has, e.g. `er+mkd`.")
    main = {o[2:] for a in parser()._actions for o in a.option_strings} if flag else set[str]()  # pyright: ignore[reportPrivateUsage]
    near = get_close_matches(path, main - names, n=1, cutoff=0.8)
    return Refused(f"There is no flag `--{path}`; did you mean `--{near[0]}`?") if near else unknown("field", path, names)
