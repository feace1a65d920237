"""What runs on a CUDA device runs the same on the host; where there is none, the host alone is tried."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onepass.cli import main
from onepass.contract import toy
from onepass.distill import MKD
from onepass.learner import Adam, Learner
from onepass.methods import METHODS
from onepass.nets import ResNet18, repeatable
from onepass.record import records
from onepass.stream import Clear
from onepass.teachers import EMA

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TINY = ("--limit", "24", "--net.width", "2", "--per-class", "4", "--workers", "1", "--precision", "fp32")


def losses(name: str, device: str, precision: str) -> list[float]:
    stream = toy(Clear(2)).to(torch.device(device))
    mine = Learner(
        stream.spec,
        METHODS[name](),
        teacher=EMA(0.2),
        distill=MKD(),
        infer="average",
        net=ResNet18(width=4),
        optim=Adam(lr=1e-4),
        memory=32,
        replay_size=16,
        precision=precision,
        device=device,
    )
    found = [mine.observe(batch) for batch in stream.cut(64).batches(8)]
    return [float(f["loss"]) for f in found if f]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["er", "derpp", "er-ace", "dvc", "pcr"])
def test_a_device_gives_the_losses_of_the_host(name: str, device: str) -> None:
    """In float64, where neither rounding nor the order of a sum shows."""
    assert losses(name, device, "fp64") == pytest.approx(losses(name, "cpu", "fp64"), rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_device_gives_the_same_bits_twice(precision: str, device: str) -> None:
    assert losses("er", device, precision) == losses("er", device, precision)


@pytest.mark.parametrize("device", DEVICES)
def test_fp32_is_not_rounded_to_tf32(device: str) -> None:
    x, w = torch.randn(8, 64, 8, 8, device=device), torch.randn(64, 64, 3, 3, device=device)
    exact = torch.nn.functional.conv2d(x.double(), w.double())
    with repeatable(torch.device(device)):
        assert (torch.nn.functional.conv2d(x, w) - exact).abs().max() < 2e-4  # TF32 is off by ten times that


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("graph", [(), ("--graph",)])
def test_the_command_trains_on_a_device(
    device: str, graph: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    assert main(["run", "er", "er+mkd", *TINY, *graph, "--device", device, "--runs", str(root)]) == 0
    found = records(root)
    assert len(found) == 2 and all(r.env["device"].startswith(device) for r in found)
    assert all((r.done or {})["replayed_as_graphs"] is None or graph for r in found)


@pytest.mark.parametrize("device", DEVICES)
def test_runs_go_side_by_side_on_one_device(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "runs"
    words = [w for w in TINY if w not in ("--workers", "1")]
    assert main(["run", "er", *words, "--seeds", "0", "1", "--workers", "2", "--device", device, "--runs", str(root)]) == 0
    assert [r.done is not None for r in records(root)] == [True, True]


@pytest.mark.parametrize("device", DEVICES)
def test_a_learner_goes_on_after_a_save_with_the_same_bits(device: str) -> None:
    stream = toy(Clear(2)).to(torch.device(device))

    def fresh() -> Learner:
        return Learner(
            stream.spec, METHODS["er"](), teacher=EMA(0.2), distill=MKD(), net=ResNet18(width=4), memory=32,
            replay_size=16, precision="fp32", device=device, graph=True,
        )  # fmt: skip

    whole, first, second = fresh(), fresh(), fresh()
    for i, batch in enumerate(stream.cut(160).batches(8)):
        whole.observe(batch)
        if i == 10:
            second.load_state_dict({k: v.clone() for k, v in first.state_dict().items()})
        (second if i >= 10 else first).observe(batch)
    mine, theirs = second.state_dict(), whole.state_dict()
    assert [k for k in theirs if not torch.equal(mine[k], theirs[k])] == []
