"""An `OnlineLearner` over a long stream, one image a call: neither the process nor a call grows.

    python bench/online.py [--calls 10000] [--write]

Images of 8x8, a network of width 8, ten images replayed.  The first thousand calls are compared with the last.
"""

import argparse
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import torch

from onepass import OnlineLearner, ResNet18

PART = 1000  # calls that are taken together


def resident() -> float:
    """What the process has in memory now, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    learner = OnlineLearner(image=(1, 8, 8), net=ResNet18(width=8), memory=200, replay_size=10, precision="fp32")
    rows: list[tuple[int, float, float, float]] = []  # calls, MB, ms of processor time and of the clock a call
    for _ in range(arguments.calls // PART):
        cpu, clock = time.process_time(), time.perf_counter()
        for _ in range(PART):
            label = int(torch.randint(10, (), generator=generator))
            image = torch.randint(256, (1, 8, 8), generator=generator, dtype=torch.uint8)
            learner.learn(image, f"class {label}")
        rows.append((learner.images_seen, resident(), time.process_time() - cpu, time.perf_counter() - clock))
        print(*(f"{n:.2f}" for n in rows[-1]), file=sys.stderr, flush=True)
    first, last = rows[0], rows[-1]
    commit = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, cwd=Path(__file__).parent)
    text = "\n".join(
        [
            "- command: `python bench/online.py --write`",
            f"- commit {commit.stdout.strip()}; {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC; torch {torch.__version__}, "
            f"one thread, {platform.machine()}, fp32; er+mkd, memory 200, 10 replayed",
            "",
            f"|  | calls 1 to {PART:,} | calls {arguments.calls - PART + 1:,} to {arguments.calls:,} | last / first | goal |",
            "|---|--:|--:|--:|--:|",
            f"| resident memory at the end, MB | {first[1]:.1f} | {last[1]:.1f} | {last[1] / first[1]:.3f} | <= 1.05 |",
            f"| processor time a call, ms | {first[2]:.2f} | {last[2]:.2f} | {last[2] / first[2]:.3f} | no slowdown |",
            f"| by the clock a call, ms | {first[3]:.2f} | {last[3]:.2f} | {last[3] / first[3]:.3f} |  |",
        ]
    )
    print(text)
    if arguments.write:
        file = Path(__file__).with_name("RESULTS.md")
        before, _, rest = file.read_text().partition("<!-- online: begin -->")
        after = rest.partition("<!-- online: end -->")[2]
        file.write_text(f"{before}<!-- online: begin -->\n\n{text}\n\n<!-- online: end -->{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
