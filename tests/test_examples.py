"""Every example runs, and so does what the README shows."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onepass.cli import main
from onepass.contract import COMPANIES, Company, check_method
from onepass.data import source
from onepass.distill import MKD
from onepass.learner import Learner
from onepass.methods.er import ER
from onepass.nets import ResNet18
from onepass.online import OnlineLearner
from onepass.record import records
from onepass.seeds import Seeds
from onepass.stream import Batch, Blurry, Clear, Spec

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()
TINY = ("--limit", "12", "--net.width", "2", "--per-class", "4", "--workers", "1")


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The file as a module that is not `__main__`."""
    name = f"example_{request.param}"
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{request.param}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def test_every_example_is_tested_here() -> None:
    assert sorted(f.stem for f in EXAMPLES.glob("*.py")) == [
        "blurry_stream",
        "image_folder",
        "new_method",
        "new_teacher",
        "own_loop",
        "resume",
    ]


# ---- a loop of one's own


@pytest.mark.parametrize("example", ["own_loop"], indirect=True)
def test_the_loop_of_ones_own_trains_with_and_without(example: ModuleType) -> None:
    for mkd in (False, True):
        first = example.train(mkd, seed=0, limit=12)
        assert 0.0 < first <= 1.0
        assert example.train(mkd, seed=0, limit=12) == first
    batches, (x, y) = example.stream(0)
    assert len(x) == len(y) == 360 and sum(len(labels) for _, labels in batches) == 1797 - 360


def test_the_loop_of_ones_own_is_short_and_uses_four_lines_of_onepass() -> None:
    text = (EXAMPLES / "own_loop.py").read_text()
    assert len(text.splitlines()) < 100
    assert re.findall(r"^.*onepass.*import.*$|^import onepass.*$", text, re.M) == ["from onepass import EMA, average, mkd_loss"]
    marked = dict(re.findall(r"^ *(.*?) *# ([1-4])\b.*$", text, re.M)[i][::-1] for i in range(4))
    assert list(marked) == ["1", "2", "3", "4"]
    for number, call in zip("1234", ("EMA(alpha=", "mkd_loss(", "teacher.update(model)", "average(model, teacher)"), strict=True):
        assert call in marked[number]
        assert text.count(call) == 1


# ---- a folder of images that keeps changing


@pytest.mark.parametrize("example", ["image_folder"], indirect=True)
def test_a_folder_that_grows_is_learnt_once_and_again_after_a_restart(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "digits"
    first = example.demo(folder, each=4, width=2)
    said = capsys.readouterr().out
    assert said.count("40 images of 10 classes") == 1 and "1757 digits that were never learnt: " in said
    again = example.Watcher(folder, None)  # from its file
    assert again.learner.images_seen == first.learner.images_seen == 40
    assert again.look() == 0
    (folder / "digit 3" / "half.png").write_bytes(next((folder / "digit 3").glob("*.png")).read_bytes()[:60])
    (folder / "digit 3" / "notes.txt").write_text("no image")
    assert again.look() == 1 and again.learner.images_seen == 40  # what cannot be read yet is looked at again
    whole = next((folder / "digit 3").glob("[0-9]*.png"))
    (folder / "digit 3" / "half.png").write_bytes(whole.read_bytes())
    again.look()
    assert again.learner.images_seen == 41 and again.look() == 0
    assert example.Watcher(folder, None).learner.images_seen == 41
    folder.with_suffix(".txt").unlink()  # killed between the first time that the one was written and the other
    assert example.Watcher(folder, None).learner.images_seen == 41


@pytest.mark.parametrize("example", ["image_folder"], indirect=True)
def test_a_folder_of_which_nothing_can_be_read_yet_is_looked_at_again(example: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "half.png").write_bytes(b"half")
    watcher = example.Watcher(tmp_path / "photos", OnlineLearner(image=(1, 8, 8), net=ResNet18(width=2)))
    assert watcher.look() == 1 and watcher.look() == 1 and watcher.learner.images_seen == 0


# ---- a stream without boundaries


@pytest.mark.parametrize("example", ["blurry_stream"], indirect=True)
def test_a_blurry_stream_is_seen_and_learnt_from(example: ModuleType, tmp_path: Path) -> None:
    data = source("digits").load()
    clear, blurry = (
        example.picture(order.over(data.train, data.names, Seeds(0))) for order in (Clear(tasks=5), Blurry(tasks=5, scale=300))
    )
    assert len(clear) == len(blurry) == 10 and {len(row) for row in (*clear, *blurry)} == {example.PARTS}
    assert clear[0].rstrip() and not clear[0][7:].strip() and not clear[9][:23].strip()
    assert sum(len(row.replace(" ", "")) for row in blurry) > 2 * sum(len(row.replace(" ", "")) for row in clear)
    record = example.learn("er+mkd", 30, str(tmp_path), limit=12, width=2)
    assert record.config["config"]["stream"] == {"is": "Blurry", "tasks": 5, "scale": 30, "sequential": False}
    assert record.done is not None and 0 <= record.summary["accuracy"] <= 1


# ---- a run that is killed


@pytest.mark.parametrize("example", ["resume"], indirect=True)
def test_a_killed_run_ends_with_the_same_bits(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # of the child: bits depend on their number
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    assert example.main(limit=400, width=2)
    found = re.fullmatch(r"killed after about (\d+) of 400 images, taken up again: the same bits\n", capsys.readouterr().out)
    assert found is not None and 0 < int(found[1]) < 400


# ---- a method and a teacher of one's own


@pytest.mark.parametrize("example", ["new_method"], indirect=True)
def test_the_new_method_keeps_the_contract(example: ModuleType) -> None:
    """Alone and with MKD; the file itself, run by hand, checks all four companies."""
    lines = check_method(example.LogitAdjusted(), companies=COMPANIES[:2])
    assert [line.partition(":")[0] for line in lines] == [
        f"LogitAdjusted, {company}, {stream}" for stream in ("clear", "blurry") for company in ("alone", "mkd")
    ]


@pytest.mark.parametrize("example", ["new_teacher"], indirect=True)
def test_the_new_teacher_keeps_the_contract(example: ModuleType) -> None:
    companies = (Company("its mean", example.Mean(), MKD(weight=5.5), "average"),)
    assert len(check_method(ER(), companies=companies)) == 2


@pytest.mark.parametrize("example", ["new_teacher"], indirect=True)
def test_the_new_teacher_is_the_mean_of_the_students_since_the_boundary(example: ModuleType) -> None:
    learner = Learner(Spec(4, (1, 8, 8)), ER(), teacher=example.Mean(), net=ResNet18(width=2), precision="fp32")
    follower = learner.followers["teacher"]
    generator = torch.Generator().manual_seed(0)
    students: list[torch.Tensor] = []
    for i in range(6):
        if i == 3:
            follower.boundary(learner.student)
            students = []
        x = torch.randint(256, (8, 1, 8, 8), dtype=torch.uint8, generator=generator)
        if learner.observe(Batch(x, torch.randint(4, (8,), generator=generator))):
            students.append(flat(learner.student))
    assert len(students) == 3
    assert torch.allclose(flat(follower.net), torch.stack(students).mean(0), atol=1e-6)


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in net.parameters()])


COMMANDS = [command for f in sorted(EXAMPLES.glob("*.py")) for command in re.findall(r"`onepass (run [^`]*)`", f.read_text())]


def test_the_examples_name_a_command_each() -> None:
    assert COMMANDS == [
        "run examples/new_method.py:LogitAdjusted+mkd",
        "run er+mkd --teacher examples/new_teacher.py:Mean --distill.weight 5.5",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_of_an_example_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*command.split(), *TINY, "--runs", str(tmp_path / "runs")]) == 0
    (record,) = records(tmp_path / "runs")
    config = record.config["config"]
    assert record.done is not None
    assert config["distill"]["is"] == "MKD"
    assert any(config[part]["is"].startswith("examples/") for part in ("method", "teacher"))


# ---- the README

BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
RUNS = re.findall(r"onepass (run [^`\n]*)", README)


def test_the_readme_has_the_four_lines_and_some_commands() -> None:
    assert BLOCKS and RUNS
    assert "four lines" in README.lower()
    assert [number for block in BLOCKS for number in re.findall(r"# ([1-4])$", block, re.M)] == ["1", "2", "3", "4"]


def test_the_loop_of_the_readme_executes() -> None:
    """By itself, and with another model than that of `test_docs.py`, which executes every block."""
    (block,) = (block for block in BLOCKS if "# 1" in block)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    before = flat(model)
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.rand(6, 1, 8, 8, generator=generator), torch.randint(3, (6,), generator=generator)) for _ in range(3)]
    names = {
        "model": model,
        "loader": batches,
        "augment": lambda x: x.flip(3),
        "criterion": F.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    exec(compile(block, "README.md", "exec"), names)
    after = flat(model)
    assert not torch.equal(before, after) and bool(after.isfinite().all())
    predictor = names["predictor"]
    assert isinstance(predictor, nn.Module) and not predictor.training
    assert predictor(batches[0][0]).shape == (6, 3)


@pytest.mark.parametrize("command", RUNS)
def test_a_command_of_the_readme_is_understood(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is run, so that data may be missing; of what is asked for, every word is checked."""
    monkeypatch.chdir(ROOT)  # where the files are that it names
    assert main([*shlex.split(command), "--explain", "--runs", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert out and not err
    assert not list(tmp_path.iterdir())
