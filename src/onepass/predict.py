"""Classify image files with the network of a finished run."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from onepass.config import Config
from onepass.errors import Refused
from onepass.nets import build_net
from onepass.seeds import Seeds
from onepass.stream import Spec


def load_network(run: Path) -> tuple[nn.Module, Spec]:
    """The network of a finished run, in evaluation mode, and what its classes are."""
    from safetensors import SafetensorError, safe_open

    file = run / "model.safetensors"
    if not file.is_file():
        raise Refused(f"`{run}` has no `model.safetensors`: it is not a finished run. `onepass runs` lists those there are.")
    try:
        with safe_open(file, framework="pt") as opened:
            meta = opened.metadata()
            state = {k: opened.get_tensor(k) for k in opened.keys()}
        config, stream = Config.from_json(json.loads(meta["config"])), json.loads(meta["stream"])
    except (SafetensorError, KeyError, TypeError) as error:
        raise Refused(f"`{file}` is damaged or not of onepass ({error}); run that config again.") from error
    spec = Spec(
        classes=stream["classes"],
        image=tuple(stream["image"]),
        tasks=tuple(tuple(t) for t in stream["tasks"]),
        original=tuple(stream["original"]),
        names=tuple(stream["names"]),
    )
    method = config.method
    net = build_net(
        config.net,
        spec,
        classifier=method.classifier,
        heads=method.heads,
        mean=_values(state.get("mean")),  # kept with the weights: the data need not be here
        std=_values(state.get("std")),
        seeds=Seeds(),
    )
    try:
        net.load_state_dict(state)
    except RuntimeError as error:
        raise Refused(
            f"The weights in `{file}` are not those of `{config.net}`, which was changed since "
            f"({str(error).splitlines()[0]}); put it back as it was, or run that config again."
        ) from error
    return net.eval(), spec


def _values(buffer: Tensor | None) -> tuple[float, ...]:
    return () if buffer is None else tuple(buffer.flatten().tolist())


@torch.no_grad()
def classify(run: Path, paths: Sequence[Path], top: int = 1) -> Iterator[str]:
    """A line for each image: its path, then its likeliest classes with their probabilities."""
    files = [f for path in paths for f in (sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path])]
    net, spec = load_network(run)
    if not files:
        raise Refused(f"There is no image in {', '.join(f'`{path}`' for path in paths)}; give image files, or folders of them.")
    for file in files:
        image = read_image(file, spec.image).float() / 255
        probability = net(image[None]).float().softmax(1)[0]
        value, index = probability.topk(min(max(1, top), spec.classes))
        said = "  ".join(f"{spec.names[i]} {100 * v:.1f}%" for v, i in zip(value.tolist(), index.tolist(), strict=True))
        yield f"{file}  {said}"


def read_image(file: Path, shape: tuple[int, int, int]) -> Tensor:
    """An image file as uint8 (c, h, w), resized if it has another size."""
    from onepass.images import Unreadable, pixels

    channels, height, width = shape
    try:
        return torch.from_numpy(pixels(file, channels, (height, width)))
    except FileNotFoundError as error:
        raise Refused(f"There is no image `{file}`.") from error
    except Unreadable as error:
        raise Refused(f"`{file}` is not an image that can be read ({error}).") from error
