"""`onepass data`: get a data set, check it, and see a stream of it before training."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.commands import Parser, fields
from onepass.errors import Refused, unknown

if TYPE_CHECKING:
    from onepass.commands import Commands
    from onepass.config import Config
    from onepass.data.fetch import Tell
    from onepass.stream import Pass

DATA = """\
Get a data set, check it, and see a stream of it before training.

`check` and `show` take the fields of data and stream as flags, as `onepass run` does, e.g. --data.size 64 --stream.scale 100.
"""
NAME = "digits, cifar10, cifar100, tiny-imagenet, imagenet100, folder:PATH, npz:PATH or parquet:PATH"


def add(commands: "Commands") -> None:
    data = commands.add_parser(
        "data", help="get a data set, check it, see a stream of it", description=DATA,
        allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    acts = data.add_subparsers(dest="act", metavar="ACT")
    get = acts.add_parser("get", help="download an official data set", description="Download an official data set.")
    get.add_argument("name", metavar="NAME", help="cifar10, cifar100 or tiny-imagenet; imagenet100 says how to get it")
    get.add_argument(
        "--mirror", action="append", default=[], metavar="URL", help="ask here first: an address, or a path; repeatable"
    )
    check = acts.add_parser("check", help="counts, balance, files that cannot be read", description="Look through a data set.")
    check.add_argument("name", metavar="NAME", help=NAME)
    show = acts.add_parser(
        "show", help="pictures of a stream", description="Draw which classes come when, and images as a network sees them."
    )
    show.add_argument("name", metavar="NAME", help=NAME)
    show.add_argument("--stream", default="clear", metavar="KIND", help="clear, blurry, imbalanced or blend (default: clear)")
    show.add_argument("--tasks", metavar="N", help="tasks in the stream (default: the data's)")
    show.add_argument("--seed", default="0", metavar="N", help="of the order, and of the views (default: 0)")
    show.add_argument("--limit", metavar="N", help="the first N images of the stream")
    show.add_argument(
        "--recipe", default="default", metavar="NAME", help="default (the paper's text) or published (what its code ran)"
    )
    show.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the pictures go (default: runs)")
    for act in get, check, show:
        act.allow_abbrev = False
        act.add_argument("--data-dir", type=Path, metavar="DIR", help="where data lies (default: $ONEPASS_DATA, the user's cache)")


def parser() -> Parser:
    commands = Parser(prog="onepass").add_subparsers(parser_class=Parser)
    add(commands)
    return commands.choices["data"]


def main(words: Sequence[str]) -> int:
    known, rest = parser().parse_known_args(words)
    if known.act is None:
        parser().print_help()
        return 0
    if any(word.partition("=")[0] == "--data" for word in rest):
        raise Refused(f"`onepass data {known.act}` takes the data set by itself, e.g. `onepass data {known.act} folder:PATH`.")
    given = fields(rest)
    own = {"get": (), "check": ("data.",), "show": ("data.", "stream.")}[known.act]
    for name in given:
        if not name.startswith(own):
            raise Refused(
                f"`onepass data {known.act}` has no flag `--{name}`; `onepass data {known.act} --help` lists those there are."
            )
    return {"get": get, "check": check, "show": show}[known.act](known, given)


def get(known: argparse.Namespace, _: dict[str, str]) -> int:
    from onepass.data import fetch

    if known.name == "digits":
        print("digits come with scikit-learn: there is nothing to get")
        return 0
    print(fetch.get(known.name, known.data_dir, mirrors=known.mirror, tell=progress()))
    return 0


def progress() -> "Tell":
    """Says on stderr how much of what was done: in one line on a terminal, in a line every few seconds elsewhere."""
    last, doing = 0.0, ""

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last, doing
        live, over = sys.stderr.isatty(), 0 < total <= done
        if what == doing and not over and time.monotonic() - last < (0.2 if live else 5.0):
            return
        last, doing = time.monotonic(), what
        of = f" of {total / 1e6:,.1f}" if total else ""
        line = f"{what}: {done / 1e6:,.1f}{of} MB"
        print(f"{chr(13) if live else ''}{line:<79}", end="" if live and not over else "\n", file=sys.stderr, flush=True)

    return tell


def check(known: argparse.Namespace, given: dict[str, str]) -> int:
    from onepass.config import with_source_fields
    from onepass.data import source
    from onepass.data.check import report

    for line in report(with_source_fields(source(known.name), given), known.data_dir):
        print(line, flush=True)
    return 0


def show(known: argparse.Namespace, given: dict[str, str]) -> int:
    for path in draw(_config(known, given), known.data_dir, known.runs):
        print(path)
    return 0


def _config(known: argparse.Namespace, given: dict[str, Any]) -> "Config":
    """ER on this stream: what is drawn is what it would see."""
    from onepass.config import build, leaves, with_fields, with_source_fields
    from onepass.data import source
    from onepass.recipes import recipe

    given = given | {name: value for name in ("seed", "limit") if (value := getattr(known, name)) is not None}
    tasks = None if known.tasks is None else build(int, known.tasks, "tasks")
    data = with_source_fields(source(known.name), given)
    config = recipe("er", data, stream=known.stream.lower(), tasks=tasks, family=known.recipe)
    config, missing = with_fields(config, given)
    for name in missing:
        raise unknown("field", name, [path for path, _, _, _ in leaves(config) if path.startswith(("data.", "stream."))])
    return config


def draw(config: "Config", data_dir: Path | None, root: Path) -> list[Path]:
    """Which classes come when, and images of up to ten of them as they are and as a network sees them."""
    import torch

    from onepass import figures
    from onepass.figures.presence import Shown
    from onepass.figures.style import plain
    from onepass.loop import prepare
    from onepass.seeds import Seeds

    stream, _, _ = prepare(config, data_dir)
    spec, y = stream.spec, stream.y[stream.order]
    setting, kind = config.folder.parts[0], type(config.stream).__name__.lower()
    title = f"{config.data.name}, {kind}, {len(spec.tasks)} tasks, seed {config.seed}"
    shown, said = {"": Shown(y.numpy(), stream.task_ends)}, about(stream, config.batch_size)
    when = figures.presence(shown, spec.tasks, plain(title), said, spec.names)

    few = torch.linspace(0, spec.classes - 1, min(10, spec.classes)).round().long()
    first = [int(rows[0]) for c in few if len(rows := (y == c).nonzero())]  # of those that come before the limit
    x = stream.x[stream.order[first]].float() / 255
    rule = config.augment or config.data.habits.full
    views = torch.stack([rule(x, Seeds(config.seed).torch("show", i)) for i in range(6)], 1)
    names = [spec.names[c] for c in y[first].tolist()]
    seen = figures.samples(x.numpy(), views.numpy(), names, plain(f"{config.data.name}: images as the network sees them"))

    stem = root / setting / "figures" / f"{len(spec.tasks)}-tasks-s{config.seed}"
    try:
        return [
            p for name, f in (("classes", when), ("images", seen)) for p in figures.save(f, stem.with_name(f"{stem.name}-{name}"))
        ]
    except OSError as error:
        raise Refused(f"The pictures could not be written ({error}); give another folder with `--runs`.") from error


def about(stream: "Pass", batch_size: int) -> str:
    """A stream in numbers: images, images of a class, and how far its tasks mix."""
    import numpy as np

    y = stream.y[stream.order].numpy()
    sizes = np.bincount(y)
    sizes = sizes[sizes > 0]
    each = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
    said = f"{len(y):,} images, {each} of a class"
    if stream.sharp:
        return said
    task = np.empty(stream.spec.classes, dtype=int)
    for t, classes in enumerate(stream.spec.tasks):
        task[list(classes)] = t
    outside = np.mean(task[y] != np.searchsorted(stream.task_ends, np.arange(len(y)), side="right"))
    mixed = np.mean([len(np.unique(task[y[i : i + batch_size]])) > 1 for i in range(0, len(y), batch_size)])
    return (
        f"{said}; {100 * outside:.1f} % of them outside the slot of their task;\n"
        f"{100 * mixed:.0f} % of batches of {batch_size} with more than one task"
    )
