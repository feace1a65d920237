"""examples/slurm.sh, with stand-ins for SLURM that do what they are told on this machine, and for `ray` that only note it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "slurm.sh"
STANDINS = {
    "srun": 'node=here\nwhile [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && node=${1#*=}; shift; done\nNODE=$node exec "$@"',
    "scontrol": '[[ "$*" == "show hostnames n[1-3]" ]] && printf "n1\\nn2\\nn3\\n"',
    "hostname": "echo 10.0.0.1 fe80::1",
    "ray": """echo "$NODE: $*" >> $NOTES/asked
[[ -n $RAY_AUTH_TOKEN && $RAY_AUTH_MODE == token ]] || echo "no token" >> $NOTES/asked
case $1 in
    start) echo $$ >> $NOTES/pids; exec sleep 600 ;;
    status) grep -q "start --head" $NOTES/asked || exit 1; grep ": start" $NOTES/asked | sed "s/.*/ 1 node_x/" ;;
esac""",
    "onepass": 'echo "onepass: $*" >> $NOTES/asked\ntrap "echo saved >> $NOTES/asked; exit 130" TERM\n'
    "[[ -n $WAIT ]] && for i in {1..600}; do sleep 0.05; done\nexit ${CODE:-0}",
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    for name, text in STANDINS.items():
        file = tmp_path / "bin" / name
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_CPUS_PER_TASK": "4", "NOTES": str(tmp_path), "WAIT": "", "NODE": "here"}
    return os.environ | slurm | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def ended(tmp_path: Path) -> bool:
    """Whether what stands for Ray is gone."""
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("code", [0, 2])
def test_a_head_the_workers_and_the_command_and_nothing_is_left(code: int, env: dict[str, str], tmp_path: Path) -> None:
    words = ["onepass", "run", "er", "--runs", "shared runs"]
    done = subprocess.run([SCRIPT, *words], env=env | {"CODE": str(code)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if ": status" not in line]
    head, *workers, command = asked
    assert head == ("n1: start --head --block --node-ip-address 10.0.0.1 --port 6379 --num-cpus 4 --include-dashboard false")
    assert sorted(workers) == [f"{n}: start --block --address 10.0.0.1:6379 --num-cpus 4" for n in ("n2", "n3")]
    assert command == "onepass: run er --runs shared runs --engine ray --address 10.0.0.1:6379"
    assert ended(tmp_path)


def test_slurms_signal_reaches_the_command_which_saves(env: dict[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen([SCRIPT, "onepass", "run", "er"], env=env | {"WAIT": "yes", "SLURM_GPUS_ON_NODE": "2"})
    until = time.monotonic() + 60
    asked = tmp_path / "asked"
    while not (asked.is_file() and "onepass: run" in asked.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert asked.read_text().endswith("saved\n") and asked.read_text().count("--num-gpus 2") == 3
    assert ended(tmp_path)


def test_without_a_command_it_says_how_it_is_used(env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "usage: sbatch" in done.stderr and not (tmp_path / "asked").exists()
