"""`onepass data`: get, check and show, on digits, on a folder of one's own and on a local mirror."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onepass.cli import main
from onepass.commands.data import about, progress
from onepass.data import fetch, source
from onepass.data.fetch import ARCHIVES, Archive
from onepass.loop import prepare
from onepass.recipes import recipe

Said = tuple[int, str, str]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command line in an empty folder, with no data anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONEPASS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*words: str) -> Said:
        code = main(["data", *words])
        return code, *capsys.readouterr()

    return call


def folder(root: Path, sizes: tuple[int, ...] = (6, 6, 6, 6)) -> Path:
    """Images of one colour a class."""
    for c, n in enumerate(sizes):
        (root / f"class {c}").mkdir(parents=True)
        for i in range(n):
            Image.new("RGB", (9, 7), (60 * c, 10 * i, 0)).save(root / f"class {c}" / f"{i}.png")
    return root


# ---- get


def test_get_prints_where_it_is(cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as opened:
        info = tarfile.TarInfo("toy-tree/meta")
        info.size = 5
        opened.addfile(info, io.BytesIO(b"names"))
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "toy.tar.gz").write_bytes(out.getvalue())
    monkeypatch.setitem(
        ARCHIVES, "toy", Archive("toy.tar.gz", md5(out.getvalue()).hexdigest(), "toy-tree", ("http://127.0.0.1:9",))
    )
    monkeypatch.setattr(fetch, "PAUSES", ())
    code, said, err = cli("get", "toy", "--mirror", "mirror")
    assert (code, said) == (0, f"{tmp_path / 'cache' / 'onepass' / 'toy-tree'}\n") and "unpacking toy.tar.gz: 0.0 of 0.0 MB" in err
    code, said, err = cli("get", "toy", "--data-dir", "mine", "--mirror", "nowhere", "--mirror=mirror/toy.tar.gz")
    assert (code, said) == (0, f"{tmp_path / 'cache' / 'onepass' / 'toy-tree'}\n") and not err  # there already
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert cli("get", "toy", "--data-dir", "mine", "--mirror", "nowhere", "--mirror=mirror/toy.tar.gz")[1] == "mine/toy-tree\n"
    code, _, err = cli("get", "toy", "--data-dir", "theirs")
    assert (
        code == 2
        and err.startswith("onepass: `toy.tar.gz` could not be got from http://127.0.0.1:9/toy.tar.gz (")
        and err.count("\n") == 1
    )


def test_get_says_what_cannot_be_got(cli: Callable[..., Said]) -> None:
    assert cli("get", "digits")[:2] == (0, "digits come with scikit-learn: there is nothing to get\n")
    for name, said in ("imagenet100", "account"), ("cifar11", "did you mean `cifar10`"), ("folder:x", "no data set to download"):
        code, out, err = cli("get", name)
        assert code == 2 and said in err and err.count("\n") == 1 and not out
    assert not list(Path().iterdir())


def test_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    tell = progress()
    for done in range(0, 1001, 10):
        tell("downloading x", done * 100_000, 100_000_000)
    tell("downloading y", 5_000_000, 0)
    lines = [line.rstrip() for line in capsys.readouterr().err.splitlines()]
    assert lines == ["downloading x: 0.0 of 100.0 MB", "downloading x: 100.0 of 100.0 MB", "downloading y: 5.0 MB"]


# ---- where data is looked for


def test_a_folder_that_is_nowhere_says_where_it_was_looked_for_and_how_to_get_it(
    cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEPASS_DATA", "env")
    Path("mine").mkdir()
    for words in (["check", "cifar100"], ["show", "cifar100"]):
        code, out, err = cli(*words, "--data-dir", "mine")
        assert code == 2 and not out and err.count("\n") == 1
        assert (
            f"`cifar-100-python` in `mine`, `env`, `{tmp_path / 'cache' / 'onepass'}`" in err
            and "`onepass data get cifar100`" in err
        )


# ---- check


def test_check_reports(cli: Callable[..., Said]) -> None:
    code, out, _ = cli("check", "digits")
    assert code == 0 and out.startswith("digits: 1,433 images to learn from, 364 to test on; 10 classes; 1x8x8\n")
    code, out, _ = cli("check", f"folder:{folder(Path('mine'))}", "--data.size", "5", "--data.split=0.5")
    assert code == 0 and "12 images to learn from, 12 to test on; 4 classes; 3x5x5" in out


# ---- show


def test_show_draws_a_stream_and_its_images(cli: Callable[..., Said]) -> None:
    code, out, _ = cli("show", "digits", "--stream", "blurry", "--stream.scale", "10", "--seed", "3")
    paths = [Path(line) for line in out.splitlines()]
    assert code == 0 and [p.name for p in paths] == [f"5-tasks-s3-{n}.{k}" for n in ("classes", "images") for k in ("svg", "png")]
    assert {p.parent for p in paths} == {Path("runs/digits-blurry/figures")}
    for path in paths[1::2]:
        with Image.open(path) as picture:
            assert min(picture.size) > 300
    config = recipe("er", source("digits"), stream="blurry", seed=3)
    config = type(config).from_json(config.to_json() | {"stream": {"is": "Blurry", "tasks": 5, "scale": 10.0}})
    drawn = paths[0].read_text()
    assert all(line in drawn for line in about(prepare(config)[0], 2).split("\n")) and "digits, blurry, 5 tasks, seed 3" in drawn
    assert "raw" in paths[2].read_text() and "augmented" in paths[2].read_text()


def test_names_with_dollars_are_no_mathematics(cli: Callable[..., Said]) -> None:
    mine = folder(Path("$^$"))
    next(path for path in mine.rglob("*") if path.is_dir()).rename(mine / "$_$")
    code, _, err = cli("show", f"folder:{mine}", "--data.size=6", "--data.split", "0.25", "--tasks", "1")
    assert code == 0, err


def test_show_draws_a_folder_of_ones_own(cli: Callable[..., Said]) -> None:
    mine = folder(Path("mine"), (8, 8))
    code, out, err = cli(
        "show", f"folder:{mine}", "--data.size=6", "--data.split", "0.25", "--tasks", "1", "--limit", "5", "--runs", "pictures"
    )
    assert code == 0, err
    assert out.splitlines()[0] == "pictures/folder-mine-clear/figures/1-tasks-s0-classes.svg"
    assert "5 images" in Path(out.splitlines()[0]).read_text()


def test_what_a_stream_is_said_to_be_is_counted_by_hand() -> None:
    stream, _, _ = prepare(recipe("er", source("digits"), stream="blend", tasks=2))
    task = {c: t for t, classes in enumerate(stream.spec.tasks) for c in classes}
    turn = [task[int(c)] for c in stream.y[stream.order]]
    outside = sum(t != (i >= stream.task_ends[0]) for i, t in enumerate(turn)) / len(turn)
    several = [len(set(turn[i : i + 7])) > 1 for i in range(0, len(turn), 7)]
    sizes = [int((stream.y == c).sum()) for c in range(10)]
    assert about(stream, 7) == (
        f"1,433 images, {min(sizes)} to {max(sizes)} of a class; {100 * outside:.1f} % of them outside the slot of their task;\n"
        f"{100 * np.mean(several):.0f} % of batches of 7 with more than one task"
    )
    clear, _, _ = prepare(recipe("er", source("digits")))
    assert about(clear, 7) == f"1,433 images, {min(sizes)} to {max(sizes)} of a class"


# ---- what makes no sense


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "digits", "--stream", "blury"], "`blury`; did you mean `blurry`"),
        (["show", "digits", "--stream.width", "1"], "no field `stream.width`"),
        (["show", "digits", "--stream", "blend", "--stream.width", "2"], "`width=2.0` is no part"),
        (["show", "digits", "--optim.lr", "1"], "`onepass data show` has no flag `--optim.lr`"),
        (["check", "digits", "--stream.scale", "1"], "`onepass data check` has no flag `--stream.scale`"),
        (["get", "cifar10", "--data.size", "1"], "`onepass data get` has no flag `--data.size`"),
        (["show", "digits", "--tasks", "3"], "`tasks=3` does not divide"),
        (["show", "digits", "--tasks", "few"], "`tasks=few` is not a whole number"),
        (["show", "digits", "--limit", "0"], "`limit=0` leaves nothing"),
        (["show", "digits", "--seed", "-1"], "`seed=-1` is outside"),
        (["show", "digit"], "`digit`; did you mean `digits`"),
        (["show"], "required: NAME"),
        (["draw", "digits"], "invalid choice: 'draw'"),
        (["show", "digits", "twice"], "`twice` is not a flag"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_mistake_is_one_line(words: list[str], said: str, cli: Callable[..., Said]) -> None:
    code, out, err = cli(*words)
    assert code == 2 and said in err and err.count("\n") == 1 and not out
    assert not list(Path().iterdir())


def test_a_folder_that_cannot_be_written_is_named(cli: Callable[..., Said]) -> None:
    Path("runs").write_text("a file")
    code, _, err = cli("show", "digits", "--limit", "40")
    assert code == 2 and "The pictures could not be written" in err and "--runs" in err


def test_without_an_act_it_says_which_there_are(cli: Callable[..., Said]) -> None:
    code, out, _ = cli()
    assert code == 0 and all(act in out for act in ("get", "check", "show"))
