"""The contract of every method, that its check catches what breaks it, and a third party's method from the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass import contract
from onepass.boundaries import NewClass
from onepass.cli import main
from onepass.contract import COMPANIES, Broken, Company, check_method, learner_for, toy
from onepass.data import source
from onepass.errors import Refused
from onepass.method import Method
from onepass.methods import METHODS
from onepass.methods.er import ER
from onepass.methods.gsa import GSA
from onepass.nets import Custom, Head
from onepass.recipes import recipe
from onepass.record import Record, records
from onepass.step import Step
from onepass.stream import Blurry, Clear, Spec
from onepass.teachers import EMA

ALONE = COMPANIES[:1]

# ---- every method
#
# With the contract's own ResNet18 that is 105 s of computing.  Here its network has two layers, and everything else is as it is for
# users: all four companies on both streams, four seconds a method.  ER is also held against it with the network it has.


class TwoLayers(nn.Module):
    def __init__(self, head: Head, classes: int, image: tuple[int, int, int]):
        super().__init__()
        first = nn.Sequential(nn.Conv2d(image[0], 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        second = nn.Sequential(nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.body = nn.Sequential(first, second, nn.Flatten())
        self.classifier = head.build(24 * (image[1] // 4) * (image[2] // 4), classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def with_two_layers(monkeypatch: pytest.MonkeyPatch, method: Method) -> None:
    network = Custom(lambda classes, image: TwoLayers(method.classifier, classes, image))
    monkeypatch.setattr(contract, "ResNet18", lambda width: network)


def kept(method: Method, companies: tuple[Company, ...] = COMPANIES) -> list[str]:
    return [
        f"{type(method).__name__}, {company.name}, {stream}: finite, learns, resumes bit for bit, draws as alone"
        for stream in ("clear", "blurry")
        for company in companies
    ]


@pytest.mark.parametrize("word", METHODS)
def test_every_method_keeps_the_contract_in_every_company_on_every_stream(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = recipe(word, source("cifar10")).method
    assert type(method) is METHODS[word]
    with_two_layers(monkeypatch, method)
    assert check_method(method) == kept(method)


@pytest.mark.parametrize("word", METHODS)
def test_a_recipe_has_the_same_method_on_digits(word: str) -> None:
    assert recipe(word, source("digits")).method == recipe(word, source("cifar10")).method


def test_the_companies_are_those_of_the_contract() -> None:
    assert [company.name for company in COMPANIES] == ["alone", "mkd", "sdp", "te"]


def test_the_check_runs_with_its_own_network() -> None:
    assert check_method(ER(), companies=ALONE) == kept(ER(), ALONE)


def test_it_leaves_the_number_of_threads_and_the_global_generator_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    with_two_layers(monkeypatch, ER())
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        check_method(ER(), companies=ALONE)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("family", ["default", "published"])
def test_gsa_is_refused_on_a_blurry_stream_with_the_papers_reason(family: str) -> None:
    config = recipe("gsa", source("cifar10"), stream="blurry", family=family)  # pyright: ignore
    with pytest.raises(Refused, match="`GSA` cannot be run on a `Blurry` stream.*the paper leaves it out.*boundaries=NewClass"):
        config.learner(Spec(10, (3, 32, 32)), sharp=False)


def test_with_a_rule_gsa_is_made_for_one() -> None:
    config = replace(recipe("gsa", source("cifar10"), stream="blurry"), boundaries=NewClass(lag=5))
    learner = config.learner(Spec(10, (3, 32, 32)), sharp=False)
    assert isinstance(learner.method, GSA) and learner.boundaries == NewClass(lag=5)


@pytest.mark.parametrize("company", COMPANIES[1:], ids=lambda company: company.name)
@pytest.mark.parametrize("stream", [Clear(2), Blurry(2, scale=20.0)], ids=["clear", "blurry"])
@pytest.mark.parametrize("word", METHODS)
def test_company_changes_no_row_that_is_drawn_and_no_augmentation(
    word: str, stream: Clear | Blurry, company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory alone, which the check compares, does not show what was replayed.  DVC chooses its replay by the network's
    gradient, which company may well change: of it, the candidates are compared."""
    method = recipe(word, source("cifar10")).method
    with_two_layers(monkeypatch, method)
    played = toy(stream, per_class=20)

    def drawn(company: Company) -> dict[tuple[int, str], Tensor]:
        learner, found = learner_for(method, company, played), dict[tuple[int, str], Tensor]()
        make = learner.step

        def watched(*given: object) -> Step:
            step = make(*given)  # pyright: ignore
            pick = step.memory.draw

            def noted(n: int, **more: object) -> object:
                rows = pick(n, **more)  # pyright: ignore
                found[learner.clock.updates, rows.name] = rows.x
                return rows

            close = step.close

            def closed() -> None:
                step.memory.draw = pick
                for key, view in step._views.items():  # pyright: ignore[reportPrivateUsage]
                    if key[1:3] == ("aug", "main") and not view.parts and (word, view.name) != ("dvc", "aug(replay)"):
                        found[learner.clock.updates, view.name] = view.x
                close()

            step.memory.draw, step.close = noted, closed  # pyright: ignore
            return step

        learner.step = watched  # pyright: ignore
        for batch in list(played.batches(8))[:6]:
            learner.observe(batch)
        return found

    alone, together = drawn(ALONE[0]), drawn(company)
    assert len(alone) >= 10 and alone.keys() <= together.keys()
    assert all(torch.equal(rows, together[key]) for key, rows in alone.items())


# ---- what it catches


@dataclass(frozen=True)
class Fine(Method):
    """Replay, as a base to spoil."""

    def loss(self, step: Step) -> Tensor | None:
        if not len(step.replay):
            return None
        return F.cross_entropy(step.student(step.aug(step.both)).logits, step.both.y, reduction=self.reduction)

    reduction: str = "mean"


@dataclass(frozen=True)
class NotANumber(Fine):
    def loss(self, step: Step) -> Tensor | None:
        loss = super().loss(step)
        return None if loss is None else loss * float("nan" if step.stream.y[0] == 3 else 1)


@dataclass(frozen=True)
class OneValue(Fine):
    """A loss that can be differentiated, and is not a scalar."""

    def loss(self, step: Step) -> Tensor | None:
        loss = super().loss(step)
        return None if loss is None else loss[None]


UPDATES: list[int] = []


@dataclass(frozen=True)
class InAGlobal(Fine):
    def loss(self, step: Step) -> Tensor | None:
        UPDATES.append(0)
        loss = super().loss(step)
        return None if loss is None else loss / (1 + len(UPDATES) / 100)


@dataclass(frozen=True)
class InAnAttribute(Fine):
    kept: ClassVar[dict[str, Tensor]] = {}

    def loss(self, step: Step) -> Tensor | None:
        loss = super().loss(step)
        if loss is None:
            return None
        mean = self.kept.get("mean", loss.detach()).lerp(loss.detach(), 0.1)
        self.kept["mean"] = mean
        return loss * mean


@dataclass(frozen=True)
class Idle(Fine):
    def loss(self, step: Step) -> Tensor | None:
        return step.student(step.aug(step.stream)).logits.sum() * 0


@dataclass(frozen=True)
class Silent(Fine):
    def loss(self, step: Step) -> Tensor | None:
        return None


@dataclass
class Unhashable(Method):
    def loss(self, step: Step) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Chance(Fine):
    """Draws from the global generator."""

    def loss(self, step: Step) -> Tensor | None:
        loss = super().loss(step)
        return None if loss is None else loss * torch.rand(())


@dataclass(frozen=True)
class Failing(Fine):
    def loss(self, step: Step) -> Tensor | None:
        raise KeyError("mine")


@dataclass(frozen=True, kw_only=True)
class Meddling:
    """A distiller that touches what is not its own."""

    def state(self, spec: Spec) -> dict[str, Tensor]:
        return {}

    def loss(self, step: Step, base: Tensor) -> Tensor:
        step.memory.y[0] = 0
        step.memory.x[0] = 0
        return base


CAUGHT = {
    "a loss that is not a number": (NotANumber(), "NotANumber, alone, clear: loss .* is .*nan.*not a finite scalar"),
    "a loss of each image": (Fine("none"), "Fine, alone, clear: update 1 failed: RuntimeError: grad can be .* only for scalar"),
    "a loss of one value in a list": (OneValue(), "OneValue, alone, clear: loss 0 is .*, not a finite scalar"),
    "what changes, in a global": (InAGlobal(), "InAGlobal, alone, clear: after a save and a restore .* differ; .* into `state`"),
    "what changes, in the class": (InAnAttribute(), "InAnAttribute, alone, clear: after a save and a restore .* differ"),
    "a constant loss": (Idle(), "Idle, alone, clear: .* % of four easy classes are right after one pass, and a guess gives 25 %"),
    "never a loss": (Silent(), "Silent, alone, clear: no batch gave a loss, so nothing was learnt"),
    "no hash": (Unhashable(), "`Unhashable` cannot be hashed .*; make it a frozen dataclass"),
    "the global generator": (
        Chance(),
        "Chance, alone, clear: .* differ; .* what is drawn comes from `step.random`",
    ),
    "an error of its own": (Failing(), "Failing, alone, clear: update 0 failed: KeyError: 'mine'"),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_the_check_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, said = CAUGHT[name]
    UPDATES.clear()
    InAnAttribute.kept.clear()
    with_two_layers(monkeypatch, method)
    with pytest.raises(Broken, match=f"^{said}"):
        check_method(method, companies=ALONE)


def test_what_they_spoil_is_fine_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with_two_layers(monkeypatch, Fine())
    assert check_method(Fine(), companies=ALONE) == kept(Fine(), ALONE)


def test_the_check_catches_company_that_changes_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    with_two_layers(monkeypatch, Fine())
    companies = (*ALONE, Company("meddling", EMA(0.2), Meddling()))
    with pytest.raises(Broken, match="^Fine, meddling, clear: the memory differs from that of the method alone"):
        check_method(Fine(), companies=companies)


# ---- a third party's, from the command line

MINE = """
from dataclasses import dataclass

import torch.nn.functional as F

import onepass


@dataclass(frozen=True)
class Mine(onepass.Method):
    scale: float = 1.0

    def loss(self, step):
        if not len(step.replay):
            return None
        return self.scale * F.cross_entropy(step.student(step.aug(step.both)).logits, step.both.y)


@dataclass(frozen=True)
class NotAMethod:
    scale: float = 1.0


class NotADataclass(onepass.Method):
    def loss(self, step):
        return None


@dataclass(frozen=True)
class NoLoss(onepass.Method):
    scale: float = 1.0


@dataclass(frozen=True)
class Wanting(onepass.Method):
    scale: float

    def loss(self, step):
        return None


@dataclass
class NotFrozen(onepass.Method):
    scale: float = 1.0

    def loss(self, step):
        return None
"""
TINY = ("--limit", "8", "--net.width", "2", "--per-class", "4")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with the file in a folder of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their").mkdir()
    (tmp_path / "their" / "mine.py").write_text(MINE)
    return tmp_path


def test_a_method_in_a_file_runs_with_a_suffix_in_two_workers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "their/mine.py:Mine+mkd", "--seeds", "0", "1", "--workers", "2", *TINY]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "Mine+mkd" in said.out and "Traceback" not in said.err
    first, second = records("runs")
    assert [first.seed, second.seed] == [0, 1]
    config = first.config["config"]
    assert config["method"] == {"is": "their/mine.py:Mine", "scale": 1.0}
    assert config["distill"]["is"] == "MKD" and config["teacher"]["is"] == "EMA" and config["infer"] == "average"
    assert first.title == "Mine+mkd" and first.done is not None
    assert {"accuracy_student", "accuracy_teacher", "accuracy_average"} <= first.summary.keys()
    before = {record.path: (record.path / "done.json").stat().st_mtime_ns for record in (first, second)}
    assert main(command) == 0  # at once, as it was
    assert {record.path: (record.path / "done.json").stat().st_mtime_ns for record in records("runs")} == before


def identity(word: str) -> str:
    return recipe(word, source("digits")).identity


def test_its_source_is_part_of_what_the_run_is(folder: Path) -> None:
    file = folder / "their" / "mine.py"
    before = identity("their/mine.py:Mine+mkd")
    assert identity("their/mine.py:Mine+mkd") == before
    file.write_text(MINE + "\n# another thought\n")
    changed = identity("their/mine.py:Mine+mkd")
    assert changed != before
    file.write_text(MINE)
    assert identity("their/mine.py:Mine+mkd") == before


def test_a_changed_file_is_another_run(folder: Path) -> None:
    command = ["run", "their/mine.py:Mine", *TINY]
    assert main(command) == 0
    (folder / "their" / "mine.py").write_text(MINE.replace("return self.scale", "return 2 * self.scale"))
    assert main(command) == 0
    paths = [record.path.name for record in records("runs")]
    assert len(set(paths)) == 2
    logs = [[line["loss"] for line in Record(record.path).log] for record in records("runs")]
    assert logs[0] != logs[1]


def test_its_fields_are_flags(folder: Path) -> None:
    assert main(["run", "their/mine.py:Mine+mkd", "--method.scale", "2", *TINY]) == 0
    (record,) = records("runs")
    assert json.loads((record.path / "config.json").read_text())["config"]["method"] == {"is": "their/mine.py:Mine", "scale": 2.0}


WRONG = {
    "their/mine.py:NotADataclass": "`their/mine.py:NotADataclass` is not a dataclass; write `@dataclass(frozen=True)` above it.",
    "their/mine.py:NotAMethod+mkd": "`their/mine.py:NotAMethod` is not a method; derive it from `onepass.Method`.",
    "their/mine.py:Min+mkd": "`their/mine.py` has no `Min`.",
    "their/yours.py:Mine": "There is no file `their/yours.py`",
    "their/mine.py:NoLoss": "`loss`",
    "their/mine.py:Wanting": "`scale`",
    "their/mine.py:NotFrozen": "frozen",
    "their/mine.py:Mine+mdk": "There is no suffix `mdk`; did you mean `mkd`?",
}


@pytest.mark.parametrize("word", WRONG)
def test_a_mistake_in_it_is_one_line_and_writes_nothing(word: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def there() -> list[Path]:
        return sorted(f for f in folder.rglob("*") if "__pycache__" not in f.parts)

    before = there()
    code = main(["run", word, "--workers", "1", *TINY])
    out, err = capsys.readouterr()
    assert code == 2 and not out
    (line,) = err.splitlines()
    assert line.startswith("onepass: ") and WRONG[word] in line, line
    assert there() == before
