"""A run as one frozen tree of values: its checks, its JSON, its flags and its identity."""

import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import torch

from onepass.__about__ import RESULTS_VERSION
from onepass.augment import Augment, Full, Normalised, Partial
from onepass.boundaries import Boundaries, NewClass, Oracle
from onepass.data import Source
from onepass.data.arrays import Arrays, Npz
from onepass.data.cifar import Cifar10, Cifar100
from onepass.data.digits import Digits
from onepass.data.folder import Folder
from onepass.data.imagenet100 import ImageNet100
from onepass.data.parquet import Parquet
from onepass.data.tiny_imagenet import TinyImageNet
from onepass.distill import ALGORITHM_1, EQUATION_3, MKD, SDP, SINGLE_VIEW, Distiller, Warm
from onepass.errors import Refused, unknown
from onepass.held_out import FirstTasks, HeldOut, LastTenth
from onepass.learner import SGD, Adam, Infer, Learner, Optim, check_parts
from onepass.method import Method
from onepass.methods import METHODS
from onepass.nets import PRECISIONS, Custom, Network, ResNet18, load_object, resolve_precision
from onepass.probes import NCM, Drift, MemoryFeatures, Predictions, Probe
from onepass.seeds import Seeds
from onepass.stream import ORDERS, Order, Spec
from onepass.teachers import EMA, Frozen, HypoExponential, Snapshot, Teacher

OUTSIDE = {"identity": False}  # metadata of a field that does not change what is computed


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a run depends on.  `run(config)` does it; `Config.from_json` and `to_json` keep it."""

    data: Source
    stream: Order
    method: Method
    teacher: Teacher | None = None
    distill: Distiller | None = None
    infer: Infer = "student"
    boundaries: Boundaries | None = None  # None: known where tasks are clear, and not to be asked about where they are not
    net: Network = ResNet18()
    optim: Optim = Adam()
    memory: int = 1000
    batch_size: int = 10
    replay_size: int = 64
    updates: int = 1  # of the network for each batch
    augment: Augment | None = None  # None: the data's full set
    full: Augment | None = None  # what "full" means; None: what it means for this data
    precision: Literal["auto", "fp64", "fp32", "bf16", "fp16"] = "auto"
    per_class: int | None = None  # training images of each class, the first of the data set; None: all
    limit: int | None = None  # images of the stream; None: all
    held_out: HeldOut | None = None  # training images to test on, for a choice; None: the test images
    seed: int = 0
    name: str = field(default="", metadata=OUTSIDE)  # as the command line calls it; "" is made from the classes
    device: str = field(default="cpu", metadata=OUTSIDE)
    graph: bool = field(default=False, metadata=OUTSIDE)  # on CUDA: replay updates as graphs, with the same losses
    probes: tuple[Probe, ...] = field(default=(Predictions(),), metadata=OUTSIDE)

    def __post_init__(self) -> None:
        for name in "memory", "batch_size", "replay_size", "updates", "per_class", "limit":
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Refused(f"`{name}={value}` leaves nothing to learn from; take at least 1.")
        if self.precision != "auto" and self.precision not in PRECISIONS:
            raise Refused(f"`precision={self.precision}` is not one of auto, {', '.join(PRECISIONS)}.")
        if not 0 <= self.seed < 2**32:
            raise Refused(f"`seed={self.seed}` is outside 0 to 2^32 - 1, the seeds numpy's shuffle takes.")
        if self.name in (".", "..") or any(c in self.name for c in "/\\\0"):
            raise Refused(f"`name={self.name}` is no name of a folder; leave out slashes, and do not call it `.` or `..`.")
        if self.device != "cpu":
            try:
                torch.ones(1, device=self.device).item()
            except Exception as error:  # each backend has its own
                raise Refused(f"`device={self.device}` cannot be computed on here ({error}); take cpu, cuda or cuda:0.") from error
        check_parts(self.teacher, self.distill, self.infer)

    @property
    def title(self) -> str:
        """A short name: the recipe's, or the classes'."""
        parts = [p for p in (self.method, self.distill, self.teacher) if p is not None]
        return self.name or "+".join(type(p).__name__.lower() for p in parts[:2])

    @property
    def place(self) -> str:
        """Where its record lies, below the folder of all runs, but for its identity: what a person calls it."""
        kind, _, where = self.data.name.partition(":")
        data = f"{kind}-{Path(where).resolve().stem}" if where else kind  # which of several of one name, the identity says
        setting = f"{data}-{type(self.stream).__name__.lower()}" + ("-held-out" if self.held_out else "")
        return f"{setting}/{self.title}/m{self.memory}/s{self.seed}"

    @property
    def folder(self) -> Path:
        """Where its record lies, below the folder of all runs."""
        return Path(f"{self.place}-{self.identity}")

    @property
    def identity(self) -> str:
        """Eight hex digits of everything that changes the results.  A field at its default has no part in it, so that a
        new field leaves old records where they are."""
        tree = {
            "results": RESULTS_VERSION,
            "precision": resolve_precision(self.precision, torch.device(self.device)),
            "config": {k: v for k, v in to_json(self, defaults=False).items() if k != "precision"},
            "sources": {str(text): sha256(_file_of(text).read_bytes()).hexdigest() for text in _files(to_json(self))},
        }
        return sha256(json.dumps(_canonical(tree), sort_keys=True).encode()).hexdigest()[:8]

    def learner(self, spec: Spec, *, sharp: bool) -> Learner:
        """A learner for a stream, as this config says."""
        for part in self.method, self.teacher:
            reason = getattr(part, "needs_tasks", "")
            if reason and not sharp and self.boundaries is None:
                raise Refused(
                    f"`{type(part).__name__}` cannot be run on a `{type(self.stream).__name__}` stream, which does not say where "
                    f"tasks begin: {reason}. Give it a rule, e.g. `boundaries=NewClass(lag=100)` (`--boundaries NewClass`), the "
                    "paper's for OCM."
                )
        habits = self.data.habits
        return Learner(
            spec,
            self.method,
            teacher=self.teacher,
            distill=self.distill,
            net=self.net,
            optim=self.optim,
            memory=self.memory,
            replay_size=self.replay_size,
            augment=self.augment or self.full or habits.full,
            full=self.full or habits.full,
            mean=habits.mean,
            std=habits.std,
            boundaries=self.boundaries or (Oracle() if sharp else None),
            updates=self.updates,
            infer=self.infer,
            precision=self.precision,
            device=self.device,
            graph=self.graph,
            seeds=Seeds(self.seed),
        )

    def to_json(self) -> dict[str, Any]:
        return to_json(self)

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> "Config":
        config = build(Config, dict(tree), "config")
        assert isinstance(config, Config)
        return config


FAMILIES: dict[Any, tuple[type, ...]] = {
    Source: (Digits, Cifar10, Cifar100, TinyImageNet, ImageNet100, Folder, Npz, Parquet, Arrays),
    Method: tuple(METHODS.values()),
    Teacher: (EMA, HypoExponential, Snapshot, Frozen),
    Distiller: (MKD, SDP, Warm),
    Boundaries: (Oracle, NewClass),
    HeldOut: (LastTenth, FirstTasks),
    Network: (ResNet18, Custom),
    Optim: (Adam, SGD),
    Augment: (Full, Partial, Normalised),
    Probe: (Predictions, NCM, Drift, MemoryFeatures),
}
"""The classes by which a field of each protocol may be named in JSON and on the command line."""

CONSTANTS = {"ALGORITHM_1": ALGORITHM_1, "EQUATION_3": EQUATION_3, "SINGLE_VIEW": SINGLE_VIEW}

# -- to JSON -------------------------------------------------------------------------------------------------------


def to_json(value: Any, *, defaults: bool = True) -> Any:
    """Dataclasses as objects with their class in `is`; without `defaults`, only what differs from a field's default."""
    if is_dataclass(value) and not isinstance(value, type):
        tree: dict[str, Any] = {} if isinstance(value, Config) else {"is": name_of(type(value))}
        for f in fields(value):
            item = getattr(value, f.name)
            if defaults or (f.metadata.get("identity", True) and not (f.default is not MISSING and item == f.default)):
                tree[f.name] = to_json(item, defaults=defaults)
        return tree
    if isinstance(value, tuple):
        return [to_json(v, defaults=defaults) for v in cast(tuple[Any, ...], value)]
    if isinstance(value, float) and not isfinite(value):
        raise Refused(f"`{value}` is no number that can be written down, so this config cannot be recorded; take a finite one.")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise Refused(f"`{value!r}` cannot be written down, so this config cannot be recorded; give it by name, e.g. `file.py:build`.")


def name_of(kind: type) -> str:
    """What a class is called in JSON and on the command line: its name, or `file.py:Name` for one of the user's."""
    return getattr(kind, "__onepass_from__", kind.__name__)


def _canonical(tree: Any) -> Any:
    """A JSON tree in which 500 and 500.0 are the same."""
    if isinstance(tree, dict):
        return {k: _canonical(v) for k, v in cast(dict[str, Any], tree).items()}
    if isinstance(tree, list):
        return [_canonical(v) for v in cast(list[Any], tree)]
    return float(tree) if isinstance(tree, int) and not isinstance(tree, bool) else tree


def _files(tree: Any) -> Iterator[str]:
    """Every `file.py:name` in a JSON tree."""
    if isinstance(tree, str) and ".py:" in tree:
        yield tree
    elif isinstance(tree, (dict, list)):
        for item in cast(Any, tree.values() if isinstance(tree, dict) else tree):
            yield from _files(item)


def _file_of(text: str) -> Path:
    file = Path(text.partition(":")[0])
    if not file.is_file():
        raise Refused(f"There is no file `{file}` (looked for `{file.resolve()}`).")
    return file


# -- from JSON, and from the text of a flag ------------------------------------------------------------------------


@cache
def hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def build(hint: Any, value: Any, path: str) -> Any:
    """A value of the hinted type from JSON or text; `path` is what errors call it."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _build_union(args, value, path)
    if origin is Literal:
        if value not in args:
            raise unknown(f"value of `{path}`", str(value), [str(a) for a in args])
        return value
    if origin is tuple:
        return _build_tuple(args, value, path)
    if hint is bool:
        if value in (True, False):
            return bool(value)
        if str(value).lower() in ("true", "yes", "1", "false", "no", "0"):
            return str(value).lower() in ("true", "yes", "1")
        raise _mistyped(path, value, "true or false")
    if hint in (int, float):
        try:
            if isinstance(value, bool) or (hint is int and isinstance(value, float) and not value.is_integer()):
                raise ValueError
            number = hint(value)
        except (TypeError, ValueError, OverflowError):
            raise _mistyped(path, value, "a whole number" if hint is int else "a number") from None
        if hint is float and not isfinite(number):
            raise _mistyped(path, value, "a finite number")
        return number
    if hint is str:
        if not isinstance(value, str):
            raise _mistyped(path, value, "text")
        return value
    return _build_object(hint, value, path)


def _build_union(args: tuple[Any, ...], value: Any, path: str) -> Any:
    if type(None) in args:
        if value is None or value == "none":
            return None
        args = tuple(a for a in args if a is not type(None))
    if len(args) == 1:
        return build(args[0], value, path)
    if all(is_dataclass(a) for a in args):
        return _build_object(args, value, path)
    return build(str if str in args else args[0], value, path)


def _build_tuple(args: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        try:
            value = (
                CONSTANTS[value]
                if value in CONSTANTS
                else json.loads(value)
                if value.startswith("[")
                else [v for v in value.split(",") if v]
            )
        except json.JSONDecodeError:
            raise _mistyped(path, value, "a JSON list") from None
    if not isinstance(value, (list, tuple)):
        raise _mistyped(path, value, "a list")
    items = list(cast(Any, value))
    if args[-1] is Ellipsis:
        return tuple(build(args[0], v, path) for v in items)
    if len(items) != len(args):
        raise _mistyped(path, value, f"{len(args)} values, separated by commas")
    return tuple(build(a, v, path) for a, v in zip(args, items, strict=True))


def _build_object(hint: Any, value: Any, path: str) -> Any:
    if hint is Config:
        kind: type = Config
        values: dict[str, Any] = dict(value)
    else:
        family = hint if isinstance(hint, tuple) else FAMILIES.get(hint, (hint,))
        known = {k.__name__: k for k in cast(tuple[type, ...], family)}
        if is_dataclass(value) and type(value) in known.values():
            return value
        if not isinstance(value, (str, dict)):
            raise _mistyped(path, value, f"one of {', '.join(known)}, by its name or as an object")
        values = {"is": value} if isinstance(value, str) else dict(cast(dict[str, Any], value))
        name = str(values.pop("is", next(iter(known)) if len(known) == 1 else ""))
        if name not in known and ".py:" not in name:
            raise unknown(f"`{path}`", name, known)
        kind = known[name] if name in known else load_class(name, hint)
    hints = hints_of(kind)
    names = [f.name for f in fields(kind)]
    for key in values:
        if key not in names:
            raise unknown(f"field of `{path}`", key, names)
    built = {k: build(hints[k], v, f"{path}.{k}" if path != "config" else k) for k, v in values.items()}
    missing = [f.name for f in fields(kind) if f.name not in built and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise Refused(f"`{path}` has no `{missing[0]}`, which has no default in `{name_of(kind)}`; give it one.")
    return _made(lambda: kind(**built))


def load_class(where: str, family: Any) -> type:
    """A class of the user's, `file.py:Name`: a dataclass that can be what it is used as."""
    kind = load_object(where)
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise Refused(f"`{where}` is not a dataclass; write `@dataclass(frozen=True)` above it.")
    if family is Method and not issubclass(kind, Method):
        raise Refused(f"`{where}` is not a method; derive it from `onepass.Method`.")
    wanting = sorted(getattr(kind, "__abstractmethods__", ()))
    if wanting:
        raise Refused(f"`{where}` has no `{wanting[0]}`, which every {family.__name__.lower()} must have; write one.")
    if kind.__hash__ is None:
        raise Refused(f"`{where}` is not frozen, and its state is filed under it; write `@dataclass(frozen=True)` above it.")
    return kind


def _made(make: Callable[[], Any]) -> Any:
    """A value of which the inner ring, which knows no `Refused`, may say that it makes no sense."""
    try:
        return make()
    except Refused:
        raise
    except ValueError as error:
        raise Refused(str(error)) from error


def _mistyped(path: str, value: Any, wanted: str) -> Refused:
    return Refused(f"`{path}={value}` is not {wanted}.")


# -- fields as flags -----------------------------------------------------------------------------------------------


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any, Field[Any], Any]]:
    """Every field of the tree as (path, hint, field, value), objects before what is in them."""
    for f in fields(value):
        item, hint = getattr(value, f.name), hints_of(type(value))[f.name]
        yield prefix + f.name, hint, f, item
        if is_dataclass(item) and not isinstance(item, type):
            yield from leaves(item, f"{prefix}{f.name}.")


def with_fields(config: Config, given: Mapping[str, Any]) -> tuple[Config, set[str]]:
    """The config with several fields set, from JSON or text, in whatever order they are given; and the fields it has not."""
    tree = to_json(config)
    missing = {path for path in sorted(given, key=lambda p: p.count(".")) if not _set(Config, tree, path, given[path], path)}
    return Config.from_json(tree), missing


def with_source_fields(source: Source, given: Mapping[str, Any]) -> Source:
    """The data with those of its own fields set that are given, as `data.size`: a recipe starts from them."""
    tree = to_json(source)
    own = {path: value for path, value in given.items() if path.startswith("data.")}
    set_ = [_set(type(source), tree, path.removeprefix("data."), value, path) for path, value in own.items()]
    return build(Source, tree, "data") if any(set_) else source


def with_field(config: Config, path: str, given: Any) -> Config:
    """The config with one field set, from JSON or text."""
    changed, missing = with_fields(config, {path: given})
    if missing:
        raise unknown("field", path, (p for p, _, _, _ in leaves(config)))
    return changed


def changes(before: Config, after: Config) -> dict[str, str] | None:
    """The fields, and their texts, by which `with_fields` makes `after` of `before`; None: flags cannot say it."""
    heads: dict[str, str] = {}
    texts: dict[str, str] = {}
    try:
        there = {path: value for path, _, _, value in leaves(before)}
        for path, hint, _, value in leaves(after):
            if is_dataclass(value) and not isinstance(value, type):
                if type(there.get(path)) is not type(value):
                    heads[path] = name_of(type(value))
                    made = build(hint, heads[path], path)
                    there |= {f"{path}.{inner}": v for inner, _, _, v in leaves(made)}
            elif there[path] != value:
                texts[path] = text_of(value)
        return heads | texts if with_fields(before, heads | texts)[0] == after else None
    except Refused:
        return None


def text_of(value: Any) -> str:
    """A value as a flag says it."""
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        plain = all(isinstance(v, (int, float, str)) for v in items)
        return ",".join(text_of(v) for v in items) if plain else json.dumps(to_json(items), separators=(",", ":"))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _set(kind: type, tree: dict[str, Any], path: str, given: Any, whole: str) -> bool:
    head, _, rest = path.partition(".")
    if head not in (f.name for f in fields(kind)):
        return False
    if rest:
        inner = tree[head]
        return isinstance(inner, dict) and _set(_named(inner["is"]), cast(dict[str, Any], inner), rest, given, whole)
    there = tree[head]
    if not (isinstance(there, dict) and cast(dict[str, Any], there)["is"] == given):  # naming what is there changes nothing of it
        tree[head] = to_json(build(hints_of(kind)[head], given, whole))
    return True


def _named(name: str) -> type:
    if ".py:" in name:
        return load_class(name, None)
    return next(k for family in (*FAMILIES.values(), tuple(ORDERS.values())) for k in family if k.__name__ == name)
