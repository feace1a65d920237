"""The commands, a file each: what its flags are, and what it does; nothing heavy is imported before it is asked for.

A command's module has `add(commands)`, which adds its parser and says by `set_defaults(do=...)` what it does with the
arguments; it returns the exit code.  One whose flags are the fields of a config has `main(words)` instead of `do`.
"""

import argparse
from typing import TYPE_CHECKING, Any

from onepass.errors import Refused

NAMES = ("run", "runs", "report", "compare", "predict", "data", "search", "paper", "doctor")
"""In the order in which `onepass --help` has them."""


class Parser(argparse.ArgumentParser):
    """One whose errors are the user's, and are said in one line."""

    def error(self, message: str) -> Any:
        raise Refused(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The flags that say where runs are done: `--workers --engine --address --store`."""
    parser.add_argument("--workers", type=int, metavar="N", help="runs side by side (default: one for each core)")
    parser.add_argument("--engine", default="local", metavar="NAME", help="where they run: local, or ray (default: local)")
    parser.add_argument("--address", metavar="HOST:PORT", help="ray: the head of a cluster to join (default: a local one)")
    parser.add_argument("--store", metavar="URL", help="ray: where workers keep records that cannot see --runs, e.g. s3://...")


def fields(words: list[str]) -> dict[str, str]:
    """`--optim.lr 1e-3` and `--optim.lr=1e-3` as {"optim.lr": "1e-3"}."""
    given: dict[str, str] = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise Refused(f"`{word}` is not a flag; flags begin with `--`, and methods come before them.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise Refused(f"`{word}` needs a value.")
            value = words.pop(0)
        given[name.replace("-", "_")] = value
    return given


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]  # pyright: ignore[reportPrivateUsage]
