"""A graph's updates are the eager ones: the same draws, losses and weights, whatever is captured and whatever is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from onepass.augment import Full
from onepass.boundaries import NewClass, Oracle
from onepass.contract import toy
from onepass.distill import MKD, SDP
from onepass.learner import Learner
from onepass.method import Method
from onepass.methods import METHODS
from onepass.methods.er import ER
from onepass.nets import ResNet18
from onepass.step import Step
from onepass.stream import Batch, Blurry, Clear, Spec
from onepass.teachers import EMA, HypoExponential, Snapshot

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
COMPANY: dict[str, dict[str, Any]] = {
    "alone": {},
    "mkd": {"teacher": EMA(0.2), "distill": MKD(), "infer": "average"},
    "sdp": {"teacher": HypoExponential(20.0), "distill": SDP(draw="sdp")},
    "debiased": {"teacher": EMA(0.2, start="debiased", buffers="average"), "distill": MKD()},
    "snapshot": {"teacher": Snapshot(), "distill": MKD(weight=1.0)},
}
CAPTURED = {"er", "derpp", "er-ace", "pcr"}  # the others decide on the host what comes next


def learner(method: Method, company: str, graph: bool, device: str = "cpu", **more: Any) -> Learner:
    return Learner(
        toy(Clear(2)).spec,
        method,
        **COMPANY[company],
        net=ResNet18(width=4),
        memory=32,
        replay_size=16,
        full=Full(),
        boundaries=Oracle(),
        precision="fp32",
        device=device,
        graph=graph,
        **more,
    )


def played(mine: Learner, stream: Clear | Blurry | None = None) -> Iterator[Tensor | None]:
    for batch in toy(stream or Clear(2)).batches(8):
        yield mine.observe(batch).get("loss")


PAIRS = [(name, company) for name in METHODS for company in (COMPANY if name in CAPTURED else ["mkd"])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "company"), PAIRS)
def test_every_update_is_the_eager_one(name: str, company: str, device: str) -> None:
    eager, graphed = (learner(METHODS[name](), company, graph, device) for graph in (False, True))
    for one, other in zip(played(eager), played(graphed), strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)
    mine, theirs = graphed.state_dict(), eager.state_dict()
    assert mine.keys() == theirs.keys()
    assert [k for k in theirs if not torch.equal(mine[k], theirs[k])] == []
    assert graphed.graphs is not None and graphed.graphs.updates == 40
    assert bool(graphed.graphs.replayed) == (name in CAPTURED), graphed.graphs.why
    assert bool(graphed.graphs.why) != (name in CAPTURED)


def test_most_updates_of_er_are_replayed() -> None:
    mine = learner(ER(), "mkd", True)
    list(played(mine))
    assert mine.graphs is not None
    # the first has nothing to replay and makes no plan; the memory is not larger than a draw for two; then patience, once
    assert mine.graphs.replayed >= 30


def test_a_shorter_batch_is_computed_as_if_there_were_no_graph() -> None:
    eager, graphed = learner(ER(), "mkd", False), learner(ER(), "mkd", True)
    stream = toy(Clear(2))
    sizes = [8] * 12 + [3] + [8] * 5
    start = 0
    for size in sizes:
        batch = next(stream.batches(size, start))
        start += size
        assert [v.item() for v in eager.observe(batch).values()] == [v.item() for v in graphed.observe(batch).values()]
    assert graphed.graphs is not None and graphed.graphs.replayed >= 8


def test_a_loss_that_was_kept_is_not_written_over() -> None:
    kept = [loss for loss in played(learner(ER(), "mkd", True)) if loss is not None]
    again = [loss.clone() for loss in played(learner(ER(), "mkd", False)) if loss is not None]
    assert torch.equal(torch.stack(kept), torch.stack(again))


@dataclass(frozen=True)
class Own(Method):
    """Puts a new tensor into its state, and reads it again."""

    def state(self, spec: Spec) -> dict[str, Tensor]:
        return {"scale": torch.ones(())}

    def loss(self, step: Step) -> Tensor | None:
        step.state[self]["scale"] = step.state[self]["scale"] * 1.01
        return step.state[self]["scale"] * step.student(step.aug(step.both)).logits.square().mean()


@dataclass(frozen=True)
class Sliced(Method):
    def loss(self, step: Step) -> Tensor | None:
        rows = step.stream + step.draw(8)[:4]
        return step.student(step.aug(rows)).logits.square().mean()


@pytest.mark.parametrize("method", [Own(), Sliced()])
def test_what_could_not_be_replayed_is_not(method: Method) -> None:
    eager, graphed = learner(method, "alone", False), learner(method, "alone", True)
    assert [v.item() for v in played(eager) if v is not None] == [v.item() for v in played(graphed) if v is not None]
    assert graphed.graphs is not None and graphed.graphs.replayed == 0 and graphed.graphs.why


def test_on_a_stream_without_known_tasks_too() -> None:
    found: list[list[float]] = []
    for graph in False, True:
        mine = learner(METHODS["er-ace"](), "mkd", graph)
        mine.boundaries = NewClass(lag=10)
        found.append([v.item() for v in played(mine, Blurry(2, 20.0)) if v is not None])
    assert found[0] == found[1]


# ---- nothing in the step waits for the device


@pytest.mark.parametrize("company", ["alone", "mkd", "sdp"])
@pytest.mark.parametrize("name", METHODS)
def test_no_step_reads_a_tensor_back(name: str, company: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA every wait is an error; elsewhere the calls that would wait there are counted."""
    device = DEVICES[-1]
    mine = learner(METHODS[name](), company, False, device)
    batches = [b for b in toy(Clear(2)).batches(8)]
    for batch in batches[:3]:
        mine.observe(batch)
    counted: list[str] = []

    def counting(method: str) -> Any:
        original = getattr(Tensor, method)

        def count(*arguments: Any, **named: Any) -> Any:
            counted.append(method)
            return original(*arguments, **named)

        return count

    if device == "cpu":
        for method in "item", "cpu", "tolist":
            monkeypatch.setattr(Tensor, method, counting(method))
        present = torch.zeros(4, dtype=torch.bool)
        present[batches[3].y] = True
        step = mine.step(Batch(batches[3].x, batches[3].y, name="stream"), present)
        assert mine.backward(step) is not None
        mine.scaler.step(mine.optimizer)
        for follower in mine.followers.values():
            follower.update(mine.student)
        mine.method.remember(step)
    else:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            mine.observe(batches[3])
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert counted == []
