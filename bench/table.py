"""What the scripts of this folder share: Markdown as it is printed, goals, the machine, and their places in bench/RESULTS.md."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "RESULTS.md"


class Others:
    """How busy the machine was with other things: without them `share` is about 0."""

    def __init__(self):
        self.began = self.read()

    @staticmethod
    def read() -> tuple[float, float, float]:
        t = os.times()
        own = t.user + t.system + t.children_user + t.children_system
        try:
            ticks = [int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        except OSError:
            return own, own, time.monotonic()
        idle = ticks[3] + ticks[4]
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), own, time.monotonic()

    def share(self) -> float:
        """Of the time of all cores, what others took (steal included)."""
        busy, own, wall = (b - a for a, b in zip(self.began, self.read(), strict=True))
        return max(0.0, busy - own) / wall / (os.cpu_count() or 1)


class Report:
    """Markdown, printed as it is made; its end says how long it took, and whether the machine was busy with other things."""

    def __init__(self):
        self.lines: list[str] = []
        self.began, self.others = time.monotonic(), Others()

    def say(self, *lines: str) -> None:
        for line in lines:
            print(line, flush=True)
            self.lines.append(line)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.say("| " + " | ".join(head) + " |", "|" + "|".join("---" if i == 0 else "--:" for i in range(len(head))) + "|")
        self.say(*("| " + " | ".join(row) + " |" for row in rows), "")

    def end(self, section: str | None) -> None:
        """The last line; then all of it takes its place in bench/RESULTS.md, if one is named."""
        share = self.others.share()
        noisy = "" if share < 0.03 else " **Noisy: to be measured again on an idle machine.**"
        self.say(f"Measured in {time.monotonic() - self.began:.0f} s, while others took {share:.0%} of the cores.{noisy}")
        if section is not None:
            write(section, self.lines)


def goal(
    what: str, value: float, least: float | None = None, most: float | None = None, form: str = ".3f", unit: str = ""
) -> list[str]:
    """A row of a table of goals."""
    sign, limit = (">=", least) if least is not None else ("<=", most)
    if limit is None:
        return [what, f"{value:{form}}{unit}", "", ""]
    met = value >= limit if least is not None else value <= limit
    return [what, f"{value:{form}}{unit}", f"{sign} {limit:g}{unit}", "met" if met else "**missed**"]


GOALS = ("", "measured", "goal", "")


def header(command: str) -> list[str]:
    def out(*args: str) -> str:
        try:
            return subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=10).stdout.strip()
        except OSError:
            return ""

    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M) if os.path.exists("/proc/cpuinfo") else None
    capability = torch.backends.cpu.get_cpu_capability()
    bf16 = "with" if torch.cpu._is_avx512_bf16_supported() else "without"  # pyright: ignore
    load = ", ".join(f"{v:.2f}" for v in os.getloadavg())
    return [
        f"- command: `{command}`",
        f"- commit: {out('git', 'describe', '--always', '--dirty=+', '--abbrev=12', '--match=') or 'none yet'}",
        f"- date: {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC; load when it began: {load}",
        f"- CPU: {cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores, {capability}, {bf16} AVX512-BF16",
        f"- threads: {torch.get_num_threads()}; torch {torch.__version__}; Python {platform.python_version()}",
    ]


def write(section: str, lines: Sequence[str]) -> None:
    """Replace what stands between this section's two marks."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    text = RESULTS.read_text("utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"`{RESULTS}` has no section between `{begin}` and `{end}`")
    before, rest = text.split(begin)
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(lines).strip())
    RESULTS.write_text(f"{before}{begin}\n\n{body}\n\n{end}{rest.split(end)[1]}", "utf-8")
