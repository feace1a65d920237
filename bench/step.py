"""The cost of one update, of its parts, of a run's memory and of starting up: `python bench/step.py [--quick] [--write]`.

Everything compared takes turns in one process, so that whatever else the machine does falls on all of it; what is
printed are medians, and ratios of medians.  `--write` replaces this script's section of bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
sys.path[:0] = [str(SRC), str(ROOT / "bench")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from table import GOALS, Report, goal, header  # noqa: E402
from torch import Tensor, nn  # noqa: E402

STREAM, REPLAY, ROWS, CLASSES, IMAGE = 10, 64, 5000, 10, (3, 32, 32)
ALPHA, LAMBDA, TAU = 0.01, 5.5, 4.0
SAME = 1e-5  # losses that differ by less, relatively, come of the same computation
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


# -- the loop written by hand --------------------------------------------------------------------------------------


class PlainBlock(nn.Module):
    def __init__(self, inside: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Sequential()
        if stride != 1 or inside != out:
            self.short = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        h += self.short(x)
        return self.relu(h)


class PlainResNet18(nn.Module):
    """As everybody writes it, for small images."""

    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        widths = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        strides = [1, 1, 2, 1, 2, 1, 2, 1]
        self.layers = nn.Sequential(*[PlainBlock(widths[i], widths[i + 1], strides[i]) for i in range(8)])
        self.fc = nn.Linear(8 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(self.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))


class TinyNet(nn.Module):
    """Next to no work: what is left of an update's time is what surrounds the network."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(3, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class ByHand:
    """ER, or ER+MKD by Algorithm 1, in the plainest PyTorch.

    Given a learner, it begins with that one's weights, memory and draws, so that its losses must be the learner's.
    """

    def __init__(self, net: nn.Module, mkd: bool, precision: str, channels_last: bool, like: Any = None, split: bool = False):
        from onepass.augment import Full

        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.net, self.mkd, self.precision, self.split = net.to(memory_format=self.format), mkd, precision, split
        if like is not None:
            values = like.student.state_dict().values()
            self.net.load_state_dict(dict(zip(self.net.state_dict(), values, strict=True)))
        self.net.train()
        self.teacher = None
        if mkd:
            import copy

            self.teacher = copy.deepcopy(self.net).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=5e-4, fused=True)
        self.augment = Full()
        self.x = torch.randint(0, 256, (ROWS, *IMAGE), dtype=torch.uint8)
        self.y = torch.randint(0, CLASSES, (ROWS,))
        self.count, self.seeds, self.updates = ROWS, None, 0
        self.rng = torch.Generator().manual_seed(0)
        if like is not None:
            self.x, self.y, self.count = like.memory.x.clone(), like.memory.y.clone(), like.memory.count
            self.seeds = like.seeds

    def draws(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which rows are replayed, the images and their views."""
        if self.seeds is None:
            index = torch.randperm(ROWS, generator=self.rng)[:REPLAY]
            images = torch.cat([self.x[index], x]).float().div_(255)
            return index, images, self.augment(images, self.rng)
        index = torch.randperm(ROWS, generator=self.seeds.torch("draw", self.updates, "replay"))[:REPLAY]
        images = torch.cat([self.x[index], x]).float().div_(255)
        parts = zip(images.split([REPLAY, len(x)]), ("aug(replay)", "aug(stream)"), strict=True)
        return index, images, torch.cat([self.augment(i, self.seeds.torch("view", self.updates, n)) for i, n in parts])

    def low(self, here: bool) -> Any:
        """Autocast: around all networks at once (each weight is cast once), or, `split`, around each forward as onepass has it.

        An autocast within another, even one that is off, would keep its casts until the outer one ends.
        """
        return torch.autocast("cpu", torch.bfloat16) if here and self.precision == "bf16" else nullcontext()

    def forward(self, net: nn.Module, x: Tensor) -> Tensor:
        with self.low(self.split):
            return net(x).float()

    def observe(self, x: Tensor, y: Tensor) -> Tensor:
        index, images, views = self.draws(x)
        labels = torch.cat([self.y[index], y])
        images = images.contiguous(memory_format=self.format)
        views = views.contiguous(memory_format=self.format)
        with self.low(not self.split):
            logits = self.forward(self.net, views)
            if self.teacher is not None:
                logits_raw = self.forward(self.net, images)
                with torch.no_grad():
                    target = self.forward(self.teacher, views)
        loss = F.cross_entropy(logits, labels)
        if self.teacher is not None:
            log_p = (target / TAU).log_softmax(1)
            terms = []
            for z in (logits_raw, logits):
                log_q = (z / TAU).log_softmax(1)
                terms.append((TAU**2 * (log_p.exp() * (log_p - log_q)).sum(1)).mean())
            loss = loss + LAMBDA * (terms[0] + terms[1]) / 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.teacher is not None:
            with torch.no_grad():
                torch._foreach_lerp_(list(self.teacher.parameters()), list(self.net.parameters()), ALPHA)
        self.updates += 1
        rng = self.rng if self.seeds is None else self.seeds.torch("reservoir", self.updates)
        for i, chance in enumerate(torch.rand(len(x), dtype=torch.float64, generator=rng).tolist()):
            slot = int(chance * (self.count + 1))
            if slot < ROWS:
                self.x[slot], self.y[slot] = x[i], y[i]
            self.count += 1
        return loss.detach()


def learner(net: Any, mkd: bool, precision: str) -> Any:
    """Ours, with a full memory."""
    from onepass.distill import MKD
    from onepass.learner import Learner
    from onepass.methods.er import ER
    from onepass.stream import Spec
    from onepass.teachers import EMA

    teaching: dict[str, Any] = {"teacher": EMA(ALPHA), "distill": MKD(cross_entropy=False, draw="main")} if mkd else {}
    spec = Spec(CLASSES, IMAGE)
    ours = Learner(spec, ER(), net=net, memory=ROWS, replay_size=REPLAY, precision=precision, **teaching)
    x, y = random_rows(ROWS)
    ours.memory.add(x, y, rng=torch.Generator().manual_seed(1))
    return ours


def random_rows(n: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 256, (n, *IMAGE), dtype=torch.uint8), torch.randint(0, CLASSES, (n,))


def deviation(width: int, mkd: bool, precision: str, steps: int, split: bool) -> float:
    """The largest relative difference of the losses, ours and by hand, over some steps with the same draws."""
    from onepass.nets import ResNet18
    from onepass.stream import Batch

    ours = learner(ResNet18(width), mkd, precision)
    hand = ByHand(PlainResNet18(width), mkd, precision, channels_last=True, like=ours, split=split)
    worst = 0.0
    for _ in range(steps):
        x, y = random_rows(STREAM)
        batch = Batch(x, y, name="stream")
        step = ours.step(batch, ours.meet(batch))
        if not torch.equal(step.aug(step.both).x, hand.draws(x)[2]):
            sys.exit("by hand other rows or views are drawn than the learner draws: its generators have other names by now")
        a, b = float(ours.observe(batch)["loss"]), float(hand.observe(x, y))
        worst = max(worst, abs(a - b) / abs(a))
    assert torch.equal(ours.memory.x, hand.x) and torch.equal(ours.memory.y, hand.y)
    return worst


clock = time.perf_counter


# -- clocks --------------------------------------------------------------------------------------------------------


def in_turns(calls: dict[Any, Callable[[], Any]], seconds: float, least: int = 3, warm: int = 1) -> dict[Any, float]:
    """The median time of each call, in seconds: they take turns, in an order that rotates, until the time is over."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for _ in range(warm):
        for name in names:
            calls[name]()
    end, turn = time.perf_counter() + seconds, 0
    while turn < least or time.perf_counter() < end:
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            calls[name]()
            times[name].append(clock() - start)
        turn += 1
    return {name: median(mine) for name, mine in times.items()} | {"turns": turn}


KINDS = {
    "convolutions": ("conv",),
    "batch-norm": ("batch_norm",),
    "casts and copies": ("copy_", "aten::cat", "aten::_to_copy"),
    "optimiser and teacher": ("adam", "sgd", "_foreach", "lerp"),
}


def profile(update: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of one update by kind of work, as the profiler sees it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        update()
    spent = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for event in seen.key_averages():
        kind = next((k for k, words in KINDS.items() if any(word in event.key for word in words)), "the rest")
        spent[kind] += event.self_cpu_time_total / 1e3
    return spent


def flops(net: nn.Module, students: int, teachers: int) -> float:
    """Of an update: 2 a multiply-add, the backward twice the forward but for the first layer, whose input has no gradient."""
    macs: list[int] = []

    def count(module: nn.Module, inputs: Any, out: Tensor) -> None:
        assert isinstance(module, nn.Conv2d | nn.Linear)
        macs.append(out[0].numel() * module.weight[0].numel())

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        net.eval()(torch.zeros(1, *IMAGE))
        net.train()
    for hook in hooks:
        hook.remove()
    return 2 * (students * (3 * sum(macs) - macs[0]) + teachers * sum(macs))


class Product:
    """A product of two square matrices; a call does it a few times and remembers the highest rate ever seen, in FLOP/s.

    The second is transposed, as a linear layer's weight is.  Or, as a 1x1 convolution, it is asked of the library that
    computes convolutions: MKL, behind the former in fp32, holds back on processors that are not Intel's.
    """

    def __init__(self, size: int, dtype: torch.dtype, convolution: bool):
        self.name = f"{'1x1 convolution' if convolution else 'mm'} of {size}"
        self.size, self.convolution, self.rate = size, convolution, 0.0
        self.a, self.b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        if convolution:  # channels last: `size` pixels of `size` channels, not as one image, which may take another way
            self.a = self.a.view(8, size // 8, 1, size).permute(0, 3, 1, 2)
            self.b = self.b.view(size, size, 1, 1).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def __call__(self) -> None:
        for _ in range(5):
            start = clock()
            F.conv2d(self.a, self.b) if self.convolution else self.a @ self.b.t()
            self.rate = max(self.rate, 2 * self.size**3 / (clock() - start))


def best_product(dtype: torch.dtype) -> Product:
    """The one with the highest rate of a few."""
    found = [Product(size, dtype, convolution) for size in (1024, 1536, 2048) for convolution in (False, True)]
    for product in found:
        product()
    return max(found, key=lambda p: p.rate)


# -- 1. one update -------------------------------------------------------------------------------------------------


def updates(report: Report, scale: float) -> None:
    from onepass.nets import Custom, ResNet18
    from onepass.stream import Batch

    report.say("### One update", "")
    products = {p: best_product(dtype) for p, dtype in DTYPES.items()}
    kinds = (("fp32", False), ("fp32", True), ("bf16", True))  # and whether channels come last
    rows: list[list[str]] = []
    goals: list[list[str]] = []
    spent: dict[bool, dict[str, float]] = {}  # by kind of work, of the last update in bf16

    def turns(
        make_ours: Callable[[bool, str], Any], make_net: Callable[[], nn.Module], mkd: bool, seconds: float
    ) -> dict[Any, float]:
        calls: dict[Any, Callable[[], Any]] = {}
        for precision, channels_last in kinds:
            hand = ByHand(make_net(), mkd, precision, channels_last)
            calls["hand", precision, channels_last] = lambda hand=hand: hand.observe(*random_rows(STREAM))
            if channels_last:
                ours = make_ours(mkd, precision)
                calls["ours", precision, True] = lambda ours=ours: ours.observe(Batch(*random_rows(STREAM)))
        calls |= {("rate", precision): product for precision, product in products.items()}
        found = in_turns(calls, seconds * (scale if scale == 1 else scale / 5), least=1 if scale < 1 else 3)
        spent[mkd] = profile(calls["ours", "bf16", True])
        return found

    for width, within in ((64, 1.03), (20, 1.08)):
        for mkd in (True, False):
            method = "ER+MKD" if mkd else "ER"
            seconds = (70 if mkd else 40) if width == 64 else (20 if mkd else 14)
            t = turns(lambda m, p, w=width: learner(ResNet18(w), m, p), lambda w=width: PlainResNet18(w), mkd, seconds)
            work = flops(PlainResNet18(width), STREAM + REPLAY + (STREAM + REPLAY if mkd else 0), STREAM + REPLAY if mkd else 0)
            plain = t["hand", "fp32", False]
            if width == 64 and mkd:
                shares = ", ".join(f"{kind} {ms / sum(spent[mkd].values()):.0%}" for kind, ms in spent[mkd].items())
            for precision, channels_last in kinds:
                floor, hand, ours = (
                    work / products[precision].rate,
                    t["hand", precision, channels_last],
                    t.get(("ours", precision, channels_last)),
                )
                row = [f"{method}, width {width}, {precision} {'channels-last' if channels_last else 'contiguous'}"]
                row += [f"{1e3 * ours:.1f}" if ours else "", f"{1e3 * hand:.1f}", f"{1e3 * floor:.1f}"]
                row += [f"{ours / hand:.3f}" if ours else "", f"{(ours or hand) / floor:.2f}", f"{plain / (ours or hand):.2f}"]
                rows.append([*row, str(t["turns"])])
                what = f"{method}, width {width}, {precision}"
                if ours:
                    goals.append(goal(f"{what}: ours / by hand", ours / hand, most=within))
                if ours and precision == "bf16" and width == 64:
                    if mkd:
                        goals.append(goal(f"{what}: ours / floor", ours / floor, most=1.35, form=".2f"))
                    goals.append(goal(f"{what}: times faster than fp32 contiguous", plain / ours, least=1.8, form=".2f"))
    head = ("", "ours, ms", "by hand, ms", "floor, ms", "ours / by hand", "/ floor", "faster than fp32 contiguous", "turns")
    report.table(head, rows)
    report.table(GOALS, goals)
    report.say(f"Where ours in bf16 spends an update of ER+MKD at width 64, by the profiler: {shares}.", "")

    same: list[list[str]] = []
    for width in (64, 20) if scale == 1 else (20,):
        for precision in ("fp32", "bf16"):
            cells = [deviation(width, mkd, precision, 3, split=False) for mkd in (False, True)]
            cells.append(deviation(width, True, precision, 3, split=True))
            worst = max(cells if precision == "fp32" else (cells[0], cells[2]))
            met = "met" if worst <= SAME else "**missed**"
            same.append([f"width {width}, {precision}", *(f"{c:.1e}" for c in cells), f"<= {SAME:g}", met])
    report.say("Largest relative difference of the loss, ours against by hand, three updates with the same draws:", "")
    report.table(("", "ER", "ER+MKD", "ER+MKD, one autocast a forward", "goal", ""), same)
    report.say(
        "In bf16 the loop by hand has one autocast around all forwards. The student then has one bf16 copy of each weight, and "
        "the gradients of its two forwards are added in bf16; ours adds them in fp32, which is the last column.",
        "",
    )

    t = {}
    for mkd in (True, False):
        mine = turns(lambda m, p: learner(Custom(lambda classes, image: TinyNet()), m, p), TinyNet, mkd, 3)
        t |= {(mkd, *key[:2]): 1e3 * v for key, v in mine.items() if key != "turns" and key[-1] is True}
    report.say("With next to no network (mean of the pixels, one linear layer): what surrounds it, ms an update.", "")
    lines = []
    for mkd in (True, False):
        for precision in ("fp32", "bf16"):
            a, b = t[mkd, "ours", precision], t[mkd, "hand", precision]
            lines.append([f"{'ER+MKD' if mkd else 'ER'}, {precision}", f"{a:.2f}", f"{b:.2f}", f"{a - b:+.2f}"])
    report.table(("", "ours", "by hand", "difference"), lines)
    words = "; ".join(f"{p} {product.rate / 1e9:.0f} GFLOP/s ({product.name})" for p, product in products.items())
    report.say(f"Matrix rates behind the floors, the highest seen among the turns: {words}.", "")


# -- 2. every method -----------------------------------------------------------------------------------------------

WORDS = ("er", "er-ace", "derpp", "gsa", "pcr", "dvc")


def in_a_later_task(word: str, width: int) -> Any:
    """A learner by its recipe, which has met two tasks of CIFAR-10 and whose memory is full of their classes."""
    from dataclasses import replace

    from onepass.nets import ResNet18
    from onepass.recipes import recipe
    from onepass.stream import Batch, Spec

    tasks = tuple((2 * i, 2 * i + 1) for i in range(CLASSES // 2))
    config = replace(recipe(word, Noise()), net=ResNet18(width))  # type: ignore[arg-type]
    ours = config.learner(Spec(CLASSES, IMAGE, tasks), sharp=True)
    x, y = random_rows(ROWS)
    extra = {"logits": torch.zeros(ROWS, CLASSES)} if ours.method.columns else {}
    ours.memory.add(x, y % 4, extra, rng=torch.Generator().manual_seed(1))
    for first in (0, 2):
        ours.meet(Batch(x[:2], torch.tensor([first, first + 1])))
        ours.clock.batches += 1
    assert ours.task == 1
    return ours


def a_batch() -> Any:
    """Images of the later task's two classes."""
    from onepass.stream import Batch

    x, y = random_rows(STREAM)
    return Batch(x, 2 + y % 2)


def units(ours: Any) -> tuple[int, int, int]:
    """The cost of an update by its forwards: 3 an image that has a gradient, else 1.  DVC asks for one gradient more, of its
    stream's two views, which is 2 an image.  Then the number of forwards, and the images of one."""
    batch = a_batch()
    step = ours.step(batch, ours.meet(batch))
    ours.backward(step)
    images = {grad: [n for f in step.forwards if f.grad == grad for n in f.images] for grad in (True, False)}
    images[False] += [n for f in step.forwards for _, n in f.peeks]
    every = images[True] + images[False]
    extra = 2 * 2 * STREAM if step.student.peeks else 0
    return 3 * sum(images[True]) + sum(images[False]) + extra, len(every), sum(every) // len(every)


def methods(report: Report, scale: float) -> None:
    report.say("### Every method", "")
    groups = [[word + suffix for word in WORDS for suffix in ("", "+mkd")], ["er", "ocm", "ocm+mkd"]]
    rows: list[list[str]] = []
    over: list[list[str]] = []
    for width, spans in ((64, (60, 30)), (20, (30, 20))):
        for words, seconds in zip(groups, spans, strict=True):
            learners = {word: in_a_later_task(word, width) for word in words}
            cost = {word: units(ours) for word, ours in learners.items()}
            calls = {word: lambda ours=ours: ours.observe(a_batch()) for word, ours in learners.items()}
            t = in_turns(calls, seconds * scale, least=3 if scale == 1 else 1, warm=1 if words is groups[0] else 0)
            for word in words if words is groups[0] else words[1:]:
                ratio, told = t[word] / t["er"], cost[word][0] / cost["er"][0]
                row = [f"{word}, width {width}", *map(str, cost[word]), f"{1e3 * t[word]:.0f}", f"{ratio:.2f}", f"{told:.2f}"]
                rows.append([*row, f"{ratio / told - 1:+.0%}", "" if ratio / told <= 1.15 else "**over**", str(t["turns"])])
            late = [word for word in words if t[word] / t["er"] > 1.15 * cost[word][0] / cost["er"][0]]
            for word in ["er", *late] if late else []:
                spent = {kind: ms / cost[word][0] for kind, ms in profile(calls[word]).items()}
                over.append(
                    [f"{word}, width {width}", *(f"{1e3 * ms:.0f}" for ms in spent.values()), f"{1e3 * sum(spent.values()):.0f}"]
                )
    head = (
        "",
        "units",
        "forwards",
        "images a forward",
        "ms",
        "/ ER's",
        "by its units",
        "beyond that",
        "goal: at most 15 %",
        "turns",
    )
    report.table(head, rows)
    report.say(
        "A unit is one image forward; with a gradient it is three. Units leave out what a forward and its backward cost whatever "
        "the number of images (in bf16 each casts every weight, and each adds to every gradient), and what is done between "
        "forwards: so many small forwards cost more than their images say, and a large one less.",
        "",
    )
    if over:
        report.say("Those over the goal beside ER, by the profiler, in one update: microseconds a unit.", "")
        report.table(("", *KINDS, "the rest", "all"), over)


# -- 3. parts ------------------------------------------------------------------------------------------------------


def parts(report: Report, scale: float) -> None:
    from onepass.augment import Full, Partial
    from onepass.memory import Memory
    from onepass.nets import low_precision
    from onepass.seeds import Seeds
    from onepass.stream import Batch
    from onepass.teachers import EMA

    report.say("### Parts", "")
    goals: list[list[str]] = []
    seeds, cpu = Seeds(0), torch.device("cpu")
    rng = torch.Generator().manual_seed(0)
    torch.zeros(8_000_000)  # a step frees larger blocks: after that the allocator keeps its pages, as it does here
    x = torch.rand(STREAM + REPLAY, *IMAGE)
    calls: dict[Any, Callable[[], Any]] = {"full": lambda: Full()(x, rng), "partial": lambda: Partial()(x, rng)}
    calls["full, apart"] = lambda: (Full()(x[:REPLAY], rng), Full()(x[REPLAY:], rng))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import kornia.augmentation as K

        jitter, crop = K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), K.RandomResizedCrop(IMAGE[1:], scale=(0.2, 1.0))
        theirs = nn.Sequential(crop, K.RandomHorizontalFlip(), jitter, K.RandomGrayscale(p=0.2))
        calls["kornia full"] = lambda: theirs(x)
        padded = nn.Sequential(K.RandomCrop(IMAGE[1:], padding=4), K.RandomHorizontalFlip())
        calls["kornia partial"] = lambda: padded(x)
    except ImportError:
        report.say("kornia is not installed: augmentation was timed alone.", "")
    t = in_turns(calls, 6 * scale, least=10)
    for name in ("full", "partial"):
        if f"kornia {name}" in t:
            times = f"{1e3 * t[name]:.2f} / {1e3 * t[f'kornia {name}']:.2f} ms"
            goals.append(
                goal(f"augmentation, {name}, 74 images at 32x32: ours / kornia's ({times})", t[name] / t[f"kornia {name}"], most=1)
            )

    memory = Memory(ROWS, IMAGE)
    memory.add(*random_rows(ROWS), rng=rng)
    few, labels = random_rows(STREAM)
    number = iter(range(10**9))

    def reservoir(count: int) -> Callable[[], None]:
        def call() -> None:
            memory.count = count
            memory.add(few, labels, rng=seeds.torch("reservoir", next(number)))

        return call

    small: dict[Any, Callable[[], Any]] = {
        "reservoir": reservoir(ROWS),
        "reservoir, late": reservoir(50_000),
        "draw": lambda: memory.draw(REPLAY, rng=seeds.torch("step", next(number), "replay")),
        "both": lambda: Batch(few, labels) + Batch(few, labels),
        "generator": lambda: seeds.torch("step", next(number), "replay"),
        "scope": lambda: enter(seeds.scope("net", next(number), "student", ("aug(replay)", "aug(stream)"))),
        "autocast": lambda: enter(low_precision("bf16", cpu)),
        "grad mode": lambda: enter(torch.set_grad_enabled(True)),
        "pixels": lambda: few.to(torch.float32).div_(255),
    }
    t |= in_turns(small, 2 * scale, least=100, warm=20)

    students = {True: PlainResNet18(64), False: PlainResNet18(64)}
    follower = EMA(ALPHA).follow(students[True])
    mine = [torch.zeros_like(p) for p in students[False].parameters()]
    theirs_ = [p.detach() for p in students[False].parameters()]
    flat, other = torch.zeros(2, sum(p.numel() for p in mine)).unbind()
    ema: dict[Any, Callable[[], Any]] = {
        "ema": lambda: follower.update(students[True]),
        "foreach add": lambda: torch._foreach_add_(mine, theirs_),
        "flat add": lambda: flat.add_(other),
    }
    t |= in_turns(ema, 5 * scale, least=10)

    for name, count in (("reservoir", "the 5,001st to 5,010th image"), ("reservoir, late", "the 50,001st to 50,010th")):
        goals.append(goal(f"reservoir of 10 images into 5,000 rows, {count}", 1e3 * t[name], most=0.2, unit=" ms"))
    goals.append(
        goal("EMA of ResNet-18, width 64: / `_foreach_add_` on the same lists", t["ema"] / t["foreach add"], most=1.5, form=".2f")
    )
    goals.append(goal("the same: / `add_` on one flat tensor", t["ema"] / t["flat add"], most=1.5, form=".2f"))
    report.table(GOALS, goals)
    words = {
        "draw": "`Memory.draw` of 64 from 5,000, its generator included",
        "full, apart": "`Full` of 64 and of 10 images, as `observe` does it",
        "full": "`Full` of 74 images at once",
        "ema": "`EMAFollower.update`, width 64",
        "generator": "one generator (`Seeds.torch`)",
        "scope": "entering and leaving `Seeds.scope`",
        "autocast": "entering and leaving autocast",
        "grad mode": "entering and leaving a grad mode",
        "pixels": "10 images from uint8 to [0, 1]",
        "both": "`Batch + Batch`, 10 rows each",
    }
    report.table(("", "microseconds"), [[word, f"{1e6 * t[name]:.0f}"] for name, word in words.items()])


def enter(context: Any) -> None:
    with context:
        pass


# -- children: processes of their own ------------------------------------------------------------------------------


def child(name: str, *args: str, threads: int | None = None) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(SRC)}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, str(Path(__file__).resolve()), "--child", name, *args]
    return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@dataclass(frozen=True)
class Noise:
    """A data source as large as CIFAR-10: 50,000 random images, and for testing enough of a task to be predicted at a time."""

    from onepass.augment import Full, Partial
    from onepass.data import Habits

    name: ClassVar[str] = "noise"
    habits: ClassVar[Habits] = Habits(tasks=5, memory=ROWS, scale=3000.0, full=Full(), partial=Partial())

    def load(self, folder: Path | None = None) -> Any:
        from onepass.data import Dataset
        from onepass.stream import Batch

        train, test = (Batch(*random_rows(n)) for n in (50_000, 1_500))
        return Dataset(train, test, tuple(map(str, range(CLASSES))), "noise")


def run_of_noise(updates: int) -> None:
    """A whole run in this process, then its peak memory."""
    from onepass.loop import run
    from onepass.recipes import recipe

    before = status("VmRSS")
    with tempfile.TemporaryDirectory() as folder:
        from dataclasses import replace

        config = replace(recipe("er+mkd", Noise(), memory=ROWS), precision="fp32", limit=10 * updates)  # type: ignore[arg-type]
        run(config, folder)
    print(json.dumps({"torch": before, "peak": status("VmHWM")}))


def status(field: str) -> float:
    """MB of this process, from the kernel."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def servant(kind: str, threads: int) -> None:
    """A learner that learns so many batches whenever a line says so, and says when it began and ended."""
    from onepass.data.digits import Digits
    from onepass.recipes import recipe
    from onepass.seeds import Seeds

    torch.set_num_threads(threads)
    source: Any = Digits() if kind == "digits" else Noise()
    config = recipe("er+mkd", source)
    data = source.load()
    stream = config.stream.over(data.train, data.names, Seeds(0))
    ours = config.learner(stream.spec, sharp=stream.sharp)
    batches = stream.batches(config.batch_size)
    for _ in range(3 if kind == "noise" else 40):  # enough to fill the digits' memory
        ours.observe(next(batches))
    print(config.batch_size, flush=True)
    for line in sys.stdin:
        began = time.time()
        for _ in range(int(line)):
            batch = next(batches, None)
            if batch is None:
                batches = stream.batches(config.batch_size)
                batch = next(batches)
            ours.observe(batch)
        print(began, time.time(), flush=True)


# -- 4. memory, 5. side by side, 6. starting up --------------------------------------------------------------------


def peak(report: Report, scale: float) -> None:
    report.say("### Memory", "")
    out, _ = child("memory", "2" if scale < 1 else "30", threads=torch.get_num_threads()).communicate(timeout=1200)
    mb = json.loads(out.splitlines()[-1])
    what = "peak (VmHWM) of `er+mkd`, fp32, width 64, 50,000 images, memory 5,000: stream, updates, checkpoint, predictions"
    rows = [goal(what, mb["peak"], most=2000, form=".0f", unit=" MB")]
    report.table(GOALS, [*rows, goal("of these after importing torch", mb["torch"], form=".0f", unit=" MB")])


def side_by_side(report: Report, scale: float) -> None:
    report.say("### Two runs on two threads", "")
    rows: list[list[str]] = []
    for kind, words, updates, turns in (
        ("digits", "digits, 8x8, width 20, batch 2 + 20", 80, 4),
        ("noise", "32x32, width 64, batch 10 + 64", 2, 4),
    ):
        turns = turns if scale == 1 else 1
        updates = updates if scale == 1 else max(1, updates // 2)
        servants = [child(kind, "1", threads=1), child(kind, "1", threads=1), child(kind, "2", threads=2)]
        size = [int(ask(s)) for s in servants][0]
        rates: dict[str, list[float]] = {"beside": [], "after": []}
        for turn in range(turns):
            for way in ("beside", "after") if turn % 2 else ("after", "beside"):
                told = servants[:2] if way == "beside" else servants[2:]
                for s in told:
                    ask(s, updates * 2 // len(told))
                spans = [tuple(map(float, ask(s).split())) for s in told]
                rates[way].append(2 * updates * size / (max(e for _, e in spans) - min(b for b, _ in spans)))
        for s in servants:
            s.communicate()
        a, b = median(rates["beside"]), median(rates["after"])
        rows.append([words, f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}", "side by side" if a > b else "one after the other"])
    head = (
        "two runs of ER+MKD",
        "side by side, one thread each: images/s",
        "one after the other, two threads",
        "ratio",
        "the faster",
    )
    report.table(head, rows)


def ask(servant: subprocess.Popen[str], updates: int | None = None) -> str:
    """Tell a servant to work, or hear what it answers."""
    assert servant.stdin is not None and servant.stdout is not None
    if updates is not None:
        servant.stdin.write(f"{updates}\n")
        servant.stdin.flush()
        return ""
    return servant.stdout.readline()


def starting(report: Report, scale: float) -> None:
    report.say("### Starting up", "")
    commands = {"--help": 0.5, "run --help": 0.5, "run er+mkd --help": 4.0}
    env = os.environ | {"PYTHONPATH": str(SRC)}

    def call(words: str) -> Callable[[], Any]:
        command = [sys.executable, "-m", "onepass.cli", *words.split()]
        return lambda: subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=True)

    global clock
    clock = time.perf_counter
    t = in_turns({words: call(words) for words in commands}, 0, least=5 if scale == 1 else 1, warm=1)
    report.table(GOALS, [goal(f"`onepass {w}`", t[w], most=most, form=".2f", unit=" s") for w, most in commands.items()])


# -- the command ---------------------------------------------------------------------------------------------------

SECTIONS = {"updates": updates, "methods": methods, "parts": parts, "memory": peak, "beside": side_by_side, "start": starting}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a look: under a minute, and no number to quote")
    parser.add_argument("--write", action="store_true", help="replace this script's section of bench/RESULTS.md")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some of the tables")
    parser.add_argument("--note", default="", help="a line under the heading, e.g. what else the machine was doing")
    parser.add_argument("--busy", action="store_true", help="for a busy machine: updates and parts in CPU time, on one thread")
    parser.add_argument("--threads", type=int, help="of this process (default: torch's)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        kind, number = args.child
        return run_of_noise(int(number)) if kind == "memory" else servant(kind, int(number))
    if args.write and set(args.only) != set(SECTIONS):
        parser.error("--write wants all tables: leave out --only")
    if args.threads or args.busy:
        torch.set_num_threads(args.threads or 1)
    if args.busy:
        global clock
        clock = time.process_time
    torch.manual_seed(0)
    report = Report()
    report.say(*header(" ".join(["python bench/step.py", *sys.argv[1:]])), *([f"- {args.note}"] if args.note else []), "")
    for name in args.only:
        SECTIONS[name](report, 0.1 if args.quick else 1.0)
    if args.busy:
        report.say(
            "Updates and parts are in CPU time of one thread: good for ratios of ours and by hand, and for nothing else.", ""
        )
    report.end("step" if args.write else None)


if __name__ == "__main__":
    main()
