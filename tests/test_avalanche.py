"""MKD as a plugin, in a stand-in for Avalanche's strategies: the documented order of their callbacks, and nothing more.

`bench/with_avalanche.py` holds the same against the library itself, which needs torchvision and is not installed here.
"""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.adapters.avalanche import MKDPlugin
from onepass.errors import Refused
from onepass.losses import mkd_loss
from onepass.teachers import EMA, Snapshot, average


def small(classes: int = 5) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


def batches(experience: int, n: int = 3) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(experience)
    return [
        [
            torch.rand(4, 1, 8, 8, generator=generator),
            torch.randint(5, (4,), generator=generator),
            torch.zeros(4, dtype=torch.int64),
        ]
        for _ in range(n)
    ]


class Strategy:
    """A strategy's loop: which callbacks there are, in which order, and what a plugin may read and set."""

    def __init__(self, plugins: list[Any], *, replays: bool = False, tasks: bool = False, growing: bool = False):
        self.model, self.plugins, self.replays, self.tasks, self.growing = small(), plugins, replays, tasks, growing
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.mbatch: Any = None
        self.mb_output: Any = None
        self.loss = torch.zeros(())
        self.replay_loader: Any = None
        self.losses: list[float] = []
        self.evaluated: list[nn.Module] = []

    @property
    def mb_x(self) -> Tensor:
        return self.mbatch[0]

    @property
    def mb_y(self) -> Tensor:
        return self.mbatch[1]

    def forward(self) -> Any:
        return self.model(self.mb_x, self.mbatch[2]) if self.tasks else self.model(self.mb_x)

    def call(self, event: str) -> None:
        for plugin in self.plugins:
            if hasattr(plugin, event):
                getattr(plugin, event)(self)

    def train(self, experience: int) -> None:
        self.model.train()
        if self.growing and experience:
            old = self.model[-1]
            self.model[-1] = nn.Linear(144, old.out_features + 2)
            with torch.no_grad():
                self.model[-1].weight[: old.out_features] = old.weight
                self.model[-1].bias[: old.out_features] = old.bias
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        if self.replays and experience:
            self.replay_loader = iter(batches(100 + experience))
        for event in "before_training", "before_training_exp", "before_training_epoch":
            self.call(event)
        for self.mbatch in batches(experience):
            self.call("before_training_iteration")
            self.optimizer.zero_grad()
            self.call("before_forward")
            self.mb_output = self.forward()
            if self.replay_loader is not None:
                self.mb_buffer_x, self.mb_buffer_y, self.mb_buffer_tid = next(self.replay_loader)
                self.mb_buffer_out = self.model(self.mb_buffer_x)
            self.call("after_forward")
            out = self.mb_output["logits"] if isinstance(self.mb_output, dict) else self.mb_output
            self.loss = F.cross_entropy(out, self.mb_y)
            if self.replay_loader is not None:
                self.loss = self.loss + F.cross_entropy(self.mb_buffer_out, self.mb_buffer_y)
            self.losses.append(self.loss.item())
            self.call("before_backward")
            self.loss.backward()
            self.call("after_backward")
            self.call("before_update")
            self.optimizer.step()
            self.call("after_update")
            self.call("after_training_iteration")
        for event in "after_training_epoch", "after_training_exp", "after_training":
            self.call(event)
        self.replay_loader = None

    @torch.no_grad()
    def eval(self) -> Tensor:
        student = self.model
        self.model.eval()
        self.call("before_eval")
        self.evaluated.append(self.model)
        found = self.model(batches(7)[0][0])
        self.call("after_eval")
        assert self.model is student
        self.model.train()
        return found


def by_hand(
    experiences: int, *, replays: bool = False, augment: Any = None, cross_entropy: bool = False
) -> tuple[nn.Module, nn.Module, list[float]]:
    model = small()
    teacher, losses = EMA(0.1).follow(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for experience in range(experiences):
        loader = iter(batches(100 + experience))
        for x, y, _ in batches(experience):
            seen = [(x, y, model(x))]
            if replays and experience:
                bx, by, _ = next(loader)
                seen.append((bx, by, model(bx)))
            loss = sum((F.cross_entropy(z, y) for _, y, z in seen), torch.zeros(()))
            losses.append(loss.item())
            students, teachers, asked = [], [], []
            for x, y, z in seen:
                students.append(z)
                if augment is not None:
                    x = augment(x)
                    z = model(x)
                    students.append(z)
                asked.append((z, y))
                teachers += [teacher(x)] * (1 if augment is None else 2)
            if cross_entropy:
                loss = loss + F.cross_entropy(torch.cat([z for z, _ in asked]), torch.cat([y for _, y in asked]))
            loss = loss + mkd_loss(students, teachers, alpha=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            teacher.update(model)
    return model, teacher, losses


def close(mine: nn.Module, theirs: nn.Module) -> None:
    for (name, a), (other, b) in zip(mine.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert name == other
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("cross_entropy", [False, True])
@pytest.mark.parametrize("augment", [None, lambda x: x.flip(3)])
def test_it_is_the_loop_written_out(replays: bool, cross_entropy: bool, augment: Any) -> None:
    """Where a strategy forwards what it replays apart from the stream, as ER-ACE does, both are distilled."""
    plugin = MKDPlugin(alpha=0.1, cross_entropy=cross_entropy, augment=augment)
    strategy = Strategy([plugin], replays=replays)
    for experience in range(2):
        strategy.train(experience)
    model, teacher, losses = by_hand(2, replays=replays, augment=augment, cross_entropy=cross_entropy)
    torch.testing.assert_close(strategy.losses, losses)
    close(strategy.model, model)
    assert plugin.follower is not None and plugin.follower.updates == 6
    close(plugin.follower, teacher)


def test_with_weight_zero_it_is_the_strategy_bit_for_bit() -> None:
    alone, with_it = Strategy([]), Strategy([MKDPlugin(weight=0.0, cross_entropy=False)])
    for strategy in alone, with_it:
        strategy.train(0)
        strategy.eval()
        strategy.train(1)
    assert alone.losses == with_it.losses
    assert all(
        torch.equal(a, b) for a, b in zip(alone.model.state_dict().values(), with_it.model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("infer", ["average", "teacher", "student"])
def test_another_is_evaluated_and_the_student_put_back(infer: Any) -> None:
    plugin = MKDPlugin(alpha=0.1, infer=infer)
    strategy = Strategy([plugin])
    before = strategy.eval()
    assert strategy.evaluated[-1] is strategy.model, "there is no teacher yet"
    strategy.train(0)
    kept = deepcopy(strategy.model.state_dict())
    found = strategy.eval()
    assert not torch.equal(found, before)
    assert all(torch.equal(a, b) for a, b in zip(kept.values(), strategy.model.state_dict().values(), strict=True))
    assert plugin.follower is not None
    other = {"student": strategy.model, "average": average(strategy.model, plugin.follower)}.get(infer, plugin.follower.net)
    close(strategy.evaluated[-1], other)
    assert (strategy.evaluated[-1] is strategy.model) == (infer == "student")


def test_the_teacher_grows_with_a_classifier_that_grows() -> None:
    plugin = MKDPlugin(alpha=0.1)
    strategy = Strategy([plugin], growing=True)
    strategy.train(0)
    assert plugin.follower is not None
    old = {k: v.clone() for k, v in plugin.follower.net.state_dict().items()}
    seen: dict[str, Tensor] = {}
    after = plugin.before_training_exp
    plugin.before_training_exp = lambda strategy, **_: (after(strategy), seen.update(deepcopy(plugin.follower.net.state_dict())))[0]  # type: ignore
    strategy.train(1)
    assert plugin.follower.net[-1].weight.shape == (7, 144) and plugin.follower.updates == 6
    assert torch.equal(seen["4.weight"][:5], old["4.weight"]) and torch.equal(seen["0.weight"], old["0.weight"])
    assert seen["4.weight"][5:].shape == (2, 144)
    assert strategy.eval().shape == (4, 7)


def test_task_labels_go_through_the_strategys_own_forward() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()
            self.asked: list[int] = []

        def forward(self, x: Tensor, task: Tensor) -> dict[str, Tensor]:
            self.asked.append(int(task.sum()))
            return {"logits": self.net(x)}

    plugin = MKDPlugin(alpha=0.1, cross_entropy=False, logits=lambda out: out["logits"])
    strategy = Strategy([plugin], tasks=True)
    strategy.model = Heads()
    strategy.optimizer = torch.optim.SGD(strategy.model.parameters(), lr=0.05)
    strategy.train(0)
    assert plugin.follower is not None and plugin.follower.net.asked == [0, 0, 0]
    close(strategy.model.net, by_hand(1)[0])


def test_a_teacher_that_is_not_ready_adds_nothing_of_its_own() -> None:
    alone, with_it = Strategy([]), Strategy([MKDPlugin(teacher=Snapshot(), weight=5.5, cross_entropy=False)])
    for strategy in alone, with_it:
        strategy.train(0)
    close(with_it.model, alone.model)
    for strategy in alone, with_it:
        strategy.train(1)
    assert not torch.equal(with_it.model[0].weight, alone.model[0].weight)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Refused, match="`infer=nobody`"):
        MKDPlugin(infer="nobody")  # pyright: ignore[reportArgumentType]
    with pytest.raises(Refused, match="give a `weight`"):
        MKDPlugin(teacher=Snapshot())
    with pytest.raises(Refused, match="no teacher before the first experience"):
        MKDPlugin().before_backward(SimpleNamespace(mbatch=None, mb_output=None))
