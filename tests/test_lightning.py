"""MKD in a Lightning module, by Lightning's own trainer, against the loop written out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from onepass.adapters.lightning import MKDCallback
from onepass.errors import Refused
from onepass.losses import mkd_loss
from onepass.teachers import EMA, Snapshot, average

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice, on workers and loggers


def small() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def rows(n: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(n, 1, 8, 8, generator=generator), torch.randint(5, (n,), generator=generator))


def loader(n: int = 24) -> DataLoader[Any]:
    return DataLoader(rows(n), batch_size=4)


class Somebodys(pl.LightningModule):
    """A module as people write them, which knows nothing of MKD."""

    def __init__(self, *, manual: bool = False, as_dict: bool = False, twice: bool = False, whole: bool = False):
        super().__init__()
        self.model = small()
        self.automatic_optimization = not manual
        self.as_dict, self.twice, self.whole = as_dict, twice, whole
        self.losses: list[float] = []
        self.predicted: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        z = self(x) if self.whole else self.model(x)
        loss = F.cross_entropy(z, y)
        if self.twice:
            loss = (loss + F.cross_entropy(self.model(x.flip(3)), y)) / 2
        self.losses.append(loss.item())
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss, "n": len(y)} if self.as_dict else loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.predicted.append(self.model(batch[0]))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.predicted.append(self.model(batch[0]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), lr=0.05)


def trainer(callback: MKDCallback | None, **more: Any) -> pl.Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    how: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "callbacks": [callback] if callback else [],
    }
    return pl.Trainer(**(quiet | how | more))


def by_hand(
    add: Callable[[nn.Module, nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    epochs: int = 1,
    every: int = 1,
    alpha: float = 0.1,
) -> tuple[nn.Module, nn.Module, list[float]]:
    """The same, as a loop; `add` gives the module's loss and what MKD adds."""
    model = small()
    teacher, losses = EMA(alpha).follow(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for i, (x, y) in enumerate(loader()):
            loss, term = add(model, teacher, x, y)
            ((loss + term) / every if every > 1 else loss + term).backward()
            losses.append(loss.item())
            if (i + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
                teacher.update(model)
    return model, teacher, losses


def plain(model: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = model(x)
    return F.cross_entropy(z, y), mkd_loss(z, teacher(x), alpha=0.1)


def close(mine: nn.Module, theirs: nn.Module, exactly: bool = True) -> None:
    for (name, a), (other, b) in zip(mine.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert name == other
        torch.testing.assert_close(a, b, rtol=0 if exactly else 1e-5, atol=0 if exactly else 1e-6)


@pytest.mark.parametrize("how", [{}, {"as_dict": True}, {"manual": True}, {"whole": True}])
def test_it_is_the_loop_written_out_bit_for_bit(how: dict[str, bool]) -> None:
    module, callback = Somebodys(**how), MKDCallback("" if how.get("whole") else "model", alpha=0.1)
    trainer(callback).fit(module, loader())
    model, teacher, losses = by_hand(plain)
    assert module.losses == losses, "what the module logs is its own"
    close(module.model, model)
    mine = callback.follower
    assert mine is not None and mine.updates == 6
    close(mine.net.model if how.get("whole") else mine.net, teacher.net)
    predictor = callback.predictor(module)
    close(predictor.model if how.get("whole") else predictor, average(model, teacher))
    assert not module.model._forward_hooks and not module._forward_hooks


def test_without_the_callback_it_is_another_loss_and_the_same_data() -> None:
    alone, with_it = Somebodys(), Somebodys()
    trainer(None).fit(alone, loader())
    trainer(MKDCallback("model", alpha=0.1)).fit(with_it, loader())
    assert alone.losses[0] == with_it.losses[0] and alone.losses[1:] != with_it.losses[1:]
    nothing = Somebodys()
    trainer(MKDCallback("model", weight=0.0)).fit(nothing, loader())
    assert nothing.losses == alone.losses
    close(nothing.model, alone.model)


def test_each_forward_of_a_step_is_distilled() -> None:
    def twice(model: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z, t = model(x), teacher(x)
        zf, tf = model(x.flip(3)), teacher(x.flip(3))
        return (F.cross_entropy(z, y) + F.cross_entropy(zf, y)) / 2, mkd_loss([z, zf], [t, tf], alpha=0.1)

    module = Somebodys(twice=True)
    trainer(MKDCallback("model", alpha=0.1)).fit(module, loader())
    close(module.model, by_hand(twice)[0], exactly=False)


def test_with_an_augmentation_it_is_algorithm_1() -> None:
    def two_views(model: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = model(x)
        xa = x.flip(2)
        return F.cross_entropy(z, y), mkd_loss([z, model(xa)], teacher(xa), alpha=0.1)

    module = Somebodys()
    trainer(MKDCallback("model", alpha=0.1, augment=lambda x: x.flip(2))).fit(module, loader())
    close(module.model, by_hand(two_views)[0], exactly=False)
    assert not module.model._forward_hooks


def test_gradients_that_are_accumulated_are_one_step_of_the_teacher() -> None:
    module, callback = Somebodys(), MKDCallback("model", alpha=0.1)
    trainer(callback, accumulate_grad_batches=3).fit(module, loader())
    model, teacher, _ = by_hand(plain, every=3)
    assert callback.follower is not None and callback.follower.updates == 2
    close(module.model, model, exactly=False)
    close(callback.follower.net, teacher.net, exactly=False)


@pytest.mark.parametrize("infer", ["average", "teacher", "student"])
def test_others_weights_validate_and_test_and_the_students_are_put_back(infer: Any) -> None:
    module, callback = Somebodys(), MKDCallback("model", alpha=0.1, infer=infer)
    player = trainer(callback, num_sanity_val_steps=0)
    player.fit(module, loader(), DataLoader(rows(8), batch_size=8))
    model, teacher, _ = by_hand(plain)
    close(module.model, model)
    other = {"average": average(model, teacher), "student": model}.get(infer)
    if other is None:
        other = small()
        other.load_state_dict(dict(model.state_dict()) | {k: v for k, v in teacher.net.named_parameters()})
    expected = other.eval()(rows(8).tensors[0])
    assert torch.equal(module.predicted[-1], expected)
    player.test(module, DataLoader(rows(8), batch_size=8), verbose=False)
    assert len(module.predicted) == 2
    torch.testing.assert_close(module.predicted[-1], expected)
    close(module.model, model)


def test_a_checkpoint_has_the_teacher_and_training_goes_on_from_it(tmp_path: Path) -> None:
    first = trainer(MKDCallback("model", alpha=0.1))
    first.fit(Somebodys(), loader())
    first.save_checkpoint(tmp_path / "there.ckpt")
    module, callback = Somebodys(), MKDCallback("model", alpha=0.1)
    trainer(callback, max_epochs=2).fit(module, loader(), ckpt_path=str(tmp_path / "there.ckpt"), weights_only=True)
    model, teacher, _ = by_hand(plain, epochs=2)
    close(module.model, model)
    assert callback.follower is not None and callback.follower.updates == 12
    close(callback.follower, teacher)


def test_several_outputs_and_low_precision() -> None:
    class Pair(Somebodys):
        def __init__(self) -> None:
            super().__init__(whole=True)

        def forward(self, x: Tensor) -> Any:
            return {"logits": self.model(x), "x": x}

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self(batch[0])["logits"], batch[1])
            self.losses.append(loss.item())
            return loss

    module, callback = Pair(), MKDCallback(alpha=0.1, logits=lambda out: out["logits"])
    trainer(callback).fit(module, loader())
    close(module.model, by_hand(plain)[0])
    low = Somebodys()
    trainer(MKDCallback("model", alpha=0.1), precision="bf16-mixed").fit(low, loader())
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in low.model.parameters())


def test_a_step_that_fails_leaves_no_hook() -> None:
    class Failing(Somebodys):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            super().training_step(batch, batch_idx)
            raise ZeroDivisionError

    module = Failing()
    with pytest.raises(ZeroDivisionError):
        trainer(MKDCallback("model")).fit(module, loader())
    assert not module.model._forward_hooks


def test_a_teacher_of_ones_own_teaches_when_it_is_ready() -> None:
    alone, module = Somebodys(), Somebodys()
    trainer(None).fit(alone, loader())
    trainer(MKDCallback("model", teacher=Snapshot(), weight=5.5)).fit(module, loader())
    close(module.model, alone.model)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="`Somebodys` has no network `net`; there are: `model`"):
        trainer(MKDCallback("net")).fit(Somebodys(), loader())
    with pytest.raises(Refused, match="`infer=nobody`"):
        MKDCallback(infer="nobody")  # pyright: ignore[reportArgumentType]
    with pytest.raises(Refused, match="give a `weight`"):
        MKDCallback(teacher=Snapshot())
    with pytest.raises(Refused, match="no teacher before `fit`"):
        MKDCallback("model").predictor(Somebodys())
    monkeypatch.delitem(sys.modules, "onepass.adapters.lightning")
    for name in "lightning.pytorch", "pytorch_lightning":
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Refused, match=r"needs Lightning: `pip install 'onepass\[lightning\]'`"):
        import onepass.adapters.lightning  # noqa: F401
