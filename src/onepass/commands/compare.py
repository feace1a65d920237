"""`onepass compare`: what differs between two runs, in config, then in environment, then in results."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onepass.commands import Commands

COMPARE = """\
Say what differs between two runs: in config, then in environment, then in results.
Each may be a folder with several seeds of one config; then they are paired by seed.
"""


def add(commands: "Commands") -> None:
    compare = commands.add_parser(
        "compare", help="what differs between two runs", description=COMPARE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in "a", "b":
        compare.add_argument(name, type=Path, metavar=f"RUN_{name.upper()}", help="a run, or a folder with seeds of one config")
    compare.set_defaults(do=do)


def do(known: argparse.Namespace) -> int:
    from onepass.compare import compare

    print(compare(known.a, known.b).text())
    return 0
