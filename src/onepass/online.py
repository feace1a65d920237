"""A learner for applications: `learn` from any labelled images at any time, `predict` meanwhile, `save`, `load`, `export`."""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from onepass.__about__ import __version__
from onepass.arrivals import Label, Labels, Shape
from onepass.augment import Augment, Full, Partial
from onepass.boundaries import Boundaries
from onepass.checkup import Report, examine, parts
from onepass.config import build, to_json
from onepass.data import Dataset, Habits
from onepass.distill import Distiller
from onepass.errors import Refused, unknown
from onepass.export import Format, described, export
from onepass.given import check_lengths, images, labels
from onepass.learner import Infer, Learner, Optim, answers
from onepass.method import Method
from onepass.nets import Net, Network, ResNet18
from onepass.recipes import recipe
from onepass.record import aside
from onepass.seeds import Seeds
from onepass.stream import Batch, Spec
from onepass.teachers import EMA, Frozen, Teacher

LARGE = 65  # pixels from which on a network begins with a stem for large images


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a learner was made with, as its file keeps it."""

    image: Shape
    max_classes: int
    method: Method
    teacher: Teacher | None
    distill: Distiller | None
    infer: Infer
    boundaries: Boundaries | None
    net: Network
    optim: Optim
    memory: int
    batch_size: int
    replay_size: int
    augment: Augment
    full: Augment
    precision: Literal["auto", "fp64", "fp32", "bf16", "fp16"]
    seed: int

    def learner(self, device: str | torch.device) -> Learner:
        passed = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("image", "max_classes", "batch_size", "seed")
        }
        spec = Spec(self.max_classes, self.image, open=True)
        return Learner(spec, passed.pop("method"), device=device, seeds=Seeds(self.seed), **passed)


@dataclass(frozen=True)
class Published:
    """A network that no longer changes, with the labels of its outputs: what predictions are made by."""

    net: Net
    names: tuple[Label, ...]


class OnlineLearner:
    """Learns a classifier from labelled images as they come, in bounded memory.

        learner = OnlineLearner(image=(3, 64, 64))
        learner.learn(photos, ["cat", "dog", "cat"])
        learner.predict(others)

    One thread may learn while others predict: each prediction is made by a copy of the network as it was between two updates,
    in single precision, so that a loaded or exported network says the same.

    classes      the labels there may be, if they are known; else they are numbered as they come, at most `max_classes`.
    method       as the command line has it: `er+mkd`, `derpp`, `file.py:Class+mkd`, ...
    memory       images that are kept to be replayed, of all that have passed.
    image        channels, height and width of every image.
    net, optim, teacher, augment, boundaries   instead of the method's usual ones; a moving average is debiased, so that it is of
                 use from the first images on.
    batch_size   images that an update sees of what is learnt; `replay_size`: and of the memory.
    """

    def __init__(
        self,
        classes: Sequence[Label] | None = None,
        max_classes: int = 1000,
        method: str = "er+mkd",
        memory: int = 2000,
        image: Shape = (3, 32, 32),
        *,
        net: Network | None = None,
        optim: Optim | None = None,
        teacher: Teacher | None = None,
        augment: Augment | None = None,
        boundaries: Boundaries | None = None,
        batch_size: int = 10,
        replay_size: int = 64,
        precision: Literal["auto", "fp64", "fp32", "bf16", "fp16"] = "auto",
        device: str = "cpu",
        seed: int = 0,
    ):
        image = _shape(image)
        given = tuple(labels(classes)) if classes is not None else None
        if given is not None:
            max_classes = len(given)
            if len(Labels(max_classes, given)) < max_classes:
                raise Refused("One of the `classes` is named twice; name each once.")
        config = recipe(method, _Given(), memory=memory, stream="blurry", tasks=1, seed=seed, device=device)
        config = replace(config, batch_size=batch_size, replay_size=replay_size, precision=precision)
        if teacher is None and isinstance(config.teacher, EMA):
            teacher = replace(config.teacher, start="debiased")  # it is asked from the first images on
        config = replace(config, teacher=teacher or config.teacher)
        boundaries = boundaries or config.boundaries
        for part in config.method, config.teacher:
            reason = getattr(part, "needs_tasks", "")
            if isinstance(part, Frozen) or (reason and boundaries is None):
                raise Refused(
                    f"`{method}` cannot learn from a stream that does not say where tasks begin: {reason}. Take another, or give a "
                    "rule, e.g. `boundaries=NewClass(lag=100)`."
                )
        full = augment or config.data.habits.full
        self.setup = Setup(
            image=image,
            max_classes=max_classes,
            method=config.method,
            teacher=config.teacher,
            distill=config.distill,
            infer=config.infer,
            boundaries=boundaries,
            net=net or ResNet18(stem="large" if min(image[1:]) >= LARGE else "small"),
            optim=optim or config.optim,
            memory=memory,
            batch_size=batch_size,
            replay_size=replay_size,
            augment=augment or config.augment or full,
            full=full,
            precision=precision,
            seed=seed,
        )
        self._begin(given, (), device)

    def _begin(self, classes: tuple[Label, ...] | None, names: Sequence[Label], device: str) -> None:
        self.device = device
        self._classes = classes
        self._names = Labels(self.setup.max_classes, names)
        self._learner = self.setup.learner(device)
        self._lock = RLock()  # of all that changes; predictions need it not
        self._saving = Lock()  # two at once would write into one file, and the older might come last
        self._alone: bool | None = None  # whether the network can be trained on a single image; found out when one comes
        self._published: Published | None = None
        self._reported: Published | None = None

    # -- learning --

    def learn(self, x: Any, y: Any) -> None:
        """Learn from images and their labels, once, and remember some of them.

        If anything about them is refused, nothing is learnt.  Many are learnt from in parts, between which others may predict by
        what was learnt so far, and save.
        """
        rows, names = images(x, self.setup.image), labels(y)
        check_lengths(rows, names)
        if not len(rows):
            return
        many = -(-len(rows) // self.setup.batch_size)
        with self._lock:
            self._check(names)
            self._check_size(len(rows) // many)
        for some in np.array_split(np.arange(len(rows)), many):
            with self._lock:
                numbers = self._names.number(names[i] for i in some)
                _observe(self._learner, Batch(rows[torch.from_numpy(some)], numbers, name="stream"))
                self._publish()

    def partial_fit(self, X: Any, y: Any, classes: Sequence[Label] | None = None) -> "OnlineLearner":  # noqa: N803
        """`learn`, as scikit-learn calls it.  The `classes` there will be need not be said; if they are, they must fit."""
        if classes is not None:
            with self._lock:
                self._check(labels(classes))
        self.learn(X, y)
        return self

    def _check(self, names: Sequence[Label]) -> None:
        Labels(self.setup.max_classes, self._names.names).number(names)
        for name in names if self._classes is not None else ():
            if name not in cast(tuple[Label, ...], self._classes):
                raise unknown("class", str(name), [str(c) for c in cast(tuple[Label, ...], self._classes)])

    def _check_size(self, rows: int) -> None:
        """Batch-norm cannot normalise one value: on small images some networks and methods need two at a time."""
        if rows > 1:
            return
        if self._alone is None:
            trial = self.setup.learner("cpu")
            batch = Batch(torch.zeros(1, *self.setup.image, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), name="stream")
            try:
                for _ in range(2):
                    _observe(trial, batch)
                self._alone = True
            except ValueError:
                self._alone = False
        if not self._alone:
            raise Refused(
                f"`{type(self.setup.method).__name__}` shows its network what is learnt apart from what is replayed, and there "
                f"batch-norm cannot normalise a single image of {self.setup.image}; give two or more at a time, or take `er+mkd`."
            )

    def _publish(self) -> None:
        """Let what was learnt be predicted by: a copy takes the place of the last one, at once."""
        net = self._learner.network()
        if self.setup.infer != "average":  # which is a copy already
            net = deepcopy(net)
        net.requires_grad_(False).eval()
        numbers = [t for t in (*net.parameters(), *net.buffers()) if t.is_floating_point()]
        if not bool(torch.nn.utils.get_total_norm(numbers).isfinite()):
            raise Refused(
                "The weights are no longer numbers: it diverged. Predictions are those of before; load the last file, and take a "
                "smaller learning rate (`optim=Adam(lr=...)`)."
            )
        self._published = Published(cast(Net, net), tuple(self._names.names))

    # -- predicting --

    @property
    def classes_(self) -> list[Label]:
        """The labels of `predict_proba`'s columns: those declared, or those met so far, in this order."""
        return list(self._classes if self._classes is not None else self._names.names)

    @property
    def images_seen(self) -> int:
        return self._learner.clock.samples

    def predict(self, x: Any) -> np.ndarray:
        """The label of each image, (n,)."""
        logits, names = self._logits(x)
        found = [names[i] for i in logits.argmax(1).tolist()]
        return np.array(found, dtype=object if len({type(name) for name in names}) > 1 else None)

    def predict_proba(self, x: Any) -> np.ndarray:
        """The probability of each of `classes_` for each image, (n, classes); of one that has not been met, 0."""
        logits, names = self._logits(x)
        p = logits.double().softmax(1).numpy()
        if self._classes is None:
            return p
        out = np.zeros((len(p), len(self._classes)))
        out[:, [self._classes.index(name) for name in names]] = p
        return out

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """The share of images whose label is predicted."""
        rows, names = images(X, self.setup.image), labels(y)
        check_lengths(rows, names)
        if not names:
            raise Refused("There is no image to score; give one or more.")
        return float(np.mean([a == b for a, b in zip(self.predict(rows).tolist(), names, strict=True)]))

    def _now(self) -> Published:
        published = self._published
        if published is None:
            raise Refused("Nothing has been learnt yet, so there is nothing to tell apart; `learn` some images first.")
        return published

    def _logits(self, x: Any) -> tuple[Tensor, tuple[Label, ...]]:
        now, rows = self._now(), images(x, self.setup.image)
        if not len(rows):
            return torch.zeros(0, len(now.names)), now.names
        logits = answers(now.net, rows, "fp64" if self.setup.precision == "fp64" else "fp32", self._learner.device)
        return logits[:, : len(now.names)], now.names

    def report(self, fell: float = 0.1) -> Report:
        """Accuracy on the memory by class, drift since the last call, and the classes whose accuracy `fell` by this since."""
        with self._lock:  # all of one moment
            now, before, names = self._now(), self._reported, tuple(self._names.names)
            kept, seen = self._learner.memory.all(), self.images_seen
        rows, y = kept.x.cpu(), kept.y.cpu()
        found = [parts(p.net, rows, len(p.names)) if p is not None else None for p in (now, before)]
        self._reported = now
        assert found[0] is not None
        return examine(seen, y, names, found[0], found[1], len(before.names) if before else 0, fell)

    # -- files --

    def save(self, path: Path | str) -> None:
        """Everything there is to go on from, in one file of safetensors, written aside: killed, it leaves the old or the new."""
        from safetensors.torch import save

        with self._saving:
            with self._lock:
                state = {k: _plain(v) for k, v in self._learner.state_dict().items()}
                names = list(self._names.names)
            about = {"onepass": __version__, "setup": to_json(self.setup), "classes": self._classes, "names": names}
            with aside(Path(path)) as file:
                file.write(save(state, {"learner": json.dumps(about)}))

    @staticmethod
    def load(path: Path | str, device: str = "cpu") -> "OnlineLearner":
        """The learner that was saved, to predict and to go on."""
        from safetensors import SafetensorError, safe_open

        self = OnlineLearner.__new__(OnlineLearner)
        try:
            torch.ones(1, device=device)
        except Exception as error:  # each backend has its own
            raise Refused(f"`device={device}` cannot be computed on here ({error}); take cpu, cuda or cuda:0.") from error
        try:
            with safe_open(path, framework="pt") as file:
                about = described(file.metadata(), "learner")
                state = {k: file.get_tensor(k) for k in file.keys()}
            self.setup = build(Setup, about["setup"], "setup")
            classes = about["classes"]
            self._begin(None if classes is None else tuple(classes), about["names"], device)
            self._learner.load_state_dict(state)
            if self._names.names != about["names"] or len(self._names) != self._learner.classes:
                raise ValueError("its labels are not those of its network")
        except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
            said = str(error).partition("\n")[0]
            raise Refused(f"`{path}` is not a learner that was saved ({said}); give a file that `save` wrote.") from error
        if len(self._names):
            self._publish()
        return self

    def export(self, path: Path | str, format: Format = "safetensors") -> None:
        """The network that predicts, alone, as `safetensors`, `torch.export` or `onnx`; see `onepass.export`."""
        now, setup = self._now(), self.setup
        rule = (setup.net, setup.method.classifier, setup.max_classes)
        export(now.net, now.names, setup.image, rule, path, format)

    def __repr__(self) -> str:
        return f"OnlineLearner({len(self._names)} classes, {self.images_seen} images seen, {len(self._learner.memory)} kept)"


@dataclass(frozen=True)
class _Given:
    """Where the images of an application come from: there is nothing to load."""

    name = "given"
    habits = Habits(tasks=1, memory=2000, scale=500.0, full=Full(), partial=Partial())

    def load(self, folder: Path | None = None) -> Dataset:
        raise Refused("These images are given to `OnlineLearner.learn`, and nowhere to be loaded from.")


def _observe(learner: Learner, batch: Batch) -> None:
    """Learn from a batch.  A method that needs something to replay learns from the very first by replaying it."""
    first = not learner.clock.batches
    if not learner.observe(batch) and first:
        rows = batch.to(learner.device)
        learner.update(Batch(rows.x, rows.y, rows.extra, "stream"), learner.seen)


def _plain(tensor: Tensor) -> Tensor:
    """A copy on the host that shares nothing."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _shape(image: Any) -> Shape:
    if not isinstance(image, (tuple, list)) or len(cast(Any, image)) != 3 or not all(isinstance(n, int) and n > 0 for n in image):
        raise Refused(f"`image={image}` is no shape of an image; give (channels, height, width), e.g. (3, 32, 32).")
    return cast(Shape, tuple(cast(Any, image)))
