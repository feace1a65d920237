"""Hyper-parameters, once, with their source: the defaults (the paper's text) and the published (what its code ran)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from onepass.config import Config
from onepass.data import Source
from onepass.distill import MKD
from onepass.errors import Refused, unknown
from onepass.learner import Adam
from onepass.methods.er import ER
from onepass.nets import ResNet18
from onepass.probes import Predictions
from onepass.stream import Blurry, Clear
from onepass.teachers import EMA

Family = Literal["default", "published"]
Setting = Literal["clear", "blurry"]


def recipe(
    word: str,
    data: Source,
    *,
    memory: int | None = None,
    stream: Setting = "clear",
    tasks: int | None = None,
    family: Family = "default",
    seed: int = 0,
    device: str = "cpu",
) -> Config:
    """The config of `er`, `er+mkd`, ... on a data set: a method's recipe, then what its suffix adds."""
    base, *suffixes = word.split("+")
    if base not in METHODS:
        raise unknown("method", base, METHODS, SUFFIX_HELP)
    if len(suffixes) > 1:
        raise Refused(
            f"`{word}` has two suffixes, and a network has one teacher and one loss from it: "
            + "; ".join(f"+{s} {SUFFIXES[s][1]}" for s in suffixes if s in SUFFIXES)
            + ". Take one of them."
        )
    if family not in ("default", "published"):
        raise unknown("recipe", family, ("default", "published"))
    if stream not in ("clear", "blurry"):
        raise unknown("stream", stream, ("clear", "blurry"))
    habits = data.habits
    tasks = habits.tasks if tasks is None else tasks
    config = Config(
        data=data,
        stream=Clear(tasks) if stream == "clear" else Blurry(tasks, habits.scale),
        full=habits.full,
        memory=habits.memory if memory is None else memory,
        seed=seed,
        device=device,
        name=word if family == "default" else f"{word}-published",
        **METHODS[base](data, family),
    )
    if data.name == "digits":
        config = replace(config, **DIGITS)
    for suffix in suffixes:
        if suffix not in SUFFIXES:
            raise unknown("suffix", suffix, SUFFIXES, f"A method is written `{base}` or, say, `{base}+mkd`.")
        config = SUFFIXES[suffix][0](config, family)
    return config


# -- methods -------------------------------------------------------------------------------------------------------


def er(data: Source, family: Family) -> dict[str, Any]:
    # The shipped lr; the grid printed in the paper does not hold it (authors-code.md, section 3).  The authors ran plain
    # ER in single precision, and ER+MKD in fp16, which only a CUDA device multiplies in: see `mkd`.
    precision = {"precision": "fp32"} if family == "published" else {}
    return {"method": ER(), "optim": Adam(lr=5e-4), "augment": data.habits.full, **precision}


METHODS: dict[str, Callable[[Source, Family], dict[str, Any]]] = {"er": er}

DIGITS: dict[str, Any] = {
    # 1,433 images are too few for batches of 10: batches of 2 give the 717 updates that both methods need to learn, and
    # a memory of 20 makes forgetting visible (docs/when.md has what other settings give).
    "batch_size": 2,
    "replay_size": 20,
    "net": ResNet18(width=20),
    "probes": (Predictions(every=48),),
}

# -- suffixes ------------------------------------------------------------------------------------------------------


def mkd(config: Config, family: Family) -> Config:
    """alpha 0.01 and lambda by the law, 5.5 (the paper); on digits 0.05, for a stream of 700 updates rather than 5,000."""
    alpha = 0.05 if config.data.name == "digits" else 0.01
    teacher = EMA(alpha) if family == "default" else EMA(alpha, start="zero", correction=10)
    own = isinstance(config.method, ER)  # ER's loss is MKD's cross-entropy already, on the same views
    distill = MKD(cross_entropy=False, draw="main") if own else MKD()
    precision = config.precision
    if family == "published" and own and config.device.startswith("cuda"):
        precision = "fp16"
    return replace(config, teacher=teacher, distill=distill, infer="average", precision=precision)


SUFFIXES: dict[str, tuple[Callable[[Config, Family], Config], str]] = {
    "mkd": (mkd, "distils the predictions of a moving average"),
}
SUFFIX_HELP = "A suffix such as `+mkd` adds a teacher."
