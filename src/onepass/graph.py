"""Whole updates as CUDA graphs: what a step draws is made as ever, and what the device computes from it is replayed."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onepass.step import Drawn, Step
from onepass.stream import Batch

PATIENCE, MOST = 3, 16  # equal updates before one is captured; graphs kept

Backward = Callable[[Step], Tensor | None]


@dataclass(eq=False)
class Graph:
    """An update's batches and views at fixed addresses, and what computes loss and gradients from them."""

    drawn: Drawn
    run: Callable[[], tuple[Step, Tensor | None]]
    kept: list[Tensor]  # what else it reads, at addresses that must stay its own

    def __call__(self, drawn: Drawn) -> tuple[Step, Tensor | None]:
        for mine, new in zip(_tensors(self.drawn), _tensors(drawn), strict=True):
            mine.copy_(new, non_blocking=True)
        return self.run()


class Graphs:
    """Replays an update where one like it was captured: images of the same shapes, and the same answers to whatever the loss
    asked on the host (which classes are present, which task this is).  Others are computed as if this were not here.

    What comes from the host, every batch and every view, is drawn by the step itself, in the order in which the last update asked
    for it, so that no draw differs.  The optimiser and the followers, a few launches, are not captured: their rates may change.
    Without CUDA the captured function is called again, on the same fixed tensors: all of this but the capture.
    """

    def __init__(self, backward: Backward, again: Callable[[Step, Drawn], Step], parameters: list[Tensor], device: torch.device):
        self.backward, self.again, self.parameters, self.device = backward, again, parameters, device
        self.replayed, self.updates, self.why = 0, 0, ""
        self._plan: Drawn | None = None
        self._asked: frozenset[str] = frozenset()
        self._times: dict[Any, int] = {}
        self._graphs: dict[Any, Graph] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, step: Step) -> tuple[Step, Tensor | None]:
        """The gradients of an update are in place; its loss, and the step that has its outputs."""
        self.updates += 1
        key = None
        if self._plan is not None:
            key = self._key(step, step.draw_as(self._plan))
            if key in self._graphs:
                return self._replay(key, step)
            if self._times.get(key, 0) >= PATIENCE and len(self._graphs) < MOST:
                self._graphs[key] = self._captured(step)
                return self._replay(key, step)
        return step, self._eager(step, key)

    def _eager(self, step: Step, key: Any) -> Tensor | None:
        before = [id(t) for values in step.state.values() for t in values.values()]
        with self._aside():
            loss = self.backward(step)
        self.why = step.obstacle
        if any(forward.drew for forward in step.forwards):
            self.why = "its network draws numbers of its own (dropout)"
        if before != [id(t) for values in step.state.values() for t in values.values()]:
            self.why = "it puts new tensors into its state, where a graph knows those it was captured with"
        if loss is None or self.why:
            self._plan = None
            return loss
        plan, asked = step.drawn, frozenset(step.asked)
        if key is not None and asked == self._asked and _names(plan) == _names(self._plan):
            self._times[key] = self._times.get(key, 0) + 1
        self._plan, self._asked = plan, asked
        return loss

    def _key(self, step: Step, drawn: Drawn) -> Any:
        shapes = tuple((*t.shape, t.dtype) for t in _tensors(drawn))
        return _names(drawn), shapes, tuple((name, step.answer(name)) for name in sorted(self._asked))

    def _captured(self, step: Step) -> Graph:
        fixed = step.fixed()

        def compute() -> tuple[Step, Tensor | None]:
            mine = self.again(step, fixed)
            return mine, self.backward(mine)

        if self._stream is None:
            return Graph(fixed, compute, [])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            outcome = compute()
        gradients = [p.grad for p in self.parameters]

        def replay() -> tuple[Step, Tensor | None]:
            graph.replay()
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            return outcome

        return Graph(fixed, replay, list(step.mirrored))

    @contextmanager
    def _aside(self) -> Generator[None, None, None]:
        """On the stream on which graphs are captured: autograd keeps to the stream on which it first met a weight."""
        if self._stream is None:
            yield
            return
        here = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            yield
        here.wait_stream(self._stream)

    def _replay(self, key: Any, step: Step) -> tuple[Step, Tensor | None]:
        self.replayed += 1
        mine, loss = self._graphs[key](step.drawn)
        return mine, None if loss is None else loss.detach().clone()  # the next replay writes over it


def _names(drawn: Drawn | None) -> tuple[str, ...]:
    return tuple(made.name for _, _, made in drawn or [])


def _tensors(drawn: Drawn) -> list[Tensor]:
    found: list[Tensor] = []
    for _, _, made in drawn:
        if isinstance(made, Batch):
            found += [made.x, made.y, *(made.extra[k] for k in sorted(made.extra))]
        else:
            found += [made.y, *([] if made.images is None else [made.images])]
    return found
