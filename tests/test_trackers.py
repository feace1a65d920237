"""A run's log lines elsewhere: each once, while they are written too; TensorBoard itself, and stand-ins for the two others."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onepass.adapters import mlflow, tensorboard, wandb
from onepass.adapters.lines import lines, open_record, settings, summary, values
from onepass.errors import Refused
from onepass.record import Record


def row(i: int) -> str:
    return json.dumps({"samples": 10 * i, "updates": i, "loss": 1.0 / i, "kd": 2.0 * i}) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "digits-clear" / "er+mkd" / "m20" / "s3-abcdef01"
    path.mkdir(parents=True)
    tree = {"seed": 3, "memory": 20, "method": {"is": "ER"}, "teacher": {"is": "EMA", "alpha": 0.01}, "probes": [1, 2]}
    (path / "config.json").write_text(json.dumps({"identity": "abcdef01", "config": tree}))
    (path / "log.jsonl").write_text("".join(row(i) for i in range(1, 4)))
    return path


def end(run: Path) -> None:
    (run / "done.json").write_text(json.dumps({"summary": {"accuracy": 0.5, "forgetting": None}}))


# ---- the lines


def test_each_line_comes_once_and_then_the_end(run: Path) -> None:
    end(run)
    record = open_record(run)
    assert [r["updates"] for r in lines(record)] == [1, 2, 3]
    assert values(next(lines(record))) == {"loss": 1.0, "kd": 2.0}
    assert summary(record) == {"accuracy": 0.5}
    assert settings(record) == {
        "seed": 3, "memory": 20, "method.is": "ER", "teacher.is": "EMA", "teacher.alpha": 0.01, "probes": [1, 2],
    }  # fmt: skip


def test_without_waiting_it_is_what_is_there_but_no_half_line(run: Path) -> None:
    with open(run / "log.jsonl", "a") as file:
        file.write(row(4)[:-5])
    assert [r["updates"] for r in lines(Record(run), wait=False)] == [1, 2, 3]
    (run / "log.jsonl").unlink()
    assert list(lines(Record(run), wait=False)) == [] and summary(Record(run)) == {}


def test_lines_that_are_still_to_come_are_waited_for(run: Path) -> None:
    found: list[float] = []
    came = threading.Event()

    def read() -> None:
        for line in lines(Record(run), every=0.005):
            found.append(line["updates"])
            came.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert came.wait(10)
    for part in (row(4)[:7], row(4)[7:] + row(5)):
        with open(run / "log.jsonl", "a") as file:
            file.write(part)
    with open(run / "log.jsonl", "a") as file:
        file.write(row(6))
    end(run)
    thread.join(10)
    assert not thread.is_alive() and found == [1, 2, 3, 4, 5, 6]


def test_a_run_that_is_taken_up_again_does_not_say_its_lines_twice(run: Path) -> None:
    source = lines(Record(run), every=0.005)
    assert [next(source)["updates"] for _ in range(3)] == [1, 2, 3]
    (run / "log.jsonl").write_text(row(1))  # back to the checkpoint
    threading.Timer(0.05, lambda: [(run / "log.jsonl").write_text("".join(row(i) for i in range(1, 5))), end(run)]).start()
    assert [r["updates"] for r in source] == [4]


def test_lines_that_are_of_another_length_the_second_time_are_found_all_the_same(run: Path) -> None:
    source = lines(Record(run), every=0.005)
    assert [next(source)["updates"] for _ in range(3)] == [1, 2, 3]
    (run / "log.jsonl").write_text("".join(row(i).replace("loss", "a longer loss") for i in range(1, 6)))
    threading.Timer(0.05, lambda: end(run)).start()
    assert [r["updates"] for r in source] == [4, 5]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for follow in (tensorboard.follow, wandb.follow, mlflow.follow):
        try:
            follow(tmp_path)
        except Refused as error:
            assert "is no run: it has no `config.json`" in str(error) or "pip install" in str(error)
        else:
            raise AssertionError
    with pytest.raises(Refused, match="is no run: it has no `config.json`"):
        tensorboard.follow(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


# ---- where they go


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
@pytest.mark.parametrize("given", [False, True])
def test_tensorboard_has_every_value_at_its_image(run: Path, given: bool, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    end(run)
    place = tensorboard.follow(run, tmp_path / "logs" if given else None)
    assert place == (tmp_path / "logs" if given else run / "tensorboard")
    events = EventAccumulator(str(place))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["end/accuracy", "train/kd", "train/loss"]
    assert [(e.step, e.value) for e in events.Scalars("train/kd")] == [(10, 2.0), (20, 4.0), (30, 6.0)]
    assert [(e.step, e.value) for e in events.Scalars("end/accuracy")] == [(30, 0.5)]
    assert events.Tags()["tensors"] == ["config/text_summary"]


def test_weights_and_biases_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end(run)
    said: list[Any] = []
    there = SimpleNamespace(
        log=lambda values, step: said.append((step, values)),
        summary=SimpleNamespace(update=lambda values: said.append(values)),
        finish=lambda: said.append("finish"),
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **how: (said.append(how), there)[1]))
    wandb.follow(run, "mine", mode="offline")
    assert said[0] == {"project": "mine", "name": "er+mkd s3", "config": settings(Record(run)), "mode": "offline"}
    assert said[1] == (10, {"train/loss": 1.0, "train/kd": 2.0}) and len(said) == 6
    assert said[-2:] == [{"end/accuracy": 0.5}, "finish"]


def test_mlflow_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end(run)
    said: list[Any] = []

    class Running:
        def __enter__(self) -> None:
            said.append("start")

        def __exit__(self, *_: object) -> None:
            said.append("end")

    stand_in = SimpleNamespace(
        set_experiment=said.append,
        start_run=lambda run_name: (said.append(run_name), Running())[1],
        log_params=said.append,
        log_metrics=lambda values, step: said.append((step, values)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    mlflow.follow(run, "mine", name="this one")
    assert said[:4] == ["mine", "this one", "start", settings(Record(run))]
    assert said[4] == (10, {"train/loss": 1.0, "train/kd": 2.0})
    assert said[-2:] == [(30, {"end/accuracy": 0.5}), "end"]


@pytest.mark.parametrize(("adapter", "module"), [(tensorboard, "torch.utils.tensorboard"), (wandb, "wandb"), (mlflow, "mlflow")])
def test_what_is_not_installed_says_what_to_install(adapter: Any, module: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    name = adapter.__name__.rpartition(".")[2]
    with pytest.raises(Refused, match=rf"`onepass.adapters.{name}` needs .*`pip install 'onepass\[{name}\]'`"):
        adapter.follow(run)
