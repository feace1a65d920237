"""A run's log lines in MLflow, also while it is being written."""

from importlib import import_module
from pathlib import Path
from typing import Any

from onepass.adapters.lines import lines, open_record, settings, summary, values
from onepass.errors import Refused
from onepass.record import Record


def follow(
    run: Path | str | Record, experiment: str = "onepass", *, name: str | None = None, wait: bool = True, every: float = 2.0
) -> None:
    """Log what a run logs, by images seen, until the run ends; where to, MLflow's own settings say."""
    try:
        mlflow: Any = import_module("mlflow")
    except ImportError as error:
        raise Refused("`onepass.adapters.mlflow` needs MLflow: `pip install 'onepass[mlflow]'`.") from error
    record = open_record(run)
    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=name or f"{record.title} s{record.seed}"):
        mlflow.log_params(settings(record))
        step = 0
        for row in lines(record, wait=wait, every=every):
            step = int(row["samples"])
            mlflow.log_metrics({f"train/{k}": v for k, v in values(row).items()}, step=step)
        mlflow.log_metrics({f"end/{k}": v for k, v in summary(record).items()}, step=step)
