"""Networks: a full ResNet-18, linear and cosine classifiers, further heads, and how to bring a network of your own."""

import importlib.util
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.errors import Refused
from onepass.seeds import Seeds
from onepass.stream import Spec


class Core(Protocol):
    """What any network must have: `features(x) -> (n, d)` from images in [0, 1], and a `classifier` from these to logits."""

    classifier: nn.Module

    def features(self, x: Tensor) -> Tensor: ...


class Net(nn.Module):
    """A core between its normalisation, which comes first, and the further heads a method asks for."""

    mean: Tensor
    std: Tensor

    def __init__(self, core: nn.Module, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()):
        super().__init__()
        self.core, self.heads = core, nn.ModuleDict()
        self.normalised = bool(mean)
        if mean:
            self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
            self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def features(self, x: Tensor) -> Tensor:
        core = cast(Core, self.core)
        return core.features((x - self.mean) / self.std if self.normalised else x)

    @property
    def classifier(self) -> nn.Module:
        return cast(Core, self.core).classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits."""
        h = self.features(x)
        return h, self.classifier(h)


# -- what can be built on features: frozen descriptions ------------------------------------------------------------


class Head(Protocol):
    """A description of a module on top of the features."""

    def build(self, features: int, classes: int) -> nn.Module: ...


@dataclass(frozen=True)
class Linear:
    """Logits W h + b over all classes, from the start."""

    def build(self, features: int, classes: int) -> nn.Module:
        return nn.Linear(features, classes)


@dataclass(frozen=True)
class Cosine:
    """Logits cos(h, w_c) / temperature; its rows are the classes' proxies."""

    temperature: float = 0.09

    def build(self, features: int, classes: int) -> nn.Module:
        return CosineClassifier(features, classes, self.temperature)


@dataclass(frozen=True)
class UnitLinear:
    """Logits W h + b scaled to unit length, as the authors' DVC has them."""

    def build(self, features: int, classes: int) -> nn.Module:
        return UnitLinearClassifier(features, classes)


class UnitLinearClassifier(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.normalize(super().forward(input), dim=1)


class CosineClassifier(nn.Module):
    def __init__(self, features: int, classes: int, temperature: float):
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(features, classes, bias=False).weight.detach().clone())
        self.temperature = temperature

    def forward(self, h: Tensor) -> Tensor:
        h = h / (h.norm(dim=1, keepdim=True) + 1e-6)
        w = self.weight / (self.weight.norm(dim=1, keepdim=True) + 1e-6)
        return F.linear(h, w) / self.temperature


# -- networks: frozen descriptions ---------------------------------------------------------------------------------


class Network(Protocol):
    """A description of a core: how to build it for a stream."""

    def build(self, spec: Spec, classifier: Head, seeds: Seeds) -> nn.Module: ...


@dataclass(frozen=True)
class ResNet18:
    """The full ResNet-18 at any width and image size.

    stem  "small": 3x3, stride 1, no pooling, for images up to 64; "large": 7x7, stride 2, max-pooling.
    pool  "global" over the final map; "window": 4x4 windows, as the authors' code has it (the same on 32x32 images,
          four windows on 64x64, the top left corner alone on 224x224).
    """

    width: int = 64
    stem: Literal["small", "large"] = "small"
    pool: Literal["global", "window"] = "global"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise Refused(f"`width={self.width}` leaves no channels; take at least 1 (the paper's network has 64).")
        for name, known in ("stem", ("small", "large")), ("pool", ("global", "window")):
            if getattr(self, name) not in known:
                raise Refused(f"`{name}={getattr(self, name)}` is not one of {', '.join(known)}.")

    def build(self, spec: Spec, classifier: Head, seeds: Seeds) -> nn.Module:
        small = min(spec.image[1:]) if self.stem == "small" else -(-min(spec.image[1:]) // 4)
        if self.pool == "window" and -(-small // 8) < 4:
            raise Refused(
                f"`pool=window` needs a last map of 4x4, and images of {spec.image[1]}x{spec.image[2]} give a smaller one with the "
                f"{self.stem} stem; take `pool=global`."
            )
        with seeds.scope("weights", "backbone"):
            core = ResNetCore(spec.image[0], self)
        with seeds.scope("weights", "classifier"):
            core.classifier = classifier.build(features_of(core, spec.image), spec.classes)
        return core


class ResNetCore(nn.Module):
    classifier: nn.Module

    def __init__(self, channels: int, rule: ResNet18):
        super().__init__()
        w = rule.width
        kernel, stride = (3, 1) if rule.stem == "small" else (7, 2)
        self.conv = nn.Conv2d(channels, w, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(w)
        self.max_pool = nn.MaxPool2d(3, 2, 1) if rule.stem == "large" else nn.Identity()
        self.blocks = nn.Sequential(
            Block(w, w, 1), Block(w, w, 1),
            Block(w, 2 * w, 2), Block(2 * w, 2 * w, 1),
            Block(2 * w, 4 * w, 2), Block(4 * w, 4 * w, 1),
            Block(4 * w, 8 * w, 2), Block(8 * w, 8 * w, 1),
        )  # fmt: skip
        self.pool = rule.pool

    def features(self, x: Tensor) -> Tensor:
        h = self.blocks(self.max_pool(F.relu(self.norm(self.conv(x)), inplace=True)))
        return h.mean((2, 3)) if self.pool == "global" else F.avg_pool2d(h, 4).flatten(1)


class Block(nn.Module):
    """Two 3x3 convolutions and a way round them."""

    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.short = nn.Sequential()
        if stride != 1 or inside != out:
            self.short = nn.Sequential(Across(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(h)).add_(self.short(x)), inplace=True)


class Across(nn.Conv2d):
    """A convolution with a kernel of one pixel.

    Of few channels, oneDNN's gradient of a strided one writes past its buffer (its issue 6035: wrong numbers or a crash, from
    images of 56x56 on here), so the pixels are picked first: the same sum.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.is_cuda or self.in_channels >= 16:
            return super().forward(input)
        return F.conv2d(input[:, :, :: self.stride[0], :: self.stride[1]], self.weight)


@dataclass(frozen=True)
class Custom:
    """A network of your own: `build(classes, image)` in a Python file, or any function of these two.

    It returns a module with a method `features(x)`, from images in [0, 1] to (n, d), and an attribute `classifier`, a module
    from (n, d) to (n, classes).
    """

    build_from: str | Callable[[int, tuple[int, int, int]], nn.Module]

    def build(self, spec: Spec, classifier: Head, seeds: Seeds) -> nn.Module:
        make = load_object(self.build_from) if isinstance(self.build_from, str) else self.build_from
        if not callable(make):
            raise Refused(
                f"`{self.build_from}` is a `{type(make).__name__}`, not a function of (classes, image); name one that is."
            )
        with seeds.scope("weights", "backbone"):
            core = make(spec.classes, spec.image)
        if not isinstance(core, nn.Module) or not hasattr(core, "features") or not hasattr(core, "classifier"):
            raise Refused(
                f"`{self.build_from}` gave a `{type(core).__name__}` without `features` or `classifier`; return a torch module "
                "with a method `features(x)` giving (n, d) and a module `classifier` from these to logits."
            )
        width = features_of(core, spec.image)
        with seeds.scope("weights", "wanted"):
            wanted = type(classifier.build(width, spec.classes))
        if type(classifier) is not Linear and not isinstance(core.classifier, wanted):
            raise Refused(
                f"This method needs a `{type(classifier).__name__}` classifier and `{self.build_from}` has a "
                f"`{type(core.classifier).__name__}`; build `classifier` with `onepass.nets.{classifier}.build(features, classes)`."
            )
        with torch.no_grad(), predicting(core):
            logits = core.classifier(core.features(torch.zeros(2, *spec.image)))  # pyright: ignore[reportCallIssue]
        if logits.shape != (2, spec.classes):
            raise Refused(
                f"`{self.build_from}` gives logits of shape {tuple(logits.shape)} for 2 images, not (2, {spec.classes}); "
                f"its classifier must have the {spec.classes} outputs it was asked for."
            )
        return core


def build_net(
    network: Network,
    spec: Spec,
    *,
    classifier: Head,
    heads: Mapping[str, Head],
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    seeds: Seeds,
) -> Net:
    """The network of a method on a stream.  Backbone, classifier and each head have first weights of their own seeds."""
    net = Net(network.build(spec, classifier, seeds), mean, std)
    width = features_of(net.core, spec.image) if heads else 0
    for name, head in heads.items():
        with seeds.scope("weights", "head", name):
            net.heads[name] = head.build(width, spec.classes)
    return net


@torch.no_grad()
def features_of(core: nn.Module, image: tuple[int, int, int]) -> int:
    """How many features a core gives for an image of this shape, found by asking it."""
    with Seeds().scope("features"), predicting(core):
        h = cast(Core, core).features(torch.zeros(2, *image))
    if h.dim() != 2 or len(h) != 2:
        raise Refused(f"`features` gave a tensor of shape {tuple(h.shape)} for 2 images; it must give one vector for each.")
    return h.shape[1]


def load_object(where: str) -> Any:
    """The object `name` of a Python file, written `path/to/file.py:name`."""
    path, _, name = where.partition(":")
    if not path.endswith(".py") or not name:
        raise Refused(f"`{where}` is not of the form `file.py:name`; give a Python file and a name in it.")
    file = Path(path).resolve()
    if not file.is_file():
        raise Refused(f"There is no file `{path}` (looked for `{file}`).")
    where_from = blake2b(str(file).encode(), digest_size=4).hexdigest()  # two files may have one name
    spec = importlib.util.spec_from_file_location(f"onepass_user_{file.stem}_{where_from}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        sys.modules[module.__name__] = module  # where dataclasses look for their own module
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module.__name__]
        raise Refused(f"`{path}` could not be imported: {type(error).__name__}: {error}.") from error
    if not hasattr(module, name):
        raise Refused(f"`{path}` has no `{name}`.")
    found = getattr(module, name)
    if isinstance(found, type):
        found.__onepass_from__ = where  # pyright: ignore[reportAttributeAccessIssue]
    return found


# -- how a network runs -----------------------------------------------------------------------------------------------------

PRECISIONS = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """What `auto` means here: bf16 where the hardware multiplies in it, else fp32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        asks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
        native = device.type == "cpu" and any(ask() for ask in asks if ask is not None)
    return "bf16" if native else "fp32"


@contextmanager
def predicting(net: nn.Module) -> Generator[nn.Module, None, None]:
    """The network in evaluation mode, each of its modules put back as it was."""
    modes = [(m, m.training) for m in net.modules()]
    net.eval()
    try:
        yield net
    finally:
        for module, mode in modes:
            module.training = mode


def repeatable(device: torch.device) -> AbstractContextManager[Any]:
    """On CUDA: convolutions that give the same bits each time, and whose fp32 is fp32 (cuDNN's own default rounds to TF32)."""
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


def low_precision(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Where a network runs: its weights stay as they are, its multiplications are in `precision`."""
    return torch.autocast(device.type, PRECISIONS[precision], enabled=precision in ("bf16", "fp16"))
