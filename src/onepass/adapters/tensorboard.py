"""A run's log lines in TensorBoard, also while it is being written."""

import json
from pathlib import Path

from onepass.adapters.lines import lines, open_record, summary, values
from onepass.errors import Refused
from onepass.record import Record


def follow(run: Path | str | Record, logdir: Path | str | None = None, *, wait: bool = True, every: float = 2.0) -> Path:
    """Write what a run logs as TensorBoard's events, by images seen, until the run ends; say where.

    By default they lie in the run's own folder, so that `tensorboard --logdir runs` shows all runs that were followed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise Refused("`onepass.adapters.tensorboard` needs TensorBoard: `pip install 'onepass[tensorboard]'`.") from error
    record = open_record(run)
    place = Path(logdir) if logdir is not None else record.path / "tensorboard"
    writer = SummaryWriter(str(place))
    writer.add_text("config", f"```\n{json.dumps(record.config, indent=1)}\n```")
    step = 0
    for row in lines(record, wait=wait, every=every):
        step = int(row["samples"])
        for name, value in values(row).items():
            writer.add_scalar(f"train/{name}", value, step)
        writer.flush()
    for name, value in summary(record).items():
        writer.add_scalar(f"end/{name}", value, step)
    writer.close()
    return place
