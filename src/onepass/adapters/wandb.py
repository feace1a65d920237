"""A run's log lines in Weights & Biases, also while it is being written."""

from importlib import import_module
from pathlib import Path
from typing import Any

from onepass.adapters.lines import lines, open_record, settings, summary, values
from onepass.errors import Refused
from onepass.record import Record


def follow(
    run: Path | str | Record,
    project: str = "onepass",
    *,
    name: str | None = None,
    mode: str | None = None,
    wait: bool = True,
    every: float = 2.0,
) -> None:
    """Send what a run logs, by images seen, until the run ends; `mode` is that of `wandb.init`: online, offline, disabled."""
    try:
        wandb: Any = import_module("wandb")
    except ImportError as error:
        raise Refused("`onepass.adapters.wandb` needs Weights & Biases: `pip install 'onepass[wandb]'`.") from error
    record = open_record(run)
    title = name or f"{record.title} s{record.seed}"
    there = wandb.init(project=project, name=title, config=settings(record), mode=mode)
    for row in lines(record, wait=wait, every=every):
        there.log({f"train/{k}": v for k, v in values(row).items()}, step=int(row["samples"]))
    there.summary.update({f"end/{k}": v for k, v in summary(record).items()})
    there.finish()
