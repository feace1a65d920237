"""`onepass predict`: classify images with the network of a finished run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onepass.commands import Commands


def add(commands: "Commands") -> None:
    predict = commands.add_parser("predict", help="classify images with a finished run", description="Classify images.")
    predict.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    predict.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="image files, or folders of them")
    predict.add_argument("--top", type=int, default=1, metavar="K", help="the K likeliest classes of each")
    predict.set_defaults(do=do)


def do(known: argparse.Namespace) -> int:
    from onepass.predict import classify

    for line in classify(known.run, known.images, known.top):
        print(line)
    return 0
