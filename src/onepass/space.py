"""What a search chooses from: names with their values, and the config that each point of them is."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Protocol, Union, get_args, get_origin

import numpy as np

from onepass.config import Config, build, leaves, with_fields
from onepass.distill import MKD
from onepass.errors import Refused, unknown
from onepass.losses import lambda_for

Value = str | int | float
Point = Mapping[str, Value]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, evenly on a linear or a logarithmic scale."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def near(self, value: float) -> float:
        """The value in four digits, so that a command can say it."""
        return min(max(float(f"{value:.4g}"), self.low), self.high)


Dimension = Range | tuple[Value, ...]


class Space(Protocol):
    """What is searched: names with their values, and the config that a point of them is."""

    @property
    def base(self) -> Config: ...
    @property
    def dimensions(self) -> Mapping[str, Dimension]: ...
    def asks(self, name: str, point: Point) -> bool:
        """Whether this has a say where those before it were chosen so."""
        ...

    def at(self, point: Point) -> Config: ...


@dataclass(frozen=True)
class Fields:
    """A space of fields.  One that only some choices have (SGD's momentum, among optimisers) is asked for with those alone."""

    base: Config
    dimensions: Mapping[str, Dimension]

    def asks(self, name: str, point: Point) -> bool:
        heads = {path: value for path, value in point.items() if name.startswith(f"{path}.")}
        values = self.dimensions[name]
        try:
            return not with_fields(self.base, heads | {name: values.low if isinstance(values, Range) else values[0]})[1]
        except Refused:  # it is there, and this value of it does not go with what is beside it
            return True

    def at(self, point: Point) -> Config:
        return with_fields(self.base, point)[0]


@dataclass(frozen=True)
class AroundTheLaw:
    """The teacher's rate alpha over its whole range, and the weight of distillation from half of the law's to twice that."""

    base: Config

    def __post_init__(self) -> None:
        if not isinstance(self.base.distill, MKD) or not hasattr(self.base.teacher, "alpha"):
            raise Refused(f"`{self.base.title}` has no alpha and lambda to search; take a method with MKD, e.g. er+mkd.")

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        return {"alpha": Range(1e-3, 0.3, log=True), "lambda/law": Range(0.5, 2.0, log=True)}

    def asks(self, name: str, point: Point) -> bool:
        return True

    def at(self, point: Point) -> Config:
        alpha = float(point["alpha"])
        weight = float(f"{float(point['lambda/law']) * lambda_for(alpha):.4g}")
        return with_fields(self.base, {"teacher.alpha": alpha, "distill.weight": weight})[0]


def fields(base: Config, words: list[str]) -> Fields:
    """The space of `optim.lr=log:1e-4:1e-1 optim=Adam,SGD`."""
    texts: dict[str, str] = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not text:
            raise Refused(f"`--space {word}` says no values; write FIELD=log:LO:HI, FIELD=lin:LO:HI or FIELD=a,b,c.")
        texts[path.replace("-", "_")] = text
    dimensions: dict[str, Dimension] = {}
    for path in sorted(texts, key=lambda path: path.count(".")):  # what an object is, before what is in it
        heads = [{head: v} for head, vs in dimensions.items() if path.startswith(f"{head}.") and isinstance(vs, tuple) for v in vs]
        bases = [with_fields(base, head)[0] for head in [dict[str, Value](), *heads]]
        hint = next((hint for config in bases for name, hint, _, _ in leaves(config) if name == path), None)
        if hint is None:
            raise unknown("field", path, {name for config in bases for name, _, _, _ in leaves(config)})
        dimensions[path] = values = _values(path, hint, texts[path])
        beside = [other for other in texts if other != path and other.rpartition(".")[0] == path.rpartition(".")[0] != ""]
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            build(hint, value, path)
            for config in bases if not beside else ():  # several of one object have to go together, and that is seen at each point
                with_fields(config, {path: value})
    return Fields(base, dimensions)


def _values(path: str, hint: Any, text: str) -> Dimension:
    kind, *numbers = text.split(":")
    return _range(path, _number(hint), text) if kind in ("log", "lin") and numbers else tuple(dict.fromkeys(text.split(",")))


def _number(hint: Any) -> type | None:
    args = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((a for a in args if a in (int, float)), None)


def _range(path: str, kind: type | None, text: str) -> Dimension:
    form = f"`--space {path}={text}`"
    if kind is None:
        raise Refused(f"{form} is a range of numbers, and `{path}` is none; list its values: {path}=a,b,c.")
    scale, *ends = text.split(":")
    if len(ends) not in (2, 3):
        raise Refused(f"{form} is not a range; write {scale}:LO:HI, or {scale}:LO:HI:POINTS.")
    low, high = (build(kind, end, path) for end in ends[:2])
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise Refused(f"{form} is empty: LO has to be below HI, and both have to be numbers.")
    if scale == "log" and low <= 0:
        raise Refused(f"{form} begins at {low}, which has no logarithm; take a LO above 0, or `lin:`.")
    if len(ends) == 2:
        return Range(low, high, scale == "log", kind is int)
    count = build(int, ends[2], f"{path}, points")
    if count < 2:
        raise Refused(f"{form} has {count} points; take at least 2.")
    spaced = np.geomspace(low, high, count) if scale == "log" else np.linspace(low, high, count)
    return tuple(dict.fromkeys(round(v) if kind is int else float(f"{v:.4g}") for v in spaced.tolist()))


def grid(space: Space) -> list[Point]:
    """Every point that makes sense, each config once."""
    found: list[Point] = [{}]
    for name, values in space.dimensions.items():
        if isinstance(values, Range):
            raise Refused(
                f"A grid has points, and `{name}` is a range without them; list its values ({name}=a,b,c), say how many "
                f"({'log' if values.log else 'lin'}:{values.low:g}:{values.high:g}:5), or take `--sampler tpe`."
            )
        found = [q for p in found for q in ([{**p, name: v} for v in values] if space.asks(name, p) else [p])]
    configs: dict[str, Point] = {}
    for point in found:
        try:
            configs.setdefault(space.at(point).identity, point)
        except ValueError:
            continue  # no such config: two values that do not go together
    return list(configs.values())
