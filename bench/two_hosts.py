#!/usr/bin/env python3
"""Eight runs on two hosts, of which one loses its worker, or all it has, in the middle: the bits of the local pool.

The hosts are network namespaces of this machine with a link between them, each with a name, a /tmp and a /dev/shm of its own, a
Ray head on one and a Ray worker on the other; they share the folder of records and nothing else that is written.  Needs root,
iproute2 and util-linux, so it is run by hand:

    python bench/two_hosts.py          # SIGKILL to the process that trains on the second host
    python bench/two_hosts.py --host   # SIGKILL to everything on the second host

`--write` puts what came of both, one after the other, into bench/RESULTS.md.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SRC = Path(__file__).resolve().parents[1] / "src"
BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(SRC), str(BENCH)]

WORDS = ["run", "er+mkd", "--net.width", "8", "--per-class", "20", "--precision", "fp32", "--seeds", *"01234567"]
HEAD, WORKER = "10.77.0.1", "10.77.0.2"
ENV = os.environ | {
    "PYTHONPATH": str(SRC),
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(16),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_health_check_period_ms": "1000",  # so that a host that is gone is noticed in seconds
}
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
ONEPASS = [sys.executable, "-m", "onepass.cli"]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def host(name: str, address: str, *command: str) -> subprocess.Popen[bytes]:
    """A program that has a host of its own."""
    alone = f'hostname {name}; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /dev/shm; exec "$@"'
    words = ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "sh", "-c", alone, "sh", *command]
    return subprocess.Popen(words, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def pids(name: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return [int(p) for p in done.stdout.split()]


def training(name: str) -> list[int]:
    return [p for p in pids(name) if Path(f"/proc/{p}/cmdline").read_bytes().startswith(b"ray::er+mkd")]


def wait_for(what: object, condition: object, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            sys.exit(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", action="store_true", help="kill all that is on the second host")
    parser.add_argument("--write", action="store_true", help="do both, and replace this script's section of bench/RESULTS.md")
    args = parser.parse_args()
    if not args.write:
        on_two_hosts(args.host)
        return
    from step import Report, header, write

    report, rows = Report(), list[list[str]]()
    report.say(*header("python bench/two_hosts.py --write"), "")
    for kill_all, what in (False, "the process that trains there"), (True, "everything there"):
        rows.append([what, *on_two_hosts(kill_all)])
    head = (
        "SIGKILL on the second host to",
        "processes",
        "runs that ended",
        "taken up from a checkpoint",
        "same bits as the local pool",
        "wall, s",
    )
    report.table(head, rows)
    write("hosts", report.lines)


def on_two_hosts(kill_all: bool) -> list[str]:
    """Processes killed, runs that ended, those taken up, whether the bits are the same, seconds of the command on two hosts."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="onepass-hosts-") as shared:
        for name in "onepass-a", "onepass-b":
            ip("netns", "add", name)
        started: list[subprocess.Popen[bytes]] = []
        try:
            ip(
                "link",
                "add",
                "onepass-va",
                "netns",
                "onepass-a",
                "type",
                "veth",
                "peer",
                "name",
                "onepass-vb",
                "netns",
                "onepass-b",
            )
            for name, link, address in ("onepass-a", "onepass-va", HEAD), ("onepass-b", "onepass-vb", WORKER):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
            one = ["start", "--num-cpus", "1", "--block", "--object-store-memory", "100000000"]
            head = [*one, "--head", "--port", "6379", "--include-dashboard", "false", "--node-ip-address", HEAD]
            started.append(host("onepass-a", HEAD, *RAY, *head))
            time.sleep(8)
            started.append(host("onepass-b", WORKER, *RAY, *one, "--address", f"{HEAD}:6379", "--node-ip-address", WORKER))
            time.sleep(8)
            return run(kill_all, Path(shared), started[0].pid)
        finally:
            for process in started:
                os.killpg(process.pid, signal.SIGTERM)
            time.sleep(3)
            for name in "onepass-a", "onepass-b":
                for pid in pids(name):
                    os.kill(pid, signal.SIGKILL)
                ip("netns", "del", name)


def run(kill_all: bool, shared: Path, head: int) -> list[str]:
    """The command on the head, in all its namespaces; the kill; the same by the local pool; the comparison."""
    enter = ["nsenter", "--target", str(head), "--mount", "--uts", "--net", *ONEPASS, *WORDS]
    began = time.monotonic()
    driver = subprocess.Popen([*enter, "--engine", "ray", "--address", f"{HEAD}:6379", "--runs", str(shared / "ray")], env=ENV)
    wait_for("both hosts to train", lambda: training("onepass-a") and training("onepass-b"))
    wait_for("two checkpoints", lambda: len(list((shared / "ray").rglob("checkpoint.safetensors"))) >= 2)
    killed = pids("onepass-b") if kill_all else training("onepass-b")
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    print(f"killed {len(killed)} processes on the second host", flush=True)
    if driver.wait():
        sys.exit("the command on two hosts failed")
    wall = time.monotonic() - began
    subprocess.run([*ONEPASS, *WORDS, "--workers", "2", "--runs", str(shared / "pool")], env=ENV, check=True)
    return [str(len(killed)), *compare(shared), f"{wall:.0f}"]


def compare(shared: Path) -> list[str]:
    """What is not the same ends the script."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from onepass.record import records

    mine, theirs = records(shared / "ray"), records(shared / "pool")
    assert len(mine) == len(theirs) == 8
    for a, b in zip(mine, theirs, strict=True):
        assert a.done is not None and b.done is not None and a.done["summary"] == b.done["summary"]
        assert (a.path / "log.jsonl").read_bytes() == (b.path / "log.jsonl").read_bytes()
        weights, others = load_file(a.path / "model.safetensors"), load_file(b.path / "model.safetensors")
        assert all(torch.equal(weights[k], others[k]) for k in others)
        assert all(np.array_equal(v, b.results.arrays[k]) for k, v in a.results.arrays.items())
    again = sum(len(r.env.get("resumed", [])) for r in mine)
    print(f"eight runs, {again} taken up from a checkpoint: the same bits as the local pool's")
    return [str(len(mine)), str(again), "yes"]


if __name__ == "__main__":
    main()
