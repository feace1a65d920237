"""MKD in a Lightning module, as a callback that adds its loss before the backward pass."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from onepass.errors import Refused
from onepass.losses import mkd_loss
from onepass.teachers import EMA, Follower, Teacher, average

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise Refused("`onepass.adapters.lightning` needs Lightning: `pip install 'onepass[lightning]'`.") from error


class MKDCallback(Callback):
    """Momentum knowledge distillation in somebody's `training_step`: `Trainer(callbacks=[MKDCallback(net="model")])`.

    Whatever the network gives in a training step is distilled from a teacher that sees the same, and the term is added to the loss
    before its backward pass, automatic or manual; what the module logs is its own loss.  The teacher follows after each step of
    the optimiser, and is part of the checkpoint.

    net       the attribute of the module that is the network; "" is the module itself.
    logits    takes the logits from what the network gives, if it gives more.
    augment   None, or from a tensor of images to another view of them: the student sees both, the teacher this one (Algorithm 1).
    teacher   another than `EMA(alpha)`; it then needs a `weight` of its own.
    infer     whose weights validate, test and predict; the student's are put back afterwards.
    """

    def __init__(
        self,
        net: str = "",
        *,
        alpha: float = 0.01,
        weight: float | None = None,
        temperature: float = 4.0,
        logits: Callable[[Any], Tensor] | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
        teacher: Teacher | None = None,
        infer: Literal["student", "teacher", "average"] = "average",
    ):
        if infer not in ("student", "teacher", "average"):
            raise Refused(f"`infer={infer}` is not one of student, teacher, average.")
        if teacher is not None and weight is None:
            raise Refused("The weight is left to the law of alpha, but the teacher is one of your own; give a `weight`.")
        self.net, self.alpha, self.weight, self.temperature = net, alpha, weight, temperature
        self.logits, self.augment, self.infer = logits, augment, infer
        self.rule = teacher or EMA(alpha)
        self.follower: Follower | None = None
        self._state: Mapping[str, Tensor] | None = None  # of a checkpoint, until there is a follower to have it
        self._hook: Any = None
        self._batch: Any = None
        self._students: list[Any] = []  # what they gave in this step
        self._teachers: list[Any] = []
        self._steps = 0
        self._put_by: list[Tensor] = []  # the student's weights, while others predict

    def student(self, module: nn.Module) -> nn.Module:
        """The network that is trained."""
        found = getattr(module, self.net, None) if self.net else module
        if not isinstance(found, nn.Module):
            there = ", ".join(f"`{name}`" for name, _ in module.named_children()) or "none"
            raise Refused(f"`{type(module).__name__}` has no network `{self.net}`; there are: {there}.")
        return found

    def predictor(self, module: nn.Module) -> nn.Module:
        """The average of student and teacher: a copy, in evaluation mode."""
        return average(self.student(module), self._teacher)

    @property
    def _teacher(self) -> Follower:
        if self.follower is None:
            raise Refused("There is no teacher before `fit` has begun.")
        return self.follower

    # -- training --

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self.follower is None:
            self.follower = self.rule.follow(self.student(pl_module))
        if self._state is not None:
            self.follower.load_state_dict(self._state)
            self._state = None
        self._steps = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._forget()
        self._batch = batch
        # only while a training step runs: a copy of the module shall have no hook
        self._hook = self.student(pl_module).register_forward_hook(self._see, with_kwargs=True)

    def _see(self, net: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        whole_step = len(args) > 1 and args[0] is self._batch  # run in parallel, a training step is a forward of the module
        if whole_step or not torch.is_grad_enabled():
            return
        self._students.append(out)
        if self.augment is None:
            self._teachers.append(self._teacher(*args, **kwargs))
            return
        view = self.augment(args[0])
        hook, self._hook = self._hook, None
        hook.remove()
        self._students.append(net(view, *args[1:], **kwargs))
        self._teachers += 2 * [self._teacher(view, *args[1:], **kwargs)]
        self._hook = net.register_forward_hook(self._see, with_kwargs=True)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        if self._students and self._teacher.ready:
            seen = self._students, self._teachers
            term = mkd_loss(*seen, alpha=self.alpha, weight=self.weight, temperature=self.temperature, logits=self.logits)
            if pl_module.automatic_optimization:
                term = term / trainer.accumulate_grad_batches
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            loss.add_(term if scaler is None else scaler.scale(term))
        self._forget()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._forget()
        if trainer.global_step > self._steps:
            self._teacher.update(self.student(pl_module))
            self._steps = trainer.global_step

    def _forget(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._batch, self._students, self._teachers = None, None, [], []

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._forget()
        self._give_back(pl_module)

    # -- whose weights predict --

    @torch.no_grad()
    def _lend(self, module: nn.Module) -> None:
        if self.infer == "student" or self.follower is None or self._put_by:
            return
        self._put_by = [p.detach().clone() for p in self.student(module).parameters()]
        for mine, theirs in zip(self.student(module).parameters(), self.follower.net.parameters(), strict=True):
            mine.lerp_(theirs, 0.5) if self.infer == "average" else mine.copy_(theirs)

    @torch.no_grad()
    def _give_back(self, module: nn.Module) -> None:
        if self._put_by:
            for mine, kept in zip(self.student(module).parameters(), self._put_by, strict=True):
                mine.copy_(kept)
        self._put_by = []

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._lend(pl_module)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._give_back(pl_module)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._lend(pl_module)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._give_back(pl_module)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._lend(pl_module)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._give_back(pl_module)

    # -- the checkpoint --

    def state_dict(self) -> dict[str, Any]:
        return {} if self.follower is None else dict(self.follower.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = cast(Mapping[str, Tensor], state_dict) or None
        if self.follower is not None and self._state is not None:
            self.follower.load_state_dict(self._state)
            self._state = None
