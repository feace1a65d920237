"""What runs cost: units against the counted forwards of tests/test_budget.py, whole runs, and the pace of a machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_budget import ROWS, Row

import onepass.doctor
from onepass.config import Config
from onepass.data import source
from onepass.held_out import FirstTasks, LastTenth
from onepass.nets import ResNet18
from onepass.paper import cost
from onepass.paper.cost import Pace, left, looked_at, units, updates, wall, work
from onepass.recipes import recipe
from onepass.stream import Clear
from onepass.teachers import Frozen

CIFAR10, CIFAR100, DIGITS = source("cifar10"), source("cifar100"), source("digits")


@pytest.mark.parametrize("name", [name for name in ROWS if "first task" not in name and not name.startswith("ocm")])
def test_units_are_the_counted_forwards(name: str) -> None:
    row = ROWS[name]
    assert units(configured(row)) == row.units + sum(n for _, n in row.peeks)


def configured(row: Row) -> Config:
    return replace(recipe("er", CIFAR10), method=row.method, distill=row.distill, teacher=row.rule)


@pytest.mark.parametrize("name", ["ocm", "ocm+mkd"])
def test_ocm_is_cheaper_in_its_first_task_of_five(name: str) -> None:
    counted = (ROWS[f"{name}, first task"].units + 4 * ROWS[name].units) / 5
    assert units(configured(ROWS[name])) == pytest.approx(counted, rel=0.02)  # MKD's first task is counted as a later one


def test_updates_of_a_run() -> None:
    er = recipe("er", CIFAR100)
    assert updates(er) == 5000
    assert updates(replace(er, batch_size=50, updates=2)) == 2000
    assert updates(replace(er, limit=5000)) == 500
    assert updates(replace(er, stream=Clear(10, first_task_epochs=20), limit=100_000)) == 10_000
    assert updates(replace(er, held_out=LastTenth())) == 4500
    assert updates(replace(er, held_out=FirstTasks(2))) == 900
    taught = replace(recipe("er+snapshot-high", CIFAR100, tasks=2), teacher=Frozen(epochs=5))
    assert updates(taught) == 5000 + 5 * 2500  # its teacher's own run
    assert looked_at(er) == 10_000 * 5.5 and looked_at(recipe("er+mkd", CIFAR100)) == 3 * 10_000 * 5.5
    assert work(recipe("er", source("tiny-imagenet"))) == 4 * work(er)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, float]]:
    """A machine that does 1,000 units a second; and what was asked of it, with the budget of each."""
    asked: list[tuple[Config, float]] = []

    def seconds_per_update(config: Config, budget: float = 10.0) -> float:
        asked.append((config, budget))
        return work(config) / 1000

    monkeypatch.setattr(onepass.doctor, "seconds_per_update", seconds_per_update)
    return asked


def test_a_pace_is_measured_within_its_budget_remembered_and_extended(tmp_path: Path, machine: list[tuple[Config, float]]) -> None:
    er, mkd, ocm = (recipe(word, CIFAR10) for word in ("er", "er+mkd", "ocm"))
    pace = Pace(tmp_path / "cache" / "pace.json")
    assert pace.update(er, 2) is None and not pace.knows(er, 2) and wall([er], pace, 2, tmp_path) is None
    pace.measure([ocm, mkd, er, replace(er, seed=1)], 10.0, 2)
    assert [config.title for config, _ in machine] == ["er", "er+mkd"]  # a third one would take longer than there is
    assert sum(budget for _, budget in machine) <= 10.0
    again = Pace(tmp_path / "cache" / "pace.json")
    assert again.update(er, 2) == 0.222 and again.update(mkd, 2) == 0.518
    assert again.update(ocm, 2) == pytest.approx(units(ocm) / 1000)  # from er+mkd's
    assert again.run(er, 2) == pytest.approx(0.222 * 5000 + 10_000 * 3 / 1000)
    assert not again.knows(replace(er, net=ResNet18(width=20)), 2) and not again.knows(replace(er, precision="fp16"), 2)


def test_the_wall_clock_is_shared_by_workers_and_begun_runs_cost_what_is_left(
    tmp_path: Path, machine: list[tuple[Config, float]]
) -> None:
    configs = [replace(recipe("er", CIFAR10), seed=seed) for seed in range(3)]
    pace = Pace(tmp_path / "pace.json")
    pace.measure(configs, 1.0, 2)
    whole = pace.run(configs[0], 2)
    assert whole is not None and wall(configs, pace, 2, tmp_path) == pytest.approx(1.5 * whole)
    assert wall(configs[:1], pace, 2, tmp_path) == pytest.approx(whole)  # one run is not faster by having company
    folder = tmp_path / configs[0].folder
    folder.mkdir(parents=True)
    (folder / "stream.json").write_text(json.dumps({"length": 50_000}))
    (folder / "timing.jsonl").write_text('{"samples": 10000, "seconds": 1.0}\n{"samples": 40000, "seconds": 4.0}\n')
    assert left(tmp_path, configs[0]) == pytest.approx(0.2) and left(tmp_path, configs[1]) == 1.0
    (folder / "done.json").write_text("{}")  # finished, but wanted all the same: it lacks a probe
    assert left(tmp_path, configs[0]) == 1.0
    (folder / "done.json").unlink()
    (folder / "timing.jsonl").write_text("{half")
    assert left(tmp_path, configs[0]) == 1.0


def test_a_damaged_memory_of_the_pace_is_forgotten(tmp_path: Path, machine: list[tuple[Config, float]]) -> None:
    file = tmp_path / "pace.json"
    for text in "{half", "[1]", '{"a": 3}':
        file.write_text(text)
        pace = Pace(file)
        pace.measure([recipe("er", CIFAR10)], 1.0, 1)
        assert pace.update(recipe("er", CIFAR10), 1) == 0.222


def test_every_data_set_has_a_length() -> None:
    assert cost.LENGTHS.keys() == cost.SIZES.keys() and DIGITS.name in cost.LENGTHS
    data = DIGITS.load()
    assert cost.LENGTHS["digits"] == (len(data.train), len(data.test))
