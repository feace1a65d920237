"""MKD in loops that nobody here wrote, around networks of every kind, against what the learner does with the same views."""

from __future__ import annotations

import difflib
import io
import os
import re
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onepass.distill import MKD
from onepass.learner import Adam, Learner
from onepass.losses import mkd_loss
from onepass.methods.er import ER
from onepass.nets import ResNet18
from onepass.stream import Batch, Spec
from onepass.teachers import EMA, HypoExponential, Snapshot, average


def images(seed: int, n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 1, 8, 8, generator=generator), torch.randint(5, (n,), generator=generator)


def small(seed: int = 0) -> nn.Sequential:
    """Convolution, batch-norm, dropout, classifier."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = [nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)]
        return nn.Sequential(*body, nn.Linear(144, 5))


def train(model: nn.Module, steps: int = 8, *, alpha: float = 0.1, logits: Any = None, dtype: Any = None, **how: Any) -> Any:
    """The loop of the design's section 8: the teacher, the loss of each step, and the predictor."""
    get = logits or (lambda out: out)
    teacher = EMA(alpha, **how).follow(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses: list[float] = []
    for step in range(steps):
        x, y = images(step)
        x = x if dtype is None else x.to(dtype)
        xa = x.flip(3)
        out = model(xa)
        loss = F.cross_entropy(get(out).float(), y)
        loss = loss + mkd_loss([model(x), out], teacher(xa), alpha=alpha, logits=logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(model)
        losses.append(loss.item())
    return teacher, losses, average(model, teacher)


def tensors(net: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---- the same recorded views, by the learner and by hand


@pytest.mark.parametrize("buffers", ["own", "average"])
def test_this_path_and_the_learners_give_identical_weights(buffers: Any) -> None:
    learner = Learner(
        Spec(5, (1, 8, 8)),
        ER(),
        teacher=EMA(0.05, buffers=buffers),
        distill=MKD(cross_entropy=False, draw="main"),
        net=ResNet18(width=4),
        optim=Adam(lr=2e-3),
        memory=20,
        replay_size=8,
        precision="fp32",
        infer="average",
    )
    model = deepcopy(learner.student)
    record: list[tuple[Tensor, Tensor, Tensor]] = []
    make = learner.step

    def remembering(rows: Batch, present: Tensor) -> Any:
        """The step whose views are kept when its loss asks for them."""
        step = make(rows, present)
        if len(step.replay):
            record.append((step.raw(step.both).x, step.aug(step.both).x, step.both.y))
        return step

    learner.step = remembering  # pyright: ignore[reportAttributeAccessIssue]
    for i in range(12):
        x, y = images(i, 4)
        learner.observe(Batch((255 * x).byte(), y, name="stream"))
    assert len(record) == 11

    optimizer = Adam(lr=2e-3).build(model)
    teacher = EMA(alpha=0.05, buffers=buffers).follow(model)
    for x, xa, y in record:
        x, xa = (images.contiguous(memory_format=torch.channels_last) for images in (x, xa))
        logits = model(xa)
        loss = F.cross_entropy(logits, y)
        loss = loss + mkd_loss([model(x), logits], teacher(xa), alpha=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(model)
    predictor = average(model, teacher)

    assert same(tensors(model), tensors(learner.student))
    assert same(tensors(teacher), tensors(learner.followers["teacher"]))
    assert same(tensors(predictor), tensors(learner.network()))
    assert not same(tensors(model), tensors(teacher.net))


# ---- four lines in somebody else's loop

SOMEBODYS = """\
torch.manual_seed(0)
device = torch.device("cpu")
loader = torch.utils.data.DataLoader(digits(), batch_size=32, shuffle=True)
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)


def train(epoch):
    model.train()
    for batch, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        watch(data, target, output, loss)
        if batch % 4 == 0:
            say(f"epoch {epoch}, {batch * len(data)} of {len(loader.dataset)}: {loss.item():.6f}")


def test():
    model.eval()
    right = 0
    with torch.no_grad():
        for data, target in loader:
            right += (model(data.to(device)).argmax(1).cpu() == target).sum().item()
    return right / len(loader.dataset)


for epoch in range(2):
    train(epoch)
    scheduler.step()
print_accuracy(test())
"""
LINES = {  # each after the line that is there
    "model = Net().to(device)\n": "teacher = EMA(alpha=0.01).follow(model)\n",
    "        loss = F.nll_loss(output, target)\n": "        loss = loss + mkd_loss(output, teacher(data), weight=WEIGHT)\n",
    "        optimizer.step()\n": "        teacher.update(model)\n",
    "    scheduler.step()\n": "model = average(model, teacher)\n",
}


class Net(nn.Module):
    """As such examples have them: convolutions, dropout twice, a log-softmax at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return self.fc2(self.dropout2(F.relu(self.fc1(x)))).log_softmax(1)


def digits() -> torch.utils.data.TensorDataset:
    data = load_digits()
    return torch.utils.data.TensorDataset(
        torch.tensor(data.images[:1024, None], dtype=torch.float32) / 16, torch.tensor(data.target[:1024])
    )


def play(source: str, weight: float = 5.5) -> dict[str, Any]:
    """Run a loop, and see what it does at each step: the data, the chance, the loss, what is said."""
    seen: dict[str, Any] = {"data": [], "chance": [], "loss": [], "said": []}

    def watch(data: Tensor, target: Tensor, output: Tensor, loss: Tensor) -> None:
        seen["data"].append((data, target))
        seen["chance"].append(torch.get_rng_state())
        seen["loss"].append((F.nll_loss(output, target).item(), loss.item()))

    names: dict[str, Any] = {
        "torch": torch, "F": F, "Net": Net, "digits": digits, "EMA": EMA, "mkd_loss": mkd_loss, "average": average,
        "WEIGHT": weight, "watch": watch, "say": seen["said"].append, "print_accuracy": lambda share: seen.update(accuracy=share),
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        exec(compile(source, "somebody.py", "exec"), names)
    (group,) = names["optimizer"].param_groups
    weights = {str(i): p.detach() for i, p in enumerate(group["params"])}
    return seen | {"weights": weights, "rate": group["lr"], "model": names["model"]}


def with_the_four_lines() -> str:
    source = SOMEBODYS
    for after, line in LINES.items():
        assert source.count(after) == 1
        source = source.replace(after, after + line)
    return source


def test_four_lines_are_added_and_none_is_touched() -> None:
    change = [line for line in difflib.ndiff(SOMEBODYS.splitlines(), with_the_four_lines().splitlines()) if line[0] in "+-?"]
    assert [line[0] for line in change] == ["+"] * 4


def test_with_four_lines_the_loss_changes_and_nothing_else() -> None:
    theirs, ours = play(SOMEBODYS), play(with_the_four_lines())
    assert len(theirs["data"]) == len(ours["data"]) == 64
    for (x, y), (xx, yy) in zip(theirs["data"], ours["data"], strict=True):
        assert torch.equal(x, xx) and torch.equal(y, yy)
    assert all(torch.equal(a, b) for a, b in zip(theirs["chance"], ours["chance"], strict=True))  # dropout's, and the order's
    assert theirs["rate"] == ours["rate"] == 0.7**2
    assert theirs["loss"][0][0] == ours["loss"][0][0], "the first forward is the same, dropout included"
    assert all(whole > own for own, whole in ours["loss"]) and all(whole == own for own, whole in theirs["loss"])
    line = re.compile(r"(epoch \d, \d+ of 1024): ([\d.]+)")
    said = [[match.groups() for text in run["said"] if (match := line.fullmatch(text))] for run in (theirs, ours)]
    assert len(said[0]) == 16 and [head for head, _ in said[0]] == [head for head, _ in said[1]]
    assert all(a != b for (_, a), (_, b) in zip(*said, strict=True))
    assert theirs["model"].state_dict().keys() == ours["model"].state_dict().keys()
    assert theirs["accuracy"] > 0.5 and ours["accuracy"] != theirs["accuracy"], "the average predicts"


def test_with_four_lines_of_weight_nothing_not_even_the_weights_change() -> None:
    """What is changed is the loss, and by it the weights: take its term away, and all is as it was."""
    theirs, ours = play(SOMEBODYS), play(with_the_four_lines(), weight=0.0)
    assert theirs["said"] == ours["said"] and theirs["loss"] == ours["loss"]
    assert same(theirs["weights"], ours["weights"])
    assert not same(tensors(theirs["model"]), tensors(ours["model"])), "but the average predicts"


# ---- any module


def test_dropout_and_batch_norm() -> None:
    model = small()
    with torch.random.fork_rng(devices=[]):
        teacher, losses, predictor = train(model, 30)
    assert losses[-1] < losses[0] and model.training
    assert not predictor.training and torch.equal(predictor(images(0)[0]), predictor(images(0)[0]))
    assert teacher.net[1].training and not teacher.net[4].training


class Several(nn.Module):
    """A network that gives a dictionary, or a pair, with its logits somewhere in it."""

    def __init__(self, kind: str):
        super().__init__()
        self.net, self.kind = small(), kind

    def forward(self, x: Tensor) -> Any:
        features = self.net[:5](x)
        logits = self.net[5](features)
        return {"logits": logits, "features": features} if self.kind == "dict" else (features, logits)


@pytest.mark.parametrize(("kind", "logits"), [("dict", lambda out: out["logits"]), ("pair", lambda out: out[1])])
def test_several_outputs_through_a_function(kind: str, logits: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, expected, _ = train(small())
        torch.manual_seed(0)
        teacher, losses, predictor = train(Several(kind), logits=logits)
    assert losses == expected
    assert logits(predictor(images(0)[0])).shape == (6, 5)


def test_several_outputs_without_it_are_refused_with_what_to_write() -> None:
    out = Several("dict")(images(0)[0])
    with pytest.raises(ValueError, match=r"`dict`, not the logits.*`logits=lambda out"):
        mkd_loss(out, out)
    with pytest.raises(ValueError, match="`list`, not the logits"):
        mkd_loss([out, out], out["logits"])


@pytest.mark.parametrize("rule", [EMA(0.01), EMA(0.01, start="zero"), EMA(0.01, buffers="average"), HypoExponential(mu=100)])
def test_a_model_in_half_precision_has_a_teacher_that_moves(rule: Any) -> None:
    """At a rate of 0.01 the eight bits of a bfloat16 round every step away: the average is kept in float32."""
    model = small().to(torch.bfloat16)
    exact = rule.follow(deepcopy(model).float())
    teacher = rule.follow(model)
    generator = torch.Generator().manual_seed(3)
    target = [p + 0.5 * torch.randn(p.shape, generator=generator) for p in model.parameters()]
    for step in range(60):
        with torch.no_grad():
            for p, t in zip(model.parameters(), target, strict=True):
                p.lerp_(t.to(p.dtype), 0.1 if step < 20 else 0.0)
        teacher.update(model)
        exact.update(deepcopy(model).float())
    for mine, theirs in zip(teacher.net.parameters(), exact.net.parameters(), strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine.float(), theirs, rtol=1 / 128, atol=1e-4)
    again = rule.follow(small(1).to(torch.bfloat16))
    again.load_state_dict(safetensors.torch.load(safetensors.torch.save(dict(teacher.state_dict()))))
    for follower in teacher, again:
        follower.update(model)
    assert same(tensors(teacher), tensors(again))


def test_a_model_in_half_precision_trains_in_the_loop() -> None:
    teacher, losses, predictor = train(small().to(torch.bfloat16), 20, dtype=torch.bfloat16)
    assert losses[-1] < losses[0]
    assert {p.dtype for p in (*teacher.net.parameters(), *predictor.parameters())} == {torch.bfloat16}
    assert predictor(images(0)[0].bfloat16()).isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, about itself
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("inside", [False, True])
def test_a_model_under_torch_compile(inside: bool) -> None:
    model = small()[:4].append(nn.Linear(144, 5))
    _, expected, plain = train(deepcopy(model))
    torch._dynamo.reset()
    if inside:
        model.compile(backend="aot_eager")
        compiled: Any = model
    else:
        compiled = torch.compile(model, backend="aot_eager")
    teacher, losses, predictor = train(compiled)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
    x, _ = images(0)
    torch.testing.assert_close(predictor(x), plain(x), rtol=1e-4, atol=1e-5)
    again = EMA(0.1).follow(compiled)
    again.load_state_dict(teacher.state_dict())
    assert same(tensors(again), tensors(teacher))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("buffers", ["own", "student", "average"])
def test_a_frozen_backbone_with_a_trained_head(when: str, buffers: Any) -> None:
    """Its batch-norm rests: the teacher normalises by the same statistics, so that only the heads differ."""
    model = nn.Sequential(small()[:4], nn.Linear(144, 5))
    model[0](images(9)[0])  # statistics that are not the initial ones
    backbone, frozen = model[0].requires_grad_(False), tensors(model[0])
    if when == "before":
        backbone.eval()
    teacher = EMA(0.1, buffers=buffers).follow(model)
    if when == "after":
        model.train()
        backbone.eval()
        teacher.update(model)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    for i in range(5):
        x, y = images(i)
        assert torch.equal(teacher.net[0](x), backbone(x))
        logits = model(x)
        loss = F.cross_entropy(logits, y) + mkd_loss(logits, teacher(x), alpha=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(model)
    assert same(tensors(backbone), frozen) and same(tensors(teacher.net[0]), frozen)
    assert not torch.equal(teacher.net[1].weight, model[1].weight)
    teacher.eval()
    assert teacher.train() is teacher and not teacher.net[0][1].training
    predictor = average(model, teacher)
    assert same(tensors(predictor[0]), frozen)


def test_a_batch_norm_whose_weights_alone_are_frozen_goes_on_with_the_students() -> None:
    model = small()
    model[1].requires_grad_(False)
    teacher = EMA(0.1).follow(model)
    assert teacher.net[1].training
    model[1].eval()
    teacher.update(model)
    assert not teacher.net[1].training
    model.train()
    teacher.update(model)
    assert teacher.net[1].training
    snapshot = Snapshot().follow(model)
    model[1].eval()
    snapshot.boundary(model)
    assert not snapshot.net[1].training


PARALLEL = """
import sys
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from onepass.losses import mkd_loss
from onepass.teachers import EMA, average
torch.set_num_threads(1)
rank, meet, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
torch.manual_seed(rank)  # of the weights, those of the first process are taken
module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 5))
model = nn.parallel.DistributedDataParallel(module)
teacher = EMA(alpha=0.1).follow(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for step in range(6):
    x, y = torch.rand(3, 1, 8, 8), torch.randint(5, (3,))  # other images in each
    logits = model(x.flip(3))
    loss = F.cross_entropy(logits, y)
    loss = loss + mkd_loss([model(x), logits], teacher(x.flip(3)), alpha=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    teacher.update(model)
    losses.append(loss.item())
predictor = average(model, teacher)
found = {"student": module.state_dict(), "teacher": teacher.state_dict(), "predictor": predictor.state_dict(), "losses": losses}
dist.barrier()
if rank == 0:  # alone: nobody is waited for
    found["said"], found["taught"] = predictor(torch.rand(6, 1, 8, 8)).detach(), teacher(torch.rand(6, 1, 8, 8))
torch.save(found, out)
dist.barrier()
dist.destroy_process_group()
"""


def test_two_processes_under_distributed_data_parallel(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    places = [tmp_path / f"{rank}.pt" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PARALLEL, str(rank), str(tmp_path / "meet"), str(place)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, place in enumerate(places)
    ]
    try:
        ends = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [p.returncode for p in processes] == [0, 0], ends
    one, two = (torch.load(place, weights_only=True) for place in places)
    assert one["losses"] != two["losses"], "each saw other images"
    for name in "student", "teacher", "predictor":
        weights = [{k: v for k, v in found[name].items() if "running" not in k and "tracked" not in k} for found in (one, two)]
        assert same(*weights), f"the {name} is the same in both"
        assert not any(k.startswith("module.") for k in one[name])
    assert {k.removeprefix("net.") for k in one["teacher"] if k.startswith("net.")} == set(one["student"])
    assert one["said"].shape == one["taught"].shape == (6, 5)


# ---- saved and loaded


@pytest.mark.parametrize("through", ["torch", "safetensors"])
def test_a_loop_that_is_broken_off_goes_on_from_its_state_dicts(through: str) -> None:
    model, steps = small()[:4].append(nn.Linear(144, 5)), 6
    teacher = EMA(0.1, start="debiased", buffers="average").follow(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def go(model: nn.Module, teacher: Any, optimizer: torch.optim.Optimizer, first: int) -> None:
        for step in range(first, first + steps):
            x, y = images(step)
            logits = model(x)
            loss = F.cross_entropy(logits, y) + mkd_loss(logits, teacher(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            teacher.update(model)

    go(model, teacher, optimizer, 0)
    state: dict[str, Tensor] = {f"model.{k}": v for k, v in model.state_dict().items()}
    state |= {f"teacher.{k}": v for k, v in teacher.state_dict().items()}
    if through == "torch":
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        back = torch.load(file, weights_only=True)
    else:
        back = safetensors.torch.load(safetensors.torch.save(state))
    go(model, teacher, optimizer, steps)

    model2 = small(1)[:4].append(nn.Linear(144, 5))
    teacher2 = EMA(0.1, start="debiased", buffers="average").follow(model2)
    model2.load_state_dict({k[6:]: v for k, v in back.items() if k.startswith("model.")})
    teacher2.load_state_dict({k[8:]: v for k, v in back.items() if k.startswith("teacher.")})
    go(model2, teacher2, torch.optim.SGD(model2.parameters(), lr=0.05), steps)
    assert same(tensors(model2), tensors(model)) and same(tensors(teacher2), tensors(teacher))


# ---- what it costs


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name().removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def test_it_costs_its_forwards_and_one_pass_over_the_weights() -> None:
    """Of one step: the four lines add the student's second forward (and what is backward of it), the teacher's one, a loss of
    arithmetic on logits, and a single operation on the lists of the weights; and nothing waits for a device."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    teacher = EMA(0.1).follow(model)
    x, y = images(0)

    def step(mkd: bool) -> Counter[str]:
        with Operations() as seen:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            if mkd:
                loss = loss + mkd_loss([model(x), logits], teacher(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return seen.calls

    with torch.random.fork_rng(devices=[]):
        alone, more = step(False), step(True)
    assert alone["convolution"] == 1 and more["convolution"] == 3
    assert alone["native_batch_norm"] + alone["cudnn_batch_norm"] + alone["_native_batch_norm_legit"] >= 1
    assert alone["convolution_backward"] == 1 and more["convolution_backward"] == 2
    assert not any("_local_scalar_dense" in name or name in ("item", "nonzero") for name in more)
    with Operations() as seen:
        teacher.update(model)
    assert {k: n for k, n in seen.calls.items() if k not in ("detach", "alias")} == {"_foreach_lerp_.Scalar": 1}
