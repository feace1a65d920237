"""One update: its batches, their views, and each network's forward of each view, at most once."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onepass.augment import Augment
from onepass.errors import Refused
from onepass.memory import Memory
from onepass.nets import Net, low_precision, predicting
from onepass.seeds import Seeds
from onepass.stream import Batch, Spec

Transform = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class View:
    """Images as a network sees them, float in [0, 1].  A view is itself: asked for twice, it is the same object."""

    name: str
    parts: tuple["View", ...]  # the views of the parts of a batch that was put together; none for an atom
    images: Tensor | None  # of an atom
    y: Tensor

    @property
    def atoms(self) -> tuple["View", ...]:
        return self.parts or (self,)

    @cached_property
    def x(self) -> Tensor:
        return self.images if self.images is not None else torch.cat([p.x for p in self.parts])

    def __len__(self) -> int:
        return len(self.y)


class Out:
    """What a network says of a view; `.features`, `.logits` and `.head(name)` are at least float32, whatever it ran in."""

    def __init__(self, forward: "Forward", hidden: Tensor, names: tuple[str, ...]):
        self._forward, self._hidden, self._names = forward, hidden, names
        self._heads: dict[str, Tensor] = {}

    @cached_property
    def features(self) -> Tensor:
        return _wide(self._hidden)

    @cached_property
    def logits(self) -> Tensor:
        return self._forward.apply("logits", self._forward.net.classifier, self._hidden, of=self._names)

    def head(self, name: str) -> Tensor:
        if name not in self._heads:
            self._heads[name] = self._forward.apply(name, self._forward.net.heads[name], self._hidden, of=self._names)
        return self._heads[name]


class Forward:
    """One network, for one step: forwards each view at most once, and records every launch in `calls`."""

    def __init__(self, name: str, net: Net, *, grad: bool, precision: str, seeds: Seeds, update: int):
        self.name, self.net, self.grad, self.precision = name, net, grad, precision
        self.seeds, self.update, self.open = seeds, update, True
        self.calls: list[tuple[str, ...]] = []  # what was launched together, for budgets and errors
        self.images: list[int] = []  # and how many images that was
        self.peeks: list[tuple[str, int]] = []  # looks without gradient, and their images
        self._hidden: dict[View, Tensor] = {}
        self._outs: dict[tuple[View, ...], Out] = {}

    def __call__(self, view: View) -> Out:
        return self.joint(view)[0]

    def joint(self, *views: View) -> tuple[Out, ...]:
        """Forward `views` as one batch: batch-norm sees them together."""
        atoms = tuple(dict.fromkeys(a for v in views for a in v.atoms))
        missing = [a for a in atoms if a not in self._hidden]
        if missing and len(missing) < len(atoms):
            raise RuntimeError(
                f"`{self.name}` was asked for {_names(atoms)} together, but {_names(a for a in atoms if a not in missing)} "
                f"went through batch-norm before, in {self.calls}; ask for the whole group at once, or for its parts alone."
            )
        if missing:
            x = missing[0].x if len(missing) == 1 else torch.cat([a.x for a in missing])
            x = x.contiguous(memory_format=torch.channels_last)
            names = tuple(a.name for a in missing)
            hidden = self.run(names, self.net.features, x)
            self.calls.append(names)
            self.images.append(len(x))
            self._hidden.update(zip(missing, hidden.split([len(a) for a in missing]), strict=True))
            self._outs[tuple(missing)] = Out(self, hidden, names)
        return tuple(self._out(v.atoms) for v in views)

    def peek(self, view: View, weights: Mapping[str, Tensor] | None = None, *, running: bool = False) -> Out:
        """A look without gradient that moves no running statistics: by the batch's, or in evaluation mode by the `running` ones;
        with other weights, if some are given.  It is no forward of the view, and every look is a new one."""
        copies = {k: b.clone() for k, b in self.net.named_buffers()}
        x = view.x.contiguous(memory_format=torch.channels_last)

        def look(x: Tensor) -> Tensor:
            with torch.no_grad(), predicting(self.net) if running else nullcontext():
                found = functional_call(_Parts(self.net), {f"net.{k}": v for k, v in {**copies, **(weights or {})}.items()}, (x,))
            parts.extend(found)
            return found[0]

        parts: list[Tensor] = []
        hidden = self.run((f"peek {view.name}",), look, x)
        self.peeks.append((view.name, len(x)))
        out = Out(self, hidden, (view.name,))
        out.__dict__["logits"] = _wide(parts[1])
        return out

    def apply(self, what: str, module: nn.Module, *inputs: Tensor, of: tuple[str, ...] = ()) -> Tensor:
        """A further part of the network, on what its body gave `of` some views."""
        return _wide(self.run((what, *of), module, *inputs))

    def run(self, names: tuple[str, ...], part: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Part of the network, in its precision.  What it draws (dropout) has a generator of its own."""
        if not self.open:
            raise RuntimeError(
                f"`{self.name}` was asked for {_names(names)} after the update, when its weights were others; ask for it in `loss`."
            )
        device = inputs[0].device
        with ExitStack() as stack:
            stack.enter_context(self.seeds.scope("net", self.update, self.name, names, device=device))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            stack.enter_context(low_precision(self.precision, device))
            return part(*inputs)

    def _out(self, atoms: tuple[View, ...]) -> Out:
        if atoms not in self._outs:
            self._outs[atoms] = Out(self, torch.cat([self._hidden[a] for a in atoms]), tuple(a.name for a in atoms))
        return self._outs[atoms]


class Step:
    """Everything a loss may look at.  Built anew for each update, closed when the loss is there.

    stream   the incoming rows; `replay`: rows of the memory, drawn on first use, unless a method assigns them before;
             `both`: replay + stream.
    seen     of each class, whether it was met so far, this batch included; `present`: whether it is in this batch;
             `new`: whether it was first met since the last boundary.  These three are on the host.
    task     how many task changes there were; `since`: batches since the last.  Like `new`, they need a rule.
    state    what changes over steps, filed under its owner: `step.state[self]["count"]`.
    """

    def __init__(
        self,
        *,
        spec: Spec,
        stream: Batch,
        memory: Memory,
        replay_size: int,
        student: Forward,
        teacher: Forward | None,
        nets: Mapping[str, Forward],
        state: Mapping[Any, dict[str, Tensor]],
        augment: Augment,
        full: Augment,
        alpha: float | None,
        ready: bool,
        seeds: Seeds,
        update: int,
        seen: Tensor,
        present: Tensor,
        new: Tensor,
        task: int,
        since: int,
        asks: Callable[[str], Refused] | None,
        dtype: torch.dtype = torch.float32,
    ):
        self.spec, self.stream, self.memory, self.replay_size, self.student = spec, stream, memory, replay_size, student
        self.state, self.augment, self.full = state, augment, full
        self.alpha, self.ready = alpha, ready  # the teacher's rate, if it has one; whether it has anything to teach
        self.seen, self.present = seen, present
        self._teacher, self._nets, self._seeds, self._update = teacher, nets, seeds, update
        self._new, self._task, self._since, self._asks = new, task, since, asks
        self._dtype = dtype
        self._replay: Batch | None = None
        self._both: Batch | None = None
        self._draws = 0
        self._views: dict[tuple[Any, ...], View] = {}
        self._pixels: dict[Batch, Tensor] = {}

    # -- batches --

    @property
    def replay(self) -> Batch:
        if self._replay is None:
            self._replay = self.memory.draw(self.replay_size, rng=self._random("draw", "replay"))
        return self._replay

    @replay.setter
    def replay(self, rows: Batch) -> None:
        if self._replay is not None:
            raise RuntimeError("`replay` was read or assigned before; a method that chooses its rows does so once, and first.")
        self._replay = rows

    @property
    def both(self) -> Batch:
        if self._both is None:
            self._both = self.replay + self.stream
        return self._both

    def draw(self, n: int, classes: Tensor | None = None, replace: bool = False) -> Batch:
        """A further draw from memory."""
        name = f"draw{self._draws}"
        self._draws += 1
        return self.memory.draw(n, rng=self._random("draw", name), classes=classes, replace=replace, name=name)

    # -- views --

    def raw(self, of: Batch | View, draw: str = "main") -> View:
        """The images as they are.  Another `draw` is another view, hence another forward, of the same pixels."""
        return self._view(of, ("raw", draw, None), lambda x, y, _: (x, y))

    def aug(self, of: Batch | View, draw: str = "main", using: Augment | None = None) -> View:
        """The images augmented.  Another `draw` is another augmentation."""
        rule = using or self.augment
        return self._view(of, ("aug", draw, rule), lambda x, y, name: (rule(x, self._random("view", name)), y))

    def view(self, of: Batch | View, fn: Transform) -> View:
        """Any other view, from images and labels to images and labels, without chance."""
        return self._view(of, ("view", "main", fn), lambda x, y, _: fn(x, y))

    def random(self, name: str) -> torch.Generator:
        """A generator for whatever else a method draws, on the host."""
        return self._random("own", name)

    def _random(self, purpose: str, name: str) -> torch.Generator:
        return self._seeds.torch(purpose, self._update, name)

    # -- networks --

    @property
    def teacher(self) -> Forward:
        if self._teacher is None:
            raise Refused("This step has no teacher; give the config one, e.g. `teacher=EMA(alpha=0.01)`.")
        return self._teacher

    def net(self, name: str) -> Forward:
        """One of the method's own teachers."""
        return self._nets[name]

    @property
    def forwards(self) -> list[Forward]:
        return [self.student, *([self._teacher] if self._teacher else []), *self._nets.values()]

    def close(self) -> None:
        """From here on the weights change: no forward may be asked for."""
        for forward in self.forwards:
            forward.open = False

    # -- tasks --

    @property
    def task(self) -> int:
        return self._ruled("which task this is", self._task)

    @property
    def since(self) -> int:
        return self._ruled("how long ago this task began", self._since)

    @property
    def new(self) -> Tensor:
        return self._ruled("which classes are new in this task", self._new)

    def _ruled(self, what: str, value: Any) -> Any:
        if self._asks is not None:
            raise self._asks(what)
        return value

    # -- how views are made --

    def _view(
        self, of: Batch | View, kind: tuple[str, str, Any], make: Callable[[Tensor, Tensor, str], tuple[Tensor, Tensor]]
    ) -> View:
        key = (of, *kind)
        if key not in self._views:
            what, draw, fn = kind
            label = getattr(fn, "__name__", what) if what == "view" else what
            name = f"{'' if draw == 'main' else draw + ':'}{label}({of.name})"
            if of.parts:
                parts = tuple(self._view(p, kind, make) for p in of.parts)
                view = View(name, parts, None, torch.cat([p.y for p in parts]))
            else:
                images, y = make(self._source(of), of.y, name)
                view = View(name, (), images, y)
            self._views[key] = view
        return self._views[key]

    def _source(self, of: Batch | View) -> Tensor:
        if isinstance(of, View):
            return of.x
        if of not in self._pixels:
            self._pixels[of] = of.x.to(self._dtype).div_(255)
        return self._pixels[of]


class _Parts(nn.Module):
    """A network asked for its features and its logits."""

    def __init__(self, net: Net):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net.parts(x)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _names(names: Any) -> str:
    return ", ".join(f"`{getattr(n, 'name', n)}`" for n in names)
