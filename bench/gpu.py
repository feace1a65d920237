"""One update on a CUDA device, eager and as a graph, for every method: `python bench/gpu.py [--write]`.

Learners take turns, each for ten updates and a wait for the device; times are medians over the turns.  Each pair first learns
from the same batches, and says by how much the losses differ.  `--write` replaces this script's section of bench/RESULTS.md;
`--device cpu` runs the same code without a device (and captures nothing), to try it.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

import torch  # noqa: E402
from table import Report, header  # noqa: E402

from onepass import recipe, source  # noqa: E402
from onepass.learner import Learner  # noqa: E402
from onepass.nets import ResNet18  # noqa: E402
from onepass.stream import Batch, Spec  # noqa: E402

CLASSES, IMAGE, ROWS = 10, (3, 32, 32), 5000
WORDS = ("er", "er-ace", "derpp", "pcr", "gsa", "dvc", "ocm")
CAPTURED = ("er", "er-ace", "derpp", "pcr")  # the others decide on the host what comes next


def batch(number: int) -> Batch:
    """Ten random images of the second task's two classes."""
    rng = torch.Generator().manual_seed(number)
    x = torch.randint(0, 256, (10, *IMAGE), generator=rng, dtype=torch.uint8)
    return Batch(x, 2 + torch.arange(10) % 2)


def learner(word: str, width: int, device: str, precision: str, graph: bool) -> Learner:
    """A learner by its recipe in its second task, with a full memory."""
    config = recipe(word, source("cifar10"), device=device)
    config = replace(config, net=ResNet18(width), memory=ROWS, precision=precision, graph=graph)
    tasks = tuple((2 * i, 2 * i + 1) for i in range(CLASSES // 2))
    mine = config.learner(Spec(CLASSES, IMAGE, tasks), sharp=True)
    x = torch.randint(0, 256, (ROWS, *IMAGE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    extra = {"logits": torch.zeros(ROWS, CLASSES)} if mine.method.columns else {}
    mine.memory.add(x, torch.arange(ROWS) % 4, extra, rng=torch.Generator().manual_seed(1))
    for first in (0, 2):
        mine.meet(Batch(x[:2], torch.tensor([first, first + 1])))
        mine.clock.batches += 1
    return mine


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 20])
    parser.add_argument("--words", nargs="+", default=[w + s for w in WORDS for s in ("", "+mkd")])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--updates", type=int, default=10, help="in a turn")
    parser.add_argument("--write", action="store_true")
    known = parser.parse_args()
    report = Report()
    name = torch.cuda.get_device_name() if known.device != "cpu" else "none: the host, through the same code"
    lines = header(" ".join(["python bench/gpu.py", *sys.argv[1:]]))
    report.say(*lines, f"- device: {name}; {known.precision}; stream batch 10, memory batch 64, 3x32x32", "")
    rows: list[list[str]] = []
    for width in known.widths:
        mine: dict[tuple[str, bool], Learner] = {}
        apart: dict[str, float] = {}
        for word in known.words:
            losses: dict[bool, list[Any]] = {}
            for graph in (False, True) if word.partition("+")[0] in CAPTURED else (False,):
                mine[word, graph] = learner(word, width, known.device, known.precision, graph)
                losses[graph] = [mine[word, graph].observe(batch(i)).get("loss") for i in range(8)]
            if True in losses:
                apart[word] = max(abs(float(a) - float(b)) for a, b in zip(losses[False], losses[True], strict=True))
        times: dict[tuple[str, bool], list[float]] = {key: [] for key in mine}
        for turn in range(known.turns):
            for key, one in mine.items():
                wait(known.device)
                start = time.perf_counter()
                for i in range(known.updates):
                    one.observe(batch(1000 * turn + i))
                wait(known.device)
                times[key].append(1e3 * (time.perf_counter() - start) / known.updates)
        ms = {key: median(t) for key, t in times.items()}
        for word in known.words:
            row = [f"{word}, width {width}", f"{ms[word, False]:.1f}", f"{ms[word, False] / ms[known.words[0], False]:.2f}"]
            graphs = mine[word, True].graphs if (word, True) in ms else None
            if graphs is None:
                rows.append([*row, "", "", "", ""])
            else:
                share = f"{graphs.replayed}/{graphs.updates}"
                rows.append([*row, f"{ms[word, True]:.1f}", f"{ms[word, False] / ms[word, True]:.2f}", share, f"{apart[word]:.1g}"])
    head = ("", "eager, ms", f"/ {known.words[0]}'s", "graph, ms", "times faster", "replayed", "losses apart by")
    report.table(head, rows)
    report.end("gpu" if known.write else None)


if __name__ == "__main__":
    main()
