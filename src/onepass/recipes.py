"""Hyper-parameters, once, with their source: the defaults (the paper's text) and the published (what its code ran)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from onepass.augment import Augment, Normalised, Partial
from onepass.boundaries import NewClass
from onepass.config import Config, build, load_class, name_of
from onepass.data import Source
from onepass.distill import MKD, SDP, SINGLE_VIEW, Warm
from onepass.errors import Refused, unknown
from onepass.learner import SGD, Adam
from onepass.method import Method
from onepass.methods.derpp import DERpp
from onepass.methods.dvc import DVC
from onepass.methods.er import ER
from onepass.methods.er_ace import ERACE
from onepass.methods.gsa import GSA
from onepass.methods.ocm import OCM
from onepass.methods.pcr import PCR
from onepass.nets import ResNet18
from onepass.probes import Predictions
from onepass.stream import ORDERS, Blurry, Order
from onepass.teachers import EMA, Frozen, HypoExponential, Snapshot

Family = Literal["default", "published"]
Setting = Literal["clear", "blurry", "imbalanced", "blend"]


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
    file, colon, rest = word.rpartition(".py:")  # a method of the user's, `file.py:Class`
    base, *suffixes = rest.split("+")
    fields = METHODS.get(base)
    if colon:
        kind = load_class(f"{file}.py:{base}", Method)
        fields = of_ones_own(kind)
    if fields is None:
        raise unknown("method", base, METHODS, SUFFIX_HELP)
    if len(suffixes) > 1:
        raise Refused(
            f"`{word}` has two suffixes, and a network has one teacher and one loss from it: "
            + "; ".join(f"+{s} {SUFFIXES[s][1]}" for s in suffixes if s in SUFFIXES)
            + ". Take one of them."
        )
    if family not in ("default", "published"):
        raise unknown("recipe", family, ("default", "published"))
    habits = data.habits
    config = Config(
        data=data,
        stream=order(stream, data, tasks=tasks, family=family),
        net=ResNet18(stem=habits.stem),
        full=habits.full,
        memory=habits.memory if memory is None else memory,
        seed=seed,
        name="+".join([base, *suffixes]) + (PUBLISHED if family == "published" else ""),
        **fields(data, family),
    )
    if isinstance(config.method, OCM) and not config.stream.sharp:
        config = replace(config, boundaries=NewClass(lag=100))  # the paper's rule; GSA it leaves out there, and so do we
    if data.name == "digits":
        config = replace(config, **DIGITS)
    if data.name in ("tiny-imagenet", "imagenet100") and family == "published":
        config = _as_the_authors(config)
    for suffix in suffixes:
        if suffix not in SUFFIXES:
            raise unknown("suffix", suffix, SUFFIXES, f"A method is written `{base}` or, say, `{base}+mkd`.")
        config = SUFFIXES[suffix][0](config, family)
    return on(config, device)


PUBLISHED = "-published"  # at the end of the names of that family


def on(config: Config, device: str) -> Config:
    """A recipe's config on a device.  On CUDA, some of the published go in half precision, as the authors had them."""
    half = isinstance(config.method, GSA | OCM) or isinstance(config.distill, Warm)
    half |= isinstance(config.method, ER) and isinstance(config.distill, MKD) and config.infer == "average"
    if half and config.name.endswith(PUBLISHED) and device.startswith("cuda"):
        config = replace(config, precision="fp16")
    return replace(config, device=device)


def order(kind: str, data: Source, *, tasks: int | None = None, family: Family = "default") -> Order:
    """The stream that the command line calls `kind`, with as many tasks and as wide a blur as is usual for the data."""
    if kind not in ORDERS:
        raise unknown("stream", kind, ORDERS)
    if tasks is None:
        tasks = PUBLISHED_TASKS.get(data.name, data.habits.tasks) if family == "published" else data.habits.tasks
    return Blurry(tasks, data.habits.scale) if kind == "blurry" else ORDERS[kind](tasks)


# -- methods ------------------------------------------------------------------------------------------------------------
#
# Where the paper prints only a grid, both families take what the authors' files have (spec/authors-code.md, section 3).  The
# authors ran some methods in fp16, which only a CUDA device multiplies in, and the others in single precision.

Fields = dict[str, Any]


def er(data: Source, family: Family) -> Fields:
    # the shipped rate, 5e-4, is not in the grid that the paper prints
    return {"method": ER(), "optim": Adam(lr=5e-4), "augment": data.habits.full} | _precise(family)


def derpp(data: Source, family: Family) -> Fields:
    return {"method": DERpp(alpha=0.2, beta=1.0), "optim": Adam(lr=1e-4), "augment": data.habits.full} | _precise(family)


def er_ace(data: Source, family: Family) -> Fields:
    method = ERACE(shown="authors") if family == "published" else ERACE()
    return {"method": method, "optim": SGD(lr=1e-3, momentum=0.9), "augment": partial(data, family)} | _precise(family)


def dvc(data: Source, family: Family) -> Fields:
    weight = 2.0 if data.name in ("cifar10", "digits") else 4.0
    if family == "published":  # logits of unit norm, and 50 candidates all kept
        method = DVC(weight=weight, rate=0.1, candidates=50, unit=True)
        return {"method": method, "optim": SGD(lr=0.1, momentum=0.9), "augment": data.habits.full} | _precise(family)
    method = DVC(weight=weight, rate=DVC_RATE)
    return {"method": method, "optim": SGD(lr=DVC_RATE, momentum=0.9), "augment": data.habits.full}


DVC_RATE = 0.01
"""For logits that are not of unit norm; from a small grid on held-out training images (bench/dvc_rate.py)."""


def ocm(data: Source, family: Family) -> Fields:
    optim = Adam(lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-4)
    method = OCM(two_views=family == "published")
    return {"method": method, "optim": optim, "augment": data.habits.full} | _precise(family)


def gsa(data: Source, family: Family) -> Fields:
    lr = 1e-4 if data.name == "imagenet100" else 5e-4
    method = GSA(authors=family == "published")
    return {"method": method, "optim": Adam(lr=lr), "augment": partial(data, family)} | _precise(family)


def pcr(data: Source, family: Family) -> Fields:
    return {"method": PCR(), "optim": Adam(lr=5e-4), "augment": data.habits.full} | _precise(family)


def of_ones_own(kind: type[Method]) -> Callable[[Source, Family], Fields]:
    """A user's method, with its defaults, in ER's setting."""
    return lambda data, family: er(data, family) | {"method": build(Method, name_of(kind), "method")}


METHODS: dict[str, Callable[[Source, Family], Fields]] = {
    "er": er,
    "derpp": derpp,
    "er-ace": er_ace,
    "dvc": dvc,
    "ocm": ocm,
    "gsa": gsa,
    "pcr": pcr,
}


def _precise(family: Family) -> Fields:
    return {"precision": "fp32"} if family == "published" else {}


def partial(data: Source, family: Family) -> Augment:
    """The partial augmentation of a data set, as a family of recipes has it."""
    crop = data.habits.partial
    return replace(crop, shared=True) if family == "published" and isinstance(crop, Partial) else crop


DIGITS: Fields = {
    # 1,433 images are too few for batches of 10: batches of 2 give the 717 updates that both methods need to learn, and
    # a memory of 20 makes forgetting visible (docs/when.md has what other settings give).
    "batch_size": 2,
    "replay_size": 20,
    "net": ResNet18(width=20),
    "probes": (Predictions(every=48),),
}

PUBLISHED_TASKS = {"tiny-imagenet": 100}
"""Where the authors' files have another number than the paper's text, 20 (spec/authors-code.md, section 3)."""


def _as_the_authors(config: Config) -> Config:
    """What their code did to images larger than CIFAR's: pooling in windows of 4x4; ImageNet normalised before it is augmented,
    and its blurry stream not blurry (spec/authors-code.md, section 4)."""
    net, habits = config.net, config.data.habits
    assert isinstance(net, ResNet18)
    config = replace(config, net=replace(net, pool="window"))
    if config.data.name != "imagenet100":
        return config
    if isinstance(config.stream, Blurry):
        config = replace(config, stream=replace(config.stream, sequential=True))

    def first(rule: Augment | None) -> Augment | None:
        return None if rule is None else Normalised(of=rule, mean=habits.mean, std=habits.std)

    return replace(config, augment=first(config.augment), full=first(config.full))


# -- suffixes -----------------------------------------------------------------------------------------------------------


def mkd(config: Config, family: Family) -> Config:
    """alpha 0.01 and lambda by the law, 5.5 (the paper); on digits 0.05, for a stream of 700 updates rather than 5,000."""
    method, distill = config.method, MKD()
    if isinstance(method, ER):  # ER's loss is MKD's cross-entropy already, on the same views
        distill = MKD(cross_entropy=False, draw="main")
    if isinstance(method, PCR):  # the augmented images first, and then the raw ones
        distill = MKD(pairs=(("aug", "aug"), ("raw", "aug")))
    if family == "published":
        if isinstance(method, PCR):
            distill = replace(distill, weight=8.0)
        if isinstance(method, DVC):
            distill = replace(distill, doubled=True)
        if isinstance(method, OCM):
            distill, method = replace(distill, raw_until=1), replace(method, two_views=False)
    return replace(config, method=method, teacher=_moving(config, family), distill=distill, infer="average")


def sdp(config: Config, family: Family) -> Config:
    """mu 100 and c^2 0.75 (the authors' files); the paper's learning rate for ER, 3e-4."""
    distill = SDP()
    teacher = HypoExponential(start="copy" if family == "default" else "zero")
    if isinstance(config.method, GSA):
        distill = SDP(scale_base=False, draw="sdp")
        teacher = replace(teacher, frozen=family == "published")
    if isinstance(config.method, OCM):
        distill = SDP(draw="sdp")
    config = replace(config, teacher=teacher, distill=distill)
    if isinstance(config.method, GSA):
        return replace(config, optim=Adam(lr=5e-4))  # on all data sets, unlike GSA alone
    return replace(config, optim=Adam(lr=3e-4)) if isinstance(config.method, ER) and family == "default" else config


def te(config: Config, family: Family) -> Config:
    """Temporal Ensembles: a moving average that predicts, and teaches nothing."""
    alpha = _moving(config, family).alpha
    if family == "published":
        return replace(config, teacher=EMA(alpha, start="alpha"), distill=Warm(), infer="teacher")
    return replace(config, teacher=EMA(alpha, buffers="average"), infer="teacher")


def snapshot(config: Config, family: Family) -> Config:
    """The low-quality teacher of the paper's second table: the student at the end of the last task, weight 0.01."""
    distill = MKD(pairs=SINGLE_VIEW, weight=0.01, cross_entropy=False, draw=_draw(config))
    return replace(config, teacher=Snapshot(), distill=distill)


def snapshot_high(config: Config, family: Family) -> Config:
    """The high-quality one: a student that saw the first task five times."""
    return replace(snapshot(config, family), teacher=Frozen(epochs=5))


def ce(config: Config, family: Family) -> Config:
    """MKD's cross-entropy and its views, without its distillation and its average."""
    distill = MKD(weight=0.0, pairs=SINGLE_VIEW)
    return replace(config, teacher=_moving(config, family), distill=distill)


def kd(config: Config, family: Family) -> Config:
    """MKD's distillation and its average, without its cross-entropy."""
    config = mkd(config, family)
    assert isinstance(config.distill, MKD)
    return replace(config, distill=replace(config.distill, cross_entropy=False))


def ema(config: Config, family: Family) -> Config:
    """MKD's average, without its loss.  No image goes through the teacher, so its running statistics are averages, too."""
    return replace(config, teacher=replace(_moving(config, family), buffers="average"), infer="average")


def rawpass(config: Config, family: Family) -> Config:
    """MKD's raw images through the student, which move its running statistics, and nothing else of it."""
    distill = MKD(weight=0.0, pairs=(("raw", "raw"),), cross_entropy=False, draw=_draw(config))
    return replace(config, teacher=_moving(config, family), distill=distill)


def _moving(config: Config, family: Family) -> EMA:
    alpha = 0.05 if config.data.name == "digits" else 0.01
    return EMA(alpha) if family == "default" else EMA(alpha, start="zero", correction=10)


def _draw(config: Config) -> Literal["mkd", "main"]:
    """The method's views where it has one of stream and replay together."""
    return "main" if isinstance(config.method, ER) else "mkd"


SUFFIXES: dict[str, tuple[Callable[[Config, Family], Config], str]] = {
    "mkd": (mkd, "distils the predictions of a moving average"),
    "sdp": (sdp, "draws features to those of a mean of past students"),
    "te": (te, "predicts by a moving average"),
    "snapshot": (snapshot, "distils the student at the last boundary"),
    "snapshot-high": (snapshot_high, "distils a student that saw the first task five times"),
    "ce": (ce, "adds MKD's cross-entropy alone"),
    "kd": (kd, "adds MKD's distillation alone"),
    "ema": (ema, "adds MKD's average alone"),
    "rawpass": (rawpass, "adds MKD's raw images alone"),
}
SUFFIX_HELP = "A suffix such as `+mkd` adds a teacher."
