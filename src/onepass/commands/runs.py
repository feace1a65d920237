"""`onepass runs`: list runs, or delete some."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.errors import Refused

if TYPE_CHECKING:
    from onepass.commands import Commands


def add(commands: "Commands") -> None:
    runs = commands.add_parser("runs", help="list runs, or delete some", description="List the runs in a folder.")
    runs.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="default: runs")
    runs.add_argument("--match", default="", metavar="TEXT", help="only those whose path contains TEXT")
    runs.add_argument("--delete", action="store_true", help="delete those listed (asks first)")
    runs.add_argument("--yes", action="store_true", help="do not ask")
    runs.set_defaults(do=do)


def do(known: argparse.Namespace) -> int:
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
