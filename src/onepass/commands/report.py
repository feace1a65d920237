"""`onepass report`: runs as one page of HTML."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.errors import Refused

if TYPE_CHECKING:
    from onepass.commands import Commands
    from onepass.report import Gathered
    from onepass.report.gathered import Tell

REPORT = """\
Write finished runs as one page of HTML: tables that sort, figures, every config, and where each number comes from.
The page is one file and needs no network.  Its path is printed.
"""


def add(commands: "Commands") -> None:
    report = commands.add_parser(
        "report", help="runs as one page", description=REPORT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    report.add_argument(
        "runs", nargs="*", type=Path, default=[Path("runs")], metavar="RUNS", help="runs, or folders of runs (default: runs)"
    )
    report.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (default: report.html beside the runs)")
    report.add_argument("--match", default="", metavar="TEXT", help="only those whose path contains TEXT")
    report.set_defaults(do=do)


def do(known: argparse.Namespace) -> int:
    from onepass.files import aside
    from onepass.report import gather, page

    out = known.out or beside(known.runs)
    tell = patient()
    gathered = gather(known.runs, known.match, tell)
    said(gathered)
    if not gathered.groups:
        among = f" with `{known.match}` in their paths" if known.match else ""
        folders = ", ".join(f"`{folder}`" for folder in known.runs)
        raise Refused(f"There are no finished runs in {folders}{among}, so there is no page; `onepass runs` lists what there is.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with aside(out) as file:
            file.write(page(gathered, tell).encode())
    except OSError as error:
        raise Refused(f"`{out}` could not be written ({error.strerror}); give another file with `--out`.") from error
    print(out)
    return 0


def said(gathered: "Gathered") -> None:
    """Say on stderr what was left out."""
    for note in gathered.notes():
        print(f"onepass: {note}", file=sys.stderr)


def beside(folders: list[Path]) -> Path:
    """In the folder that holds all of them; a run's own folder stays as it is."""
    common = Path(os.path.commonpath([folder.absolute() for folder in folders])) if len(folders) > 1 else folders[0]
    return (common.parent if (common / "config.json").is_file() else common) / "report.html"


def patient() -> "Tell":
    """Says on stderr how far it is, every two seconds."""
    last = time.monotonic()

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 2:
            last = time.monotonic()
            print(f"onepass: {what} {done} of {total}", file=sys.stderr, flush=True)

    return tell
