"""The commands, a file each: what its flags are, and what it does; nothing heavy is imported before it is asked for.

A command's module has `add(commands)`, which adds its parser and says by `set_defaults(do=...)` what it does with the
arguments; it returns the exit code.  One whose flags are the fields of a config has `main(words)` instead of `do`.
"""

import argparse
from typing import TYPE_CHECKING, Any

from onepass.errors import Refused

NAMES = ("run", "runs", "predict", "doctor", "paper")
"""In the order in which `onepass --help` has them."""


class Parser(argparse.ArgumentParser):
    """One whose errors are the user's, and are said in one line."""

    def error(self, message: str) -> Any:
        raise Refused(f"{message[0].upper()}{message[1:]}; see `{self.prog} --help`.")


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]  # pyright: ignore[reportPrivateUsage]
