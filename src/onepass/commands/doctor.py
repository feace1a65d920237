"""`onepass doctor`: what there is here, and how long a run takes."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.errors import Refused

if TYPE_CHECKING:
    from onepass.commands import Commands


def add(commands: "Commands") -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what there is here, and how long a run takes",
        description="Say what there is here (Python, torch, devices, precision, memory, disk, data), and how long a run takes.",
    )
    doctor.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    doctor.add_argument("--data-dir", type=Path, metavar="DIR", help="where data lies (default: $ONEPASS_DATA, the user's cache)")
    doctor.add_argument("--seconds", type=float, default=10.0, metavar="N", help="how long to measure (default: 10)")
    doctor.set_defaults(do=do)


def do(known: argparse.Namespace) -> int:
    from onepass.doctor import examine

    if not 0 < known.seconds < 3600:
        raise Refused(f"`--seconds {known.seconds:g}` is no time to measure for; take 10, or some more for a steadier number.")
    for line in examine(known.device, known.data_dir, known.seconds):
        print(line, flush=True)
    return 0
