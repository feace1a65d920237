"""A run that is killed and taken up again ends with the bits of one that was never broken.

`python examples/resume.py` shows it: a process trains, `kill -9` ends it halfway, and the same command goes on.
"""

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from onepass import Config, Record, ResNet18, recipe, run, source


def config(limit: int, width: int) -> Config:
    return replace(recipe("er+mkd", source("digits"), memory=20), limit=limit, net=ResNet18(width=width), batch_size=10)


def killed(runs: Path, limit: int, width: int) -> int:
    """Train in another process, and kill it after its first checkpoint; say how many images it had logged."""
    child = subprocess.Popen([sys.executable, __file__, "train", str(runs), str(limit), str(width)])
    while not list(runs.rglob("checkpoint.safetensors")) and child.poll() is None:
        time.sleep(0.01)
    child.kill()  # SIGKILL: nothing can be tidied up
    child.wait()
    return sum(len(file.read_text().splitlines()) for file in runs.rglob("log.jsonl")) * 10


def same(a: Record, b: Record) -> bool:
    """Whether both runs have the same weights and every loss on the way, bit for bit."""
    weights, others = (load_file(record.path / "model.safetensors") for record in (a, b))
    return a.log == b.log and all(torch.equal(weights[name], others[name]) for name in weights)


def main(limit: int = 1000, width: int = 20) -> bool:
    with tempfile.TemporaryDirectory() as place:
        whole = run(config(limit, width), Path(place) / "whole")
        seen = killed(Path(place) / "broken", limit, width)
        broken = run(config(limit, width), Path(place) / "broken")  # the same command again
        bits = "the same bits" if same(whole, broken) else "other bits"
        print(f"killed after about {seen} of {limit} images, taken up again: {bits}")
        return same(whole, broken)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        run(config(int(sys.argv[3]), int(sys.argv[4])), sys.argv[2])
    else:
        sys.exit(not main())
