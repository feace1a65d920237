"""A learnt network as a file for other programs: safetensors, torch.export or ONNX, from images in [0, 1] to logits."""

import io
import json
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from onepass.arrivals import Label, Shape
from onepass.config import build, to_json
from onepass.errors import Refused, unknown
from onepass.nets import Head, Net, Network
from onepass.record import aside
from onepass.seeds import Seeds
from onepass.stream import Spec

Format = Literal["safetensors", "torch.export", "onnx"]
NEEDS = {"onnx": ("onnx", "onnxscript")}


class Deployed(nn.Module):
    """A network in evaluation mode that shows the classes met: float images (n, c, h, w) in [0, 1] to logits (n, classes)."""

    def __init__(self, net: Net, classes: int):
        super().__init__()
        self.net, self.classes = deepcopy(net).cpu().float().requires_grad_(False), classes
        self.net.heads = nn.ModuleDict()  # a method's own, which learn and do not predict
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)[:, : self.classes]


def export(
    net: Net, labels: Sequence[Label], image: Shape, rule: tuple[Network, Head, int], path: Path | str, format: Format
) -> None:
    """Write a network with the labels of its outputs, the size of its images, and how to build it: network, head, width.

    safetensors    the weights, for `onepass.export.read`;
    torch.export   a program for `torch.export.load(path).module()`, its labels in the extra file `onepass.json`;
    onnx           a graph for any runtime, its labels among the model's properties, as JSON.
    """
    if format not in get_args(Format):
        raise unknown("format", format, get_args(Format))
    missing = [name for name in NEEDS.get(format, ()) if find_spec(name) is None]
    if missing:
        raise Refused(
            f"The format `{format}` needs {' and '.join(missing)}, not installed here: `pip install 'onepass[{format}]'`."
        )
    module, example = Deployed(net, len(labels)), torch.zeros(2, *image)
    about: dict[str, Any] = {"labels": list(labels), "image": image}
    if format == "safetensors":
        from safetensors.torch import save

        try:
            network, head, classes = rule
            about |= {"network": to_json(network), "head": to_json(head), "classes": classes}
        except Refused:
            about |= {"network": None}  # made by a function, which only its author has
        about |= {"mean": net.mean.flatten().tolist(), "std": net.std.flatten().tolist()} if net.normalised else {}
        weights = {k: v.clone(memory_format=torch.contiguous_format) for k, v in module.net.state_dict().items()}
        written = save(weights, {"onepass": json.dumps(about)})
    else:
        written = _traced(module, example, about, format)
    with aside(Path(path)) as file:
        file.write(written)


def _traced(module: Deployed, example: Tensor, about: Mapping[str, Any], format: Format) -> bytes:
    shapes = {"images": {0: torch.export.Dim("n")}}
    with _quietly():
        program = torch.export.export(module, (example,), dynamic_shapes=shapes)
        if format == "torch.export":
            file = io.BytesIO()
            torch.export.save(program, file, extra_files={"onepass.json": json.dumps(about)})
            return file.getvalue()
        graph: Any = torch.onnx.export(program, (), input_names=["images"], output_names=["logits"], dynamo=True, verbose=False)
        model = graph.model_proto
        model.metadata_props.add(key="onepass", value=json.dumps(about))
        return model.SerializeToString()


@contextmanager
def _quietly() -> Generator[None, None, None]:
    """Without what the exporters say of themselves."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def read(path: Path | str) -> tuple[nn.Module, list[Label]]:
    """The network of a file in the format safetensors, from images in [0, 1] to logits, and the labels of these."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = described(file.metadata(), "onepass")
            weights = {k: file.get_tensor(k) for k in file.keys()}
        labels, image = about["labels"], cast(Shape, tuple(about["image"]))
        network: Any = build(Network, about["network"], "network") if about["network"] else None
        if network is not None:
            core = network.build(Spec(about["classes"], image), _head(about["head"]), Seeds())
            net = Net(core, tuple(about.get("mean", ())), tuple(about.get("std", ())))
            net.load_state_dict(weights)
            return Deployed(net, len(labels)), labels
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Refused(
            f"`{path}` is not a network that onepass exported as safetensors ({_line(error)}); give one that is."
        ) from error
    raise Refused(f"`{path}` holds a network that a function of your own made; make it again, and load the weights by hand.")


def described(metadata: Mapping[str, str] | None, key: str) -> dict[str, Any]:
    """What a safetensors file says of itself under a key."""
    if key not in (metadata or {}):
        raise ValueError(f"it says nothing of `{key}`")
    return json.loads((metadata or {})[key])


def _head(tree: Mapping[str, Any]) -> Head:
    from onepass.nets import Cosine, Linear, UnitLinear

    kinds = {kind.__name__: kind for kind in (Linear, Cosine, UnitLinear)}
    return kinds[tree["is"]](**{k: v for k, v in tree.items() if k != "is"})


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
