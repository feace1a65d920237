"""What bench/step.py times against each other is the same computation: its loop written by hand has the learner's losses."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    spec = importlib.util.spec_from_file_location("bench_step", BENCH / "step.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_step", module)  # where dataclasses look for their own module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mkd", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_by_hand_is_ours(step: ModuleType, mkd: bool, precision: str) -> None:
    torch.manual_seed(0)
    assert step.deviation(4, mkd, precision, 3, split=True) <= step.SAME
