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
Drawn = list[tuple[str, tuple[Any, ...], "Batch | View"]]
"""What a step has drawn and made, in this order: what it was asked for, with what, and what it gave."""


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
        return self._forward.shown(self._forward.apply("logits", self._forward.net.classifier, self._hidden, of=self._names))

    def head(self, name: str) -> Tensor:
        if name not in self._heads:
            self._heads[name] = self._forward.apply(name, self._forward.net.heads[name], self._hidden, of=self._names)
        return self._heads[name]


class Forward:
    """One network, for one step: forwards each view at most once, and records every launch in `calls`.

    Where only the first `classes` have been met, on an open stream, its logits are theirs alone.
    """

    def __init__(self, name: str, net: Net, *, grad: bool, precision: str, seeds: Seeds, update: int, classes: int | None = None):
        self.name, self.net, self.grad, self.precision, self.classes = name, net, grad, precision, classes
        self.seeds, self.update, self.open = seeds, update, True
        self.drew = False  # whether the network drew anything on a CUDA device (dropout), which a graph would not draw again
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

    def splits(self, view: View) -> bool:
        """Whether a part of the view went through before and another did not: then it cannot go through together."""
        return len({a in self._hidden for a in view.atoms}) > 1

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
        out.__dict__["logits"] = self.shown(_wide(parts[1]))
        return out

    def shown(self, logits: Tensor) -> Tensor:
        """Of the logits of all classes there may be, those of the classes met."""
        return logits if self.classes is None else logits[:, : self.classes]

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
        drawing = device if device.type == "cuda" and not torch.cuda.is_current_stream_capturing() else None
        with ExitStack() as stack:
            stack.enter_context(self.seeds.scope("net", self.update, self.name, names, device=drawing))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            stack.enter_context(low_precision(self.precision, device))
            before = _offset(drawing)
            try:
                out = part(*inputs)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise Refused(
                    f"{_names(names)} is one image by itself, and batch-norm cannot normalise it where the last map of "
                    f"`{self.name}` is a single pixel; take `batch_size`, `replay_size` and `memory` of at least 2, tasks of "
                    "more images, or `er`."
                ) from error
            self.drew |= _offset(drawing) != before
            return out

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
        mirror: "Mirror | None" = None,
    ):
        self.spec, self.stream, self._memory, self.replay_size, self.student = spec, stream, memory, replay_size, student
        self.state, self.augment, self.full = state, augment, full
        self.alpha = alpha  # the teacher's rate, if it has one
        self._facts = {"seen": seen, "present": present, "new": new, "task": task, "since": since, "ready": ready}
        self._teacher, self._nets, self._seeds, self._update = teacher, nets, seeds, update
        self._asks = asks
        self._dtype = dtype
        self._mirror = mirror or Mirror(stream.x.device)
        self._replay: Batch | None = None
        self._both: Batch | None = None
        self._draws: dict[str, Batch] = {}
        self._drawing = 0
        self._views: dict[tuple[Any, ...], View] = {}
        self._pixels: dict[Batch, Tensor] = {}
        self.drawn: Drawn = [("stream", (), stream)]
        self.asked: set[str] = {"seen"} if spec.open else set()  # what the loss wanted to know on the host
        self.obstacle = ""  # to doing the same again with other images

    # -- batches --

    @property
    def replay(self) -> Batch:
        if self._replay is None:
            self._replay = self._memory.draw(self.replay_size, rng=self._random("draw", "replay"))
            self.drawn.append(("replay", (), self._replay))
        return self._replay

    @replay.setter
    def replay(self, rows: Batch) -> None:
        if self._replay is not None:
            raise RuntimeError("`replay` was read or assigned before; a method that chooses its rows does so once, and first.")
        self._replay = rows
        self.obstacle = "it chooses what is replayed by what it has computed"

    @property
    def both(self) -> Batch:
        if self._both is None:
            self._both = self.replay + self.stream
            self.drawn.append(("both", (), self._both))
        return self._both

    def draw(self, n: int, classes: Tensor | None = None, replace: bool = False) -> Batch:
        """A further draw from memory."""
        name = f"draw{self._drawing}"
        self._drawing += 1
        if classes is not None:
            self.obstacle = "it draws rows of certain classes, of which there are more or fewer each time"
        if name not in self._draws:
            rng = self._random("draw", name)
            self._draws[name] = self._memory.draw(n, rng=rng, classes=classes, replace=replace, name=name)
            self.drawn.append(("draw", (n, replace), self._draws[name]))
        return self._draws[name]

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
        self.obstacle = "it draws numbers of its own on the host"
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
    def memory(self) -> Memory:
        self.asked.add("memory")
        return self._memory

    @property
    def ready(self) -> bool:
        """Whether the teacher has anything to teach yet."""
        return self._fact("ready")

    @property
    def seen(self) -> Tensor:
        return self._fact("seen")

    @property
    def present(self) -> Tensor:
        return self._fact("present")

    @property
    def task(self) -> int:
        return self._ruled("which task this is", "task")

    @property
    def since(self) -> int:
        return self._ruled("how long ago this task began", "since")

    @property
    def new(self) -> Tensor:
        return self._ruled("which classes are new in this task", "new")

    def there(self, mask: Tensor) -> Tensor:
        """A mask of the classes, made on the host, on the device."""
        return self._mirror(mask)

    @property
    def mirrored(self) -> list[Tensor]:
        """All masks that were ever asked for and are kept on the device."""
        return list(self._mirror.copies.values())

    def _ruled(self, what: str, name: str) -> Any:
        if self._asks is not None:
            raise self._asks(what)
        return self._fact(name)

    def _fact(self, name: str) -> Any:
        self.asked.add(name)
        return self._facts[name]

    # -- the same again, with other images --

    def answer(self, name: str) -> Any:
        """What the loss was told on the host, as something to compare."""
        value = len(self._memory) if name == "memory" else self._facts[name]
        return bytes(value.numpy()) if isinstance(value, Tensor) else value

    def draw_as(self, plan: Drawn) -> Drawn:
        """Draw and make what another step did, in its order; it is what this step would draw itself."""
        mine: dict[Any, Any] = {}
        for what, how, theirs in plan:
            if what == "stream":
                mine[theirs] = self.stream
            elif what == "replay":
                mine[theirs] = self.replay
            elif what == "both":
                mine[theirs] = self.both
            elif what == "draw":
                mine[theirs] = self.draw(how[0], replace=how[1])
            else:
                of, draw, fn = mine[how[0]], how[1], how[2]
                made = self.raw(of, draw) if what == "raw" else self.aug(of, draw, fn) if what == "aug" else self.view(of, fn)
                mine[theirs] = made
        self._drawing = 0  # they are drawn, and not yet handed out
        return self.drawn

    def fixed(self) -> Drawn:
        """A copy of all that was drawn and made, at addresses of its own."""
        mine: dict[Any, Any] = {}
        copies: Drawn = []
        for what, how, made in self.drawn:
            parts, y = tuple(mine[p] for p in made.parts), made.y.clone()
            if isinstance(made, Batch):
                extra = {k: v.clone() for k, v in made.extra.items()}
                copy: Batch | View = Batch(made.x.clone(), y, extra, made.name, parts)
            else:
                copy = View(made.name, parts, None if made.images is None else made.images.clone(), y)
                how = (mine[how[0]], *how[1:])
            mine[made] = copy
            copies.append((what, how, copy))
        return copies

    def give(self, drawn: Drawn) -> "Step":
        """Let this step, which has drawn nothing, have these batches and views."""
        for what, how, made in drawn:
            if isinstance(made, View):
                made.__dict__.pop("x", None)  # put together of parts that now hold other images
                self._views[(how[0], what, *how[1:])] = made
            elif what == "replay":
                self._replay = made
            elif what == "both":
                self._both = made
            elif what == "draw":
                self._draws[made.name] = made
        return self

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
            self.drawn.append((kind[0], (of, *kind[1:]), view))
            if of not in (made for _, _, made in self.drawn):
                self.obstacle = "it looks at rows that it put together itself"
        return self._views[key]

    def _source(self, of: Batch | View) -> Tensor:
        if isinstance(of, View):
            return of.x
        if of not in self._pixels:
            self._pixels[of] = of.x.to(self._dtype).div_(255)
        return self._pixels[of]


class Mirror:
    """Masks of the host, on the device: each is copied once, so that an update that asks for known ones alone can be captured."""

    def __init__(self, device: torch.device, most: int = 4096):
        self.device, self.most = device, most
        self.copies: dict[bytes, Tensor] = {}

    def __call__(self, mask: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return mask
        key = bytes(mask.numpy())
        copy = self.copies.pop(key, None)
        if copy is None:
            copy = mask.to(self.device, non_blocking=True)
        self.copies[key] = copy  # the last one asked for
        if len(self.copies) > self.most:
            del self.copies[next(iter(self.copies))]
        return copy


class _Parts(nn.Module):
    """A network asked for its features and its logits."""

    def __init__(self, net: Net):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net.parts(x)


def _offset(device: torch.device | None) -> int:
    """How far the device's global generator has gone."""
    if device is None:
        return 0
    return torch.cuda.default_generators[device.index].get_offset()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _names(names: Any) -> str:
    return ", ".join(f"`{getattr(n, 'name', n)}`" for n in names)
