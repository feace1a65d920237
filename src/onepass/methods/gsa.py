"""GSA: per-class weights that even out how often the gradient has pulled a class up and pushed it down."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.method import Method
from onepass.step import Step
from onepass.stream import Batch, Spec


@dataclass(frozen=True)
class GSA(Method):
    """Gradient-based self-adaptive loss (Guo et al., 2023), as its released code has it:

    L = 2 mean over the mixed batch of -w_y ln p_y, p over the classes seen + CE over the current classes of the current batch.

    The current batch is the stream and 22 remembered images of the classes that are new in this task.  Of the mixed batch a
    share r comes from it and the rest from the memory of older classes; r is the share of new classes among those seen.
    With A_c the sum of 1 - p_c over past images of class c and N_c that of p_c over those of others,
    w_c = 2 / (1 + exp(1 - A_c / N_c)), and 1 in a task's first 5 batches.

    authors   the MKD authors' code: all classes of the task from its start, and remembered images drawn with replacement.
    """

    needs_tasks: ClassVar[str] = "it must know which classes belong to which task, and the paper leaves it out there"

    current_rows: int = 22
    patience: int = 5
    authors: bool = False

    def state(self, spec: Spec) -> dict[str, Tensor]:
        return {name: torch.zeros(spec.classes) for name in ("count", "positive", "negative")}

    def loss(self, step: Step) -> Tensor | None:
        new, seen = self.columns_of(step)
        if not len(step.memory):
            return None
        share = float(step.new.sum()) / float(step.seen.sum())  # class masks are on the host
        current = step.stream + step.draw(self.current_rows, classes=step.new, replace=self.authors)
        older = step.draw(int(step.replay_size * (1 - share)), classes=~step.new & step.seen, replace=self.authors)
        mixed = older + current[: int(step.replay_size * share)]
        loss = self.current_loss(step, current, new, seen)
        return loss + 2 * self.mixed_loss(step, mixed, seen) if len(mixed) else loss

    def columns_of(self, step: Step) -> tuple[int, int]:
        """The first column of the current task's classes, and the first beyond them: classes are numbered as they come."""
        met = int(step.seen.sum())
        if self.authors and step.task < len(step.spec.tasks):
            task = step.spec.tasks[step.task]
            if task == tuple(range(min(task), max(task) + 1)) and met <= max(task) + 1:  # so it is where tasks are clear
                return min(task), max(task) + 1
        return met - int(step.new.sum()), met

    def current_loss(self, step: Step, batch: Batch, new: int, seen: int) -> Tensor:
        """CE among the current classes.  Where tasks blur, images of older classes have no part in it."""
        logits = step.student(step.aug(batch)).logits[:, new:seen]
        target = torch.where(batch.y >= new, batch.y - new, -100)
        return F.cross_entropy(logits, target, ignore_index=-100, reduction="sum") / (target >= 0).sum().clamp(min=1)

    def mixed_loss(self, step: Step, batch: Batch, seen: int) -> Tensor:
        log_p = step.student(step.aug(batch)).logits[:, :seen].log_softmax(1)
        self.count(step.state[self], log_p.detach().exp(), batch.y)
        loss = F.nll_loss(log_p, batch.y, reduction="none")
        return (self.weights(step.state[self])[batch.y] * loss).mean() if step.since >= self.patience else loss.mean()

    def count(self, state: dict[str, Tensor], p: Tensor, y: Tensor) -> None:
        """Add these images to the sums."""
        mine = p.gather(1, y[:, None]).squeeze(1)
        own = torch.zeros(p.shape[1], dtype=p.dtype, device=p.device).index_add_(0, y, mine)
        state["count"].index_add_(0, y, torch.ones_like(mine, dtype=state["count"].dtype))
        state["positive"][: p.shape[1]] += own
        state["negative"][: p.shape[1]] += p.sum(0) - own

    def weights(self, state: dict[str, Tensor]) -> Tensor:
        ratio = (state["count"] - state["positive"]) / state["negative"].clamp(min=1e-12)
        return 2 / (1 + (1 - ratio).exp())
