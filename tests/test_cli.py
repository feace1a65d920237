"""The command line, as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from onepass import terminal
from onepass.__about__ import __version__
from onepass.cli import main
from onepass.config import Config
from onepass.data.digits import Digits
from onepass.loop import Progress
from onepass.metrics import mean_std
from onepass.recipes import recipe
from onepass.record import Record, records

SRC = str(Path(__file__).parents[1] / "src")
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in (SRC, os.environ.get("PYTHONPATH")) if p), "OMP_NUM_THREADS": "1"}
SMALL = ("--net.width", "2", "--per-class", "3")  # five tasks of six images

Said = tuple[int, str, str]  # exit code, stdout, stderr


def shell(*words: str, cwd: Path) -> Said:
    done = subprocess.run([sys.executable, "-m", "onepass.cli", *words], cwd=cwd, env=ENV, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """The command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str | Path) -> Said:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse after --version
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def one_line(said: Said) -> str:
    """The one line of a mistake: on stderr, beginning with the program's name; exit code 2."""
    code, out, err = said
    assert "Traceback" not in err and code == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("onepass: ")]
    assert err.splitlines()[-1] == line and line not in out
    return line


def written(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*"))


def rows_of(out: str, end: str = "") -> list[list[str]]:
    """The cells of a table, without its heading."""
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if re.fullmatch("-+", line)) + 1
    last = next((i for i, line in enumerate(lines) if i >= first and line == end), len(lines))
    return [re.split(r" {2,}", line.strip()) for line in lines[first:last]]


# ---- help


def best_of(tries: int, limit: float, act: Callable[[], object]) -> float:
    """Seconds of the fastest, or of the processor in the process it starts: others are at work on this machine too."""
    fastest = float("inf")
    for _ in range(tries):
        began, used = time.perf_counter(), os.times()
        act()
        now = os.times()
        worked = now.children_user + now.children_system - used.children_user - used.children_system
        fastest = min(fastest, (wall := time.perf_counter() - began), worked or wall)
        if fastest < limit:
            break
    return fastest


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["run", "-h"], ["runs", "--help"], ["predict", "--help"], []], ids=" ".join
)
def test_help_takes_under_half_a_second_and_imports_no_torch(tmp_path: Path, words: list[str]) -> None:
    program = (
        "import sys\nfrom onepass.cli import main\n"
        f"try: code = main({words!r})\nexcept SystemExit as end: code = end.code or 0\n"
        "print('heavy:', sorted({'torch', 'numpy', 'sklearn', 'matplotlib', 'rich', 'safetensors'} & set(sys.modules)), code)"
    )
    out = ""

    def ask() -> None:
        nonlocal out
        out = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=ENV, capture_output=True, text=True).stdout

    assert best_of(5, 0.5, ask) < 0.5
    assert out.startswith("usage: onepass") and out.endswith("heavy: [] 0\n")
    if words[:1] == ["run"]:
        assert all(flag in out for flag in ("--data ", "--memory ", "--stream ", "--seeds ", "--runs ", "--explain", "er+mkd"))


def test_the_version_is_the_packages(cli: Callable[..., Said]) -> None:
    assert cli("--version") == (0, f"onepass {__version__}\n", "")


def flags_of(value: Any, prefix: str = "--") -> set[str]:
    """Every field of a tree as a flag."""
    flags: set[str] = set()
    for f in fields(value):
        item, name = getattr(value, f.name), prefix + f.name.replace("_", "-")
        flags |= {name} | (flags_of(item, name + ".") if is_dataclass(item) else set())
    return flags


def help_table(out: str) -> dict[str, str]:
    """The flags of a config in its help, and the value shown for each."""
    lines = out[out.index("fields of er+mkd:") :].splitlines()[3:]
    return {cells[0]: cells[2] if len(cells) > 2 else "" for line in lines if (cells := re.split(r" {2,}", line.strip()))}


def test_the_help_of_a_method_lists_every_field_in_under_four_seconds(tmp_path: Path) -> None:
    said: Said = (1, "", "")

    def ask() -> None:
        nonlocal said
        said = shell("run", "er+mkd", "--help", cwd=tmp_path)

    assert best_of(3, 4.0, ask) < 4.0
    code, out, err = said
    assert (code, err) == (0, "")
    listed = help_table(out)
    assert set(listed) == flags_of(recipe("er+mkd", Digits()))
    assert (listed["--teacher.alpha"], listed["--batch-size"], listed["--net.width"]) == ("0.05", "2", "20")
    assert "--explain" in out and written(tmp_path) == []


def test_what_the_help_shows_of_a_field_can_be_given_for_it(cli: Callable[..., Said]) -> None:
    _, out, _ = cli("run", "er+mkd", "--help")
    shown = help_table(out)
    plain = cli("run", "er+mkd", "--explain")[1].splitlines()[0]
    refused = [f"{flag} {value}" for flag, value in shown.items() if cli("run", "er+mkd", flag, value, "--explain")[0] != 0]
    assert refused == []
    assert [
        flag for flag, value in shown.items() if cli("run", "er+mkd", flag, value, "--explain")[1].splitlines()[0] != plain
    ] == []


# ---- a run


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """The demonstration, cut short, by the shell, with as many runs at once as there are cores."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, shell(
        "run", "er", "er+mkd", "--data", "digits", "--seeds", "0", "1", "--limit", "20", "--net.width", "2", cwd=folder
    )


def test_a_run_ends_with_a_table_of_one_row_a_method(demo: tuple[Path, Said]) -> None:
    folder, (code, out, err) = demo
    assert code == 0, err
    assert "Traceback" not in err and "Warning" not in err
    rows = rows_of(out)
    assert [row[0] for row in rows] == ["er", "er+mkd"]
    heading = re.split(r" {2,}", out.splitlines()[0])
    assert heading[:5] == ["method", "accuracy", "std", "backward transfer", "images/s"] and "seconds" in heading
    found = records(folder / "runs")
    assert len(found) == 4
    for row in rows:
        values = [100 * r.done["summary"]["accuracy"] for r in found if r.title == row[0] and r.done is not None]
        mean, std = mean_std(values)
        assert row[1:3] == [f"{mean:.1f}", f"{std:.1f}"]
        cells = dict(zip([h for h in heading if h != "backward transfer"], row, strict=True))  # of one task there is none
        assert cells["seeds"] == "2" and float(cells["seconds"]) > 0 and int(cells["images/s"]) > 0


def test_then_it_names_what_it_wrote(demo: tuple[Path, Said]) -> None:
    folder, (_, out, _) = demo
    paths = [Path(line) for line in out[out.index("\n\n") + 2 :].splitlines()]
    assert paths and all((folder / path).exists() for path in paths)
    assert {folder / p for p in paths if (folder / p).is_dir()} == {r.path for r in records(folder / "runs")}
    pictures = [p for p in paths if p.suffix in (".svg", ".png")]
    assert any("accuracy" in p.name for p in pictures) and any("confusion" in p.name for p in pictures)
    assert all((folder / p).stat().st_size > 1000 for p in pictures)


def test_the_same_command_again_gives_the_same_table_and_trains_nothing(
    demo: tuple[Path, Said], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (_, out, _) = demo
    monkeypatch.chdir(folder)
    times = {f: f.stat().st_mtime_ns for r in records("runs") for f in r.path.iterdir()}
    words = ["run", "er", "er+mkd", "--data", "digits", "--seeds", "0", "1", "--limit", "20", "--net.width", "2"]
    assert main(words) == 0
    assert capsys.readouterr().out == out
    assert {f: f.stat().st_mtime_ns for r in records("runs") for f in r.path.iterdir()} == times


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs`: ER and ER+MKD on five small tasks."""
    folder = tmp_path_factory.mktemp("home")
    code = main(["run", "er", "er+mkd", *SMALL, "--workers", "1", "--runs", str(folder / "runs")])
    assert code == 0
    return folder


def test_backward_transfer_is_in_the_table_where_there_is_any(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "er", "er+mkd", *SMALL, "--runs", str(home / "runs")]) == 0
    for row in rows_of(capsys.readouterr().out):
        (record,) = [r for r in records(home / "runs") if r.title == row[0]]
        assert record.done is not None
        assert row[2] == f"{100 * record.done['summary']['backward_transfer']:.1f}"  # one seed: no std


def test_a_run_asked_for_twice_is_counted_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", "er", "er", *SMALL, "--seeds", "0", "0", "--runs", str(home / "runs")])
    assert code == 2 or [row[-1] for row in rows_of(capsys.readouterr().out)] == ["1"]


def test_a_network_of_ones_own_is_trained(cli: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.body, self.classifier = nn.Linear(64, 8), nn.Linear(8, classes)\n\n"
        "    def features(self, x):\n"
        "        return self.body(x.flatten(1)).relu()\n\n\n"
        "def build(classes, image):\n"
        "    assert (classes, image) == (10, (1, 8, 8))\n"
        "    return Mine(classes)\n"
    )
    code, out, err = cli("run", "er", "--net", "mine.py:build", "--limit", "20")
    assert code == 0, err
    (record,) = records("runs")
    assert record.config["config"]["net"] == {"is": "Custom", "build_from": "mine.py:build"}
    assert rows_of(out)[0][0] == "er"
    Image.new("L", (8, 8)).save("image.png")
    assert cli("predict", record.path, "image.png")[0] == 0
    mine = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(mine.replace("64, 8", "64, 9").replace("(8,", "(9,"))
    assert "which was changed since" in one_line(cli("predict", record.path, "image.png"))


# ---- where values come from


def explained(said: Said) -> dict[str, tuple[str, str]]:
    """Each field's value and source."""
    code, out, err = said
    assert code == 0 and "Traceback" not in err, err
    return {row[0]: (row[-2], row[-1]) for row in rows_of(out)}


def test_a_flag_comes_before_the_file_the_file_before_the_recipe_the_recipe_before_the_default(cli: Callable[..., Said]) -> None:
    Path("some.json").write_text(json.dumps({"memory": 30, "optim": {"lr": 0.25}, "replay_size": 8, "stream": {"tasks": 2}}))
    plain = explained(cli("run", "er", "--explain"))
    assert plain["memory"] == ("20", "recipe") and plain["updates"] == ("1", "default")
    assert plain["optim.lr"][0] == "0.0005" and plain["batch_size"] == ("2", "recipe")
    filed = explained(cli("run", "er", "--config", "some.json", "--explain"))
    for path, value in {"memory": "30", "optim.lr": "0.25", "replay_size": "8", "stream.tasks": "2"}.items():
        assert filed[path] == (value, "some.json")
    assert filed["batch_size"] == plain["batch_size"] and filed["optim.weight_decay"] == plain["optim.weight_decay"]
    flagged = explained(
        cli("run", "er", "--config", "some.json", "--memory", "40", "--optim.lr=0.5", "--tasks", "1", "--explain")
    )  # fmt: skip
    for path, value in {"memory": "40", "optim.lr": "0.5", "stream.tasks": "1"}.items():
        assert flagged[path] == (value, "flag")
    assert flagged["replay_size"] == ("8", "some.json")


def test_a_stream_named_by_a_flag_comes_before_the_files(cli: Callable[..., Said]) -> None:
    Path("some.json").write_text('{"stream": {"is": "Clear", "tasks": 2}}')
    assert explained(cli("run", "er", "--config", "some.json", "--explain"))["stream"] == ("Clear", "some.json")
    assert explained(cli("run", "er", "--config", "some.json", "--stream", "blurry", "--explain"))["stream"] == ("Blurry", "flag")


def test_a_file_may_name_a_field_of_one_of_several_methods_as_a_flag_may(cli: Callable[..., Said]) -> None:
    assert cli("run", "er", "er+mkd", "--teacher.alpha", "0.2", "--explain")[0] == 0
    Path("some.json").write_text('{"teacher": {"alpha": 0.2}}')
    code, _, err = cli("run", "er", "er+mkd", "--config", "some.json", "--explain")
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--data", "digits"], "data", "Digits"),
        (["--memory", "20"], "memory", "20"),  # what the recipe says too
        (["--stream", "blurry"], "stream", "Blurry"),
        (["--tasks", "5"], "stream.tasks", "5"),
        (["--seeds", "0"], "seed", "0"),
        (["--device", "cpu"], "device", "cpu"),
        (["--precision", "fp32"], "precision", "fp32"),
        (["--limit", "9"], "limit", "9"),
        (["--net", "ResNet18"], "net", "ResNet18"),
        (["--optim.lr", "1e-3"], "optim.lr", "0.001"),
        (["--batch-size=3"], "batch_size", "3"),
        (["--batch_size", "3"], "batch_size", "3"),
        (["--optim", "SGD"], "optim", "SGD"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_what_a_flag_gives_is_said_to_come_from_it(cli: Callable[..., Said], words: list[str], path: str, value: str) -> None:
    assert explained(cli("run", "er", *words, "--explain"))[path] == (value, "flag")


def test_flags_may_come_in_any_order(cli: Callable[..., Said]) -> None:
    # each alone would be no config: a distiller needs a teacher, and so does inference by it
    flags = [["--teacher", "none"], ["--distill", "none"], ["--infer", "student"]]
    one = explained(cli("run", "er+mkd", *(w for flag in flags for w in flag), "--explain"))
    other = explained(cli("run", "er+mkd", *(w for flag in reversed(flags) for w in flag), "--explain"))
    assert one == other and one["teacher"] == ("none", "flag")
    built = [["--distill", "MKD"], ["--infer", "average"], ["--teacher.alpha", "0.2"], ["--teacher", "EMA"]]
    said = explained(cli("run", "er", *(w for flag in built for w in flag), "--explain"))
    assert said["teacher.alpha"] == ("0.2", "flag") and said["distill"] == ("MKD", "flag")


def test_a_runs_own_config_is_that_run(cli: Callable[..., Said], home: Path) -> None:
    record = next(r for r in records(home / "runs") if r.title == "er+mkd")
    before = {f: f.stat().st_mtime_ns for f in record.path.iterdir()}
    code, out, err = cli("run", "--config", record.path / "config.json", "--runs", home / "runs")
    assert code == 0, err
    assert str(record.path) in out.splitlines() and {f: f.stat().st_mtime_ns for f in record.path.iterdir()} == before


def test_flags_come_before_a_runs_own_config_too(cli: Callable[..., Said], home: Path) -> None:
    file = next(r.path for r in records(home / "runs") if r.title == "er+mkd") / "config.json"
    said = explained(cli("run", "--config", file, "--memory", "7", "--seeds", "5", "--teacher.alpha", "0.25", "--explain"))
    assert (said["memory"][0], said["seed"][0], said["teacher.alpha"][0]) == ("7", "5", "0.25")
    assert said["net.width"][0] == "2"


@pytest.mark.parametrize("words", [["--stream", "blurry"], ["--recipe", "published"], ["--data", "cifar10"]], ids=" ".join)
def test_a_flag_that_a_whole_config_leaves_no_room_for_is_not_ignored(
    cli: Callable[..., Said], home: Path, words: list[str]
) -> None:
    file = next(r.path for r in records(home / "runs") if r.title == "er+mkd") / "config.json"
    code, out, err = cli("run", "--config", file, *words, "--explain")
    if code == 0:
        said = explained((code, out, err))
        assert (said["stream"][0], said["data"][0], said["teacher.start"][0]) != ("Clear", "Digits", "copy")
    else:
        assert words[0] in one_line((code, out, err))


def test_explain_says_where_it_would_be_written_and_writes_nothing(cli: Callable[..., Said], tmp_path: Path) -> None:
    code, out, err = cli("run", "er", "er+mkd", "--seeds", "0", "3", "--explain", "--runs", "there")
    assert (code, err, written(tmp_path)) == (0, "", [])
    for word in "er", "er+mkd":
        for seed in 0, 3:
            assert f"{word}, seed {seed} -> {'there' / recipe(word, Digits(), seed=seed).folder}" in out


# ---- mistakes

MISTAKES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "unknown method": (["err"], ["`err`", "`er`"]),
    "unknown method of two": (["er", "re"], ["`re`", "`er`"]),
    "unknown suffix": (["er+mdk"], ["`mdk`", "`mkd`"]),
    "two suffixes": (["er+mkd+mkd"], ["two suffixes"]),
    "no method": ([], ["name a method"]),
    "method after flags": (["--seeds", "0", "--memory", "5", "er"], ["`er`", "methods come before"]),
    "unknown data": (["er", "--data", "digit"], ["`digit`", "`digits`"]),
    "data that is not there": (["er", "--data", "cifar10"], ["cifar-10-batches-py"]),
    "unknown recipe": (["er", "--recipe", "publishd"], ["`publishd`", "`published`"]),
    "unknown stream": (["er", "--stream", "blury"], ["`blury`", "`blurry`"]),
    "unknown field": (["er", "--memroy", "5"], ["`memroy`", "`memory`"]),
    "unknown field within": (["er", "--optim.lrr", "5"], ["`optim.lrr`", "`optim.lr`"]),
    "unknown field with a dash": (["er", "--batchsize", "5"], ["`batchsize`", "batch"]),
    "a flag of run misspelt": (["er", "--worker", "2"], ["worker`", "`--workers`"]),
    "another": (["er", "--recipes", "published"], ["recipes`", "`--recipe`"]),
    "a field of another method": (["er", "--teacher.alpha", "0.1"], ["`teacher.alpha`", "`er` has no teacher"]),
    "alpha 0": (["er+mkd", "--teacher.alpha", "0"], ["alpha=0", "(0, 1]"]),
    "alpha 2": (["er+mkd", "--teacher.alpha", "2"], ["alpha=2", "(0, 1]"]),
    "alpha below the law": (["er+mkd", "--teacher.alpha", "0.0005", *SMALL], ["0.0005", "0.0006"]),
    "an unknown start": (["er+mkd", "--teacher.start", "coppy"], ["coppy", "`copy`"]),
    "memory 0": (["er", "--memory", "0"], ["memory=0"]),
    "memory below 0": (["er", "--memory", "-5"], ["memory=-5"]),
    "memory in words": (["er", "--memory", "many"], ["memory=many", "whole number"]),
    "batch 0": (["er", "--batch-size", "0"], ["batch_size=0"]),
    "replay 0": (["er", "--replay-size", "0"], ["replay_size=0"]),
    "limit 0": (["er", "--limit", "0"], ["limit=0"]),
    "width 0": (["er", "--net.width", "0"], ["width=0"]),
    "3 tasks": (["er", "--tasks", "3"], ["tasks=3", "1, 2, 5, 10"]),
    "3 tasks twice": (["er", "--seeds", "0", "1", "--workers", "1", "--tasks", "3"], ["tasks=3"]),
    "0 tasks": (["er", "--tasks", "0"], ["tasks=0"]),
    "seed below 0": (["er", "--seeds", "-1"], ["seed=-1"]),
    "seed in words": (["er", "--seeds", "one"], ["seeds=one"]),
    "no seeds": (["er", "--seeds"], ["--seeds"]),
    "workers in words": (["er", "--workers", "two"], ["--workers", "two"]),
    "workers below 1": (["er", "--workers", "-1", "--limit", "4", "--net.width", "2"], ["workers", "-1"]),
    "no such device": (["er", "--device", "cud"], ["device=cud"]),
    "a device that is not here": (["er", "--device", "xpu", *SMALL], ["device=xpu"]),
    "unknown precision": (["er", "--precision", "bf61"], ["`bf61`", "`bf16`"]),
    "lr below 0": (["er", "--optim.lr", "-1"], ["lr=-1"]),
    "lr without end": (["er", "--optim.lr", "inf", *SMALL], ["optim.lr=inf", "finite number"]),
    "a weight decay that is no number": (["er", "--optim.weight-decay", "nan", *SMALL], ["weight_decay=nan", "finite number"]),
    "a config that is none": (["--config", "none_of_it.json"], ["none_of_it.json", "object of fields"]),
    "lr in words": (["er", "--optim.lr", "fast"], ["optim.lr=fast", "number"]),
    "unknown class": (["er", "--optim", "Adm"], ["`Adm`", "`Adam`"]),
    "betas of another kind": (["er", "--optim.betas", "EQUATION_3", *SMALL], ["optim.betas"]),
    "a flag without value": (["er", "--optim.lr"], ["`--optim.lr`", "value"]),
    "a flag without value before another": (["er", "--optim.lr", "--optim.weight-decay", "0.1"], ["`--optim.lr`", "value"]),
    "an unknown flag without value": (["er", "--fast"], ["`--fast`"]),
    "a network file that is not there": (["er", "--net", "none.py:build"], ["none.py"]),
    "a network file without the name": (["er", "--net", "empty.py:build"], ["empty.py", "`build`"]),
    "a network file that fails": (["er", "--net", "broken.py:build"], ["broken.py", "ZeroDivisionError"]),
    "a network without features": (["er", "--net", "plain.py:build"], ["features", "classifier"]),
    "a runs folder below a file": (["er", "--runs", "empty.py/runs", *SMALL], ["empty.py/runs", "--runs"]),
    "a runs folder that is a file": (["er", "--runs", "empty.py", *SMALL], ["empty.py", "--runs"]),
    "a config that is not there": (["er", "--config", "none.json"], ["none.json"]),
    "a config that is not JSON": (["er", "--config", "empty.py"], ["empty.py", "JSON"]),
    "a config without fields": (["er", "--config", "list.json"], ["list.json"]),
    "an unknown field in a config": (["er", "--config", "wrong.json"], ["`optim.lrr`", "`optim.lr`"]),
    "a number for an optimiser in a config": (["er", "--config", "number.json"], ["optim"]),
    "unknown command": (["no run"], ["invalid choice"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(
    cli: Callable[..., Said], tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, parts = MISTAKES[mistake]
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "plain.py").write_text("from torch import nn\ndef build(classes, image):\n    return nn.Linear(64, classes)\n")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "none_of_it.json").write_text('{"config": null}')
    (tmp_path / "wrong.json").write_text('{"optim": {"lrr": 1}}')
    (tmp_path / "number.json").write_text('{"optim": 3}')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ONEPASS_DATA", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = written(tmp_path)
    said = one_line(cli("no" if words == ["no run"] else "run", *([] if words == ["no run"] else words)))
    for part in parts:
        assert part in said
    assert len(said) < 400
    assert written(tmp_path) == before


def test_a_loss_that_is_not_a_number_names_the_step_and_the_way_out(cli: Callable[..., Said], tmp_path: Path) -> None:
    said = one_line(cli("run", "er", *SMALL, "--optim.lr", "1e30"))
    assert re.search(r"`er` \(seed 0\) is (nan|inf) at update \d+, after \d+ images", said) and "--optim.lr" in said
    assert not list(tmp_path.rglob("done.json"))


def test_a_mistake_at_the_shell_is_the_same(tmp_path: Path) -> None:
    assert "`memroy`" in one_line(shell("run", "er", "--memroy", "5", cwd=tmp_path))
    assert written(tmp_path) == []


@pytest.mark.parametrize(
    "words",
    [("--batch-size", "1"), ("--memory", "1"), ("--stream", "imbalanced", "--stream.tasks", "10", "--stream.factor", "6")],
    ids=["batches of one", "a memory of one", "a task of one"],
)
def test_a_single_image_that_cannot_be_normalised_is_one_line(cli: Callable[..., Said], words: tuple[str, ...]) -> None:
    """Digits come down to 1x1, and ER-ACE shows its network what arrives apart from what is replayed."""
    said = one_line(cli("run", "er-ace", "--data", "digits", *SMALL, *words))
    assert "one image by itself" in said and "of at least 2" in said


def test_a_name_with_dollars_is_no_mathematics(cli: Callable[..., Said]) -> None:
    code, out, err = cli("run", "er", *SMALL, "--name", "m$^$")
    assert code == 0, err
    drawn = next(line for line in out.splitlines() if line.endswith("-accuracy.svg"))
    assert "m$^$</text>" in Path(drawn).read_text()


def test_figures_that_cannot_be_written_are_one_line_too(cli: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "runs" / "digits-clear").mkdir(parents=True)
    (tmp_path / "runs" / "digits-clear" / "figures").write_text("a file where the folder would be")
    code, out, err = cli("run", "er", "--limit", "6", "--net.width", "2")
    assert "figures" in one_line((code, out, err))
    assert rows_of(out)[0][0] == "er"  # what was trained is not lost


def test_ctrl_c_before_anything_is_saved_says_so(cli: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "stop.py").write_text("raise KeyboardInterrupt\n")
    code, _, err = cli("run", "er", "--net", "stop.py:build")
    assert code == 130 and err.splitlines()[-1] == "onepass: interrupted"


# ---- runs


def test_runs_are_listed_with_their_accuracy_and_size(cli: Callable[..., Said], home: Path) -> None:
    code, out, err = cli("runs", home / "runs")
    assert (code, err) == (0, "")
    rows = {row[0]: row[1:] for row in rows_of(out)}
    found = records(home / "runs")
    assert set(rows) == {str(r.path) for r in found} and len(rows) == 2
    for record in found:
        assert record.done is not None
        accuracy = f"{100 * record.done['summary']['accuracy']:.1f}"
        assert rows[str(record.path)] == [accuracy, "done", f"{record.bytes / 2**20:.1f}"]
    assert out.splitlines()[-1].startswith("2 runs, ")


def test_of_runs_those_that_match(cli: Callable[..., Said], home: Path) -> None:
    assert [Path(row[0]).parts[-3] for row in rows_of(cli("runs", home / "runs", "--match", "er+mkd")[1])] == ["er+mkd"]
    assert cli("runs", home / "runs", "--match", "nothing like it") == (0, "no runs\n", "")


def test_runs_of_a_folder_that_is_not_there(cli: Callable[..., Said]) -> None:
    assert "`runs`" in one_line(cli("runs"))


def test_a_run_that_was_damaged_is_listed_as_such_and_deleted(cli: Callable[..., Said], tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    (path / "done.json").write_text('{"summ')
    (tmp_path / "runs" / "config.json").write_text("5")  # somebody else's
    code, out, _ = cli("runs", "--delete", "--yes")
    assert code == 0 and rows_of(out)[0][:2] == [str(path.relative_to(tmp_path)), "damaged"] and not path.exists()


def unfinished(folder: Path) -> Path:
    """A run that diverged."""
    assert main(["run", "er", *SMALL, "--optim.lr", "1e30", "--runs", str(folder / "runs")]) == 2
    (record,) = records(folder / "runs")
    return record.path


def test_runs_are_deleted_when_it_is_meant(cli: Callable[..., Said], tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    code, out, _ = cli("runs", "--match", "er+mkd", "--delete", "--yes")
    assert code == 0 and path.is_dir()
    assert "--yes" in one_line(cli("runs", "--delete"))  # there is nobody to ask
    assert path.is_dir()
    code, out, _ = cli("runs", "--delete", "--yes")
    assert code == 0 and "unfinished" in out and not path.exists()


# ---- predict


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], list[int]]:
    """A run that knows its digits, and its training images as files."""
    folder = tmp_path_factory.mktemp("digits")
    words = "er --tasks 1 --per-class 12 --batch-size 10 --replay-size 30 --memory 120 --updates 8".split()
    words += "--net.width 4 --optim.lr 5e-3 --augment.crop 0 --precision fp32".split()
    assert main(["run", *words, "--runs", str(folder / "runs")]) == 0
    (record,) = records(folder / "runs")
    train = Digits().load().train
    paths: list[Path] = []
    labels: list[int] = []
    (folder / "images").mkdir()
    for c in range(10):
        for i in (train.y == c).nonzero()[:12:3, 0].tolist():
            paths.append(folder / "images" / f"{c}-{i}.png")
            labels.append(c)
            Image.fromarray(train.x[i, 0].numpy()).save(paths[-1])
    return record.path, paths, labels


def test_training_images_of_a_run_are_told_apart(cli: Callable[..., Said], digits: tuple[Path, list[Path], list[int]]) -> None:
    path, images, labels = digits
    code, out, err = cli("predict", path, *images)
    assert (code, err) == (0, "")
    lines = [re.fullmatch(r"(\S+)  (\d) (\d+\.\d)%", line) for line in out.splitlines()]
    assert [m[1] for m in lines if m] == [str(image) for image in images]
    right = sum(int(m[2]) == label for m, label in zip(lines, labels, strict=True) if m)
    assert right / len(labels) > 0.8  # by chance a tenth; with classes numbered by arrival a tenth too


def test_prediction_is_the_networks_own(cli: Callable[..., Said], digits: tuple[Path, list[Path], list[int]]) -> None:
    path, images, _ = digits
    record = Record(path)
    test = Digits().load().test
    last = record.results.at("task/student")[1][-1]
    names = json.loads((path / "stream.json").read_text())["names"]
    for i in range(0, 40, 4):
        Image.fromarray(test.x[i, 0].numpy()).save(f"{i}.png")
    _, out, _ = cli("predict", path, *(f"{i}.png" for i in range(0, 40, 4)))
    assert [line.split()[1] for line in out.splitlines()] == [names[last[i]] for i in range(0, 40, 4)]


def test_the_likeliest_classes_come_in_order(cli: Callable[..., Said], digits: tuple[Path, list[Path], list[int]]) -> None:
    path, images, _ = digits
    _, one, _ = cli("predict", path, images[0])
    code, out, _ = cli("predict", path, images[0], "--top", "10")
    cells = re.split(r" {2,}", out.strip())
    assert code == 0 and cells[:2] == re.split(r" {2,}", one.strip())
    shares = [float(cell.split()[1][:-1]) for cell in cells[1:]]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(100, abs=0.6)
    assert sorted(cell.split()[0] for cell in cells[1:]) == list("0123456789")


def test_folders_other_sizes_and_colours_are_taken(cli: Callable[..., Said], digits: tuple[Path, list[Path], list[int]]) -> None:
    path, images, _ = digits
    _, whole, _ = cli("predict", path, images[0].parent)
    assert [line.split()[0] for line in whole.splitlines()] == sorted(str(image) for image in images)
    (_, _, expected) = cli("predict", path, images[0])[1].partition("  ")
    image = np.asarray(Image.open(images[0]))
    Image.fromarray(np.stack([image] * 3, 2)).save("colour.png")
    Image.fromarray(image.repeat(4, 0).repeat(4, 1)).save("large.png")
    _, out, _ = cli("predict", path, "colour.png", "large.png")
    assert out.splitlines()[0] == f"colour.png  {expected.strip()}"
    assert out.splitlines()[1].split()[1] == expected.split()[0]


@pytest.mark.parametrize(
    ("images", "part"),
    [(["none.png"], "none.png"), (["text.png"], "text.png"), (["cut.png"], "cut.png"), (["text.png", "none.png"], "text.png")],
    ids=["missing", "text", "truncated", "two"],
)
def test_an_image_that_cannot_be_read_is_one_line(
    cli: Callable[..., Said], digits: tuple[Path, list[Path], list[int]], images: list[str], part: str
) -> None:
    Path("text.png").write_text("a 7, honestly")
    Path("cut.png").write_bytes(digits[1][0].read_bytes()[:60])
    assert f"`{part}`" in one_line(cli("predict", digits[0], *images))


def test_a_run_that_cannot_predict_is_one_line(
    cli: Callable[..., Said], digits: tuple[Path, list[Path], list[int]], tmp_path: Path
) -> None:
    image = digits[1][0]
    path = unfinished(tmp_path)
    assert "finished" in one_line(cli("predict", path, image))
    assert "none" in one_line(cli("predict", "none", image))
    (path / "model.safetensors").write_bytes((digits[0] / "model.safetensors").read_bytes()[:-100])
    assert "damaged" in one_line(cli("predict", path, image))
    (tmp_path / "empty").mkdir()
    assert "no image in `empty`" in one_line(cli("predict", digits[0], "empty"))
    assert "images" in one_line(cli("predict", path)).lower() or "IMAGE" in one_line(cli("predict", path))


def test_a_config_from_json_is_what_was_run(home: Path) -> None:
    for record in records(home / "runs"):
        config = Config.from_json(record.config["config"])
        assert config.identity == record.config["identity"] and home / "runs" / config.folder == record.path
        assert config.precision == "auto" and torch.device(config.device).type == "cpu"


def test_a_folder_for_data_that_is_not_there_is_not_passed_over(
    cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the data would be found elsewhere."""
    (tmp_path / "data" / "cifar-100-python").mkdir(parents=True)
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "data"))
    said = one_line(cli("run", "er", "--data", "cifar100", "--data-dir", "nowhere"))
    assert "There is no folder `nowhere`" in said and "`--data-dir`" in said


def test_a_field_of_a_teacher_that_is_not_there_says_so(cli: Callable[..., Said]) -> None:
    said = one_line(cli("run", "er", "derpp", "--teacher.alpha", "0.02"))
    assert "`er`, `derpp` has no teacher" in said and "`er+mkd`" in said
    assert cli("run", "er", "er+mkd", "--teacher.alpha", "0.02", "--explain")[0] == 0


def test_data_takes_its_name_by_itself(cli: Callable[..., Said]) -> None:
    assert "`onepass data check folder:PATH`" in one_line(cli("data", "check", "--data", "folder:photos"))


def test_the_speed_is_that_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause, or when the machine was busy at first, the time left would be far off else."""
    now = [0.0]
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: now[0]))
    live = terminal.Live([recipe("er", Digits())])
    for now[0], samples in (0.0, 10), *((3600.0 + 10 * k, 20 + 100 * k) for k in range(7)):
        live.tell(0, Progress(samples, 1820, 1.0, None))
    progress, speed, left, _ = live._cells(0)  # pyright: ignore
    assert (progress, speed, left) == ("620/1820 images", "10 images/s", "2 min left")
