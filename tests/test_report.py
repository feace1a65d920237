"""The page of runs: everything is on it, nothing comes from outside, what is left out is counted, and a browser likes it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import CHROMIUM, DRIVER, Browser, chromium
from PIL import Image

from onepass.cli import main
from onepass.commands.report import beside
from onepass.config import Config
from onepass.data import source
from onepass.data.folder import Folder
from onepass.learner import Adam
from onepass.loop import run
from onepass.metrics import mean_std
from onepass.nets import ResNet18
from onepass.probes import Drift, Predictions
from onepass.recipes import recipe
from onepass.record import Record
from onepass.report.gathered import Gathered, Group, apart, flat, gather

EVIL = "<script>alert(1)<"  # the name of a class, which is that of a folder
MATHS = r"$\nothing$"
VOID = {"meta", "br", "link", "img", "input", "hr"}


def small(word: str = "er", seed: int = 0, **changes: Any) -> Config:
    config = recipe(word, source("digits"), memory=9, seed=seed)
    few = {"net": ResNet18(width=2), "per_class": 4, "precision": "fp32", "batch_size": 5, "replay_size": 5}
    few["probes"] = (Predictions(every=10), Drift(every=1))
    return replace(config, **few | changes)


def photos(folder: Path) -> Config:
    """A run on images of the user's, whose classes have names that mean something to HTML and to matplotlib."""
    rng = np.random.default_rng(0)
    for name in EVIL, MATHS, "c", "d":
        (folder / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    config = recipe("er", Folder(path=str(folder), size=8, split=0.5), memory=5, tasks=2)
    return replace(config, net=ResNet18(width=2), batch_size=5, replay_size=5, precision="fp32")


def no_names(tree: Path) -> None:
    (tree / "config.json").write_text("{")


def cut_short(tree: Path) -> None:
    file = tree / "probes.npz"
    file.write_bytes(file.read_bytes()[:200])


def of_another_version(tree: Path) -> None:
    told = json.loads((tree / "config.json").read_text())
    (tree / "config.json").write_text(json.dumps(told | {"results": 0}))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of some methods over seeds, and some that are not to be shown."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    for seed in 0, 1, 2:
        run(small(seed=seed), folder)
    for seed in 0, 1:
        run(small("er+mkd", seed), folder)
    faster = run(small(optim=Adam(lr=0.01)), folder)
    run(photos(folder.parent / "photos"), folder)
    run(small(seed=7, probes=()), folder)  # asked for nothing
    for number, (name, spoil) in enumerate({"a": no_names, "b": cut_short, "c": of_another_version}.items()):
        copy = folder / "spoilt" / "er" / "m9" / f"s{number}-{name}"
        shutil.copytree(faster.path, copy)
        spoil(copy)
    unfinished = folder / "spoilt" / "er" / "m9" / "s9-d"
    shutil.copytree(faster.path, unfinished)
    (unfinished / "done.json").unlink()
    shutil.copytree(faster.path, folder / "spoilt" / "copy")
    (folder / "config.json").write_text('{"model_type": "of another program"}')
    return folder


@pytest.fixture(scope="module")
def made(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The page of all of them, and what was said on stdout and stderr."""
    out = tmp_path_factory.mktemp("page") / "deeper" / "page.html"
    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()) as loudly:
        assert main(["report", str(root), "--out", str(out)]) == 0
    return out, said.getvalue(), loudly.getvalue()


@pytest.fixture(scope="module")
def html(made: tuple[Path, str, str]) -> Path:
    return made[0]


# ---- what is gathered


def labels(gathered: Gathered) -> dict[str, list[int]]:
    return {group.label: [run.seed for run in group.runs] for group in gathered.groups}


def of(gathered: Gathered, label: str) -> Group:
    return next(group for group in gathered.groups if group.label == label)


def test_runs_that_differ_by_their_seed_alone_are_one_group(root: Path) -> None:
    gathered = gather([root / "digits-clear"])
    assert labels(gathered) == {"er (optim.lr=0.0005)": [0, 1, 2], "er (optim.lr=0.01)": [0], "er+mkd": [0, 1]}
    assert [setting.name for setting in gathered.settings] == ["digits, clear stream, memory 9"]


def test_other_data_and_another_memory_are_another_setting(root: Path) -> None:
    names = [setting.name for setting in gather([root]).settings]
    assert names == ["digits, clear stream, memory 9", "folder photos, clear stream, memory 5"]


def test_what_is_left_out_is_counted_by_its_reason(root: Path) -> None:
    assert {why: len(paths) for why, paths in gather([root]).left_out.items()} == {
        "nothing was measured": 1,
        "the same run lies in another folder, too": 1,
        "damaged or half-written": 2,
        "of another version of the results": 1,
        "not finished": 1,
    }


def test_a_run_given_twice_counts_once(root: Path) -> None:
    folder = root / "digits-clear" / "er+mkd"
    one = next(folder.glob("m9/s0-*"))
    gathered = gather([folder, one, folder / ".." / "er+mkd"])
    assert labels(gathered) == {"er+mkd": [0, 1]} and not gathered.left_out
    assert labels(gather([root], match="er+mkd")) == {"er+mkd": [0, 1]}


def test_a_seed_that_comes_twice_with_one_config_is_not_averaged(root: Path, tmp_path: Path) -> None:
    """The identity also has what is in a file of the user's; two of those are two methods, whatever the config says."""
    shutil.copytree(root / "digits-clear" / "er+mkd", tmp_path / "er+mkd")
    one = next((tmp_path / "er+mkd").glob("m9/s0-*"))
    other = shutil.copytree(one, one.with_name("s0-changed"))
    told = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(told | {"identity": "changed"}))
    found = labels(gather([tmp_path]))
    assert len(found) == 3 and [*map(len, found.values())] == [1, 1, 1] and "er+mkd (identity=changed)" in found


def test_the_numbers_are_those_of_the_record(root: Path) -> None:
    for run_ in gather([root]).runs:
        record = Record(run_.path)
        summary, results = record.results.summary(), record.results
        assert record.done is not None and run_.speed == record.done["images_per_second"]
        np.testing.assert_array_equal(run_.matrix, results.matrix())
        np.testing.assert_array_equal(run_.confusion, results.confusion())
        np.testing.assert_allclose([run_.number(k) for k in summary], [*summary.values()])
        assert run_.recency[-1] == summary["recency"] and np.isnan(run_.recency[0])
        for which, accuracy in run_.networks.items():
            assert accuracy[-1] == summary[f"accuracy_{which}"]
    assert set(of(gather([root]), "er+mkd").runs[0].networks) == {"student", "teacher", "average"}


def test_names_that_come_twice_are_told_apart() -> None:
    configs = [{"a": "1", "t": "X", "t.b": "1"}, {"a": "1", "t": "Y", "t.b": "2"}, {"a": "2"}]
    assert apart(["er", "er", "dvc"], configs, [{}] * 3) == ["er (t=X)", "er (t=Y)", "dvc"]
    assert apart(["er", "er"], configs[:1] * 2, [{"i": "1"}, {"i": "2"}]) == ["er (i=1)", "er (i=2)"]
    assert flat({"a": {"is": "A", "b": {"is": "B", "c": None}}, "d": [1, 2]}) == {
        "a": "A", "a.b": "B", "a.b.c": "none", "d": "[1, 2]",
    }  # fmt: skip


# ---- the page, as text


class Read(HTMLParser):
    """A page taken apart, in which every element ends where it must."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []  # an element, and a text in it
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> in {self.open}"

    def handle_data(self, data: str) -> None:
        self.words.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, key: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(key)) is not None]


@pytest.fixture(scope="module")
def read(html: Path) -> Read:
    return Read(html.read_text("utf-8"))


def test_ids_are_unique_and_every_reference_is_to_one(html: Path, read: Read) -> None:
    ids = read.all("id")
    assert len(set(ids)) == len(ids) > 20
    targets = re.findall(r'(?:href="#|url\(#)([^")]+)', html.read_text("utf-8"))
    assert targets and set(targets) <= set(ids)


def test_it_needs_nothing_from_anywhere(html: Path, read: Read) -> None:
    assert not {"link", "iframe", "object", "embed"} & {tag for tag, _ in read.elements}
    for key in "src", "href", "xlink:href", "action", "srcset":
        assert all(value.startswith(("#", "data:image/png;base64,")) for value in read.all(key)), key
    text = html.read_text("utf-8")
    assert not re.search(r"@import|url\((?!#)", text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_what_a_user_named_is_text(html: Path, read: Read) -> None:
    """There is one script, the page's own; the class is called what it is called, in the figure and not as an element."""
    assert [tag for tag, _ in read.elements].count("script") == 1
    assert ("text", EVIL) in read.words and ("text", MATHS) in read.words
    assert "alert(1)" not in "".join(text for tag, text in read.words if tag == "script")


def test_it_has_what_a_researcher_looks_for(root: Path, read: Read) -> None:
    heads = [text for tag, text in read.words if tag in ("h2", "h3")]
    for head in (
        "By method", "Accuracy along the stream", "Student, teacher and average", "Accuracy on each task", "Confusion", "Recency",
        "Feature drift", "Time and memory", "Configs", "Every run", "Where the numbers come from",
    ):  # fmt: skip
        assert head in heads
    words = {text for _, text in read.words}
    record = Record(next((root / "digits-clear" / "er+mkd").glob("m9/s0-*")))
    assert {str(record.path), record.env["device"], record.env["began"], record.env["command"], "fp32"} <= words
    accuracy = [100 * Record(p).summary["accuracy"] for p in (root / "digits-clear" / "er+mkd").glob("m9/s*")]
    mean, std = mean_std(accuracy)
    assert {f"{mean:.1f}", f"± {std:.1f}"} <= words
    assert any("test images (log scale)" in word for word in words)


def test_what_differs_is_marked(read: Read) -> None:
    marked = [attributes for tag, attributes in read.elements if tag == "td" and attributes.get("class") == "differs"]
    assert marked
    text = [word for _, word in read.words]
    assert "optim.lr" in text and "teacher.alpha" in text


def test_what_was_left_out_is_said_on_the_page_and_on_stderr(made: tuple[Path, str, str], read: Read) -> None:
    path, out, err = made
    assert out == f"{path}\n"
    for note in "2 left out: damaged or half-written", "1 left out: not finished", "1 left out: of another version of the results":
        assert f"onepass: {note}\n" in err and any(note in word for _, word in read.words)


def test_beside_the_runs_by_default_and_never_in_a_run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(root / "digits-clear" / "er+mkd", tmp_path / "runs" / "digits-clear" / "er+mkd")
    one, two = sorted(folder.glob("m9/s*"))
    assert beside([one]) == beside([one, two]) == folder / "m9" / "report.html"
    assert beside([folder]) == beside([folder, one]) == folder / "report.html"
    shutil.rmtree(two)
    before = sorted(one.iterdir())
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0 and (tmp_path / "runs" / "report.html").is_file()
    assert sorted(one.iterdir()) == before and len(sorted((tmp_path / "runs").iterdir())) == 2


@pytest.mark.parametrize("words", [["nowhere"], ["runs/spoilt/er"], ["runs", "--match", "nothing like it"]], ids=" ".join)
def test_without_a_finished_run_there_is_no_page(
    words: list[str], root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root.parent)
    assert main(["report", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "left out" not in line]
    assert len(said) == 1 and said[0].startswith("onepass: There ")
    assert not [*root.parent.rglob("report.html")]


def test_a_page_that_cannot_be_written_is_one_line(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["report", str(root / "digits-clear" / "er+mkd"), "--out", str(tmp_path / "file" / "page.html")]) == 2
    assert "could not be written" in capsys.readouterr().err.splitlines()[-1]


# ---- the page in a browser, where there is one (`.ci/run` installs Chromium)

COLUMN = """
const table = document.querySelector("table.sorts"), heads = [...table.tHead.rows[0].cells];
const index = heads.findIndex((c) => c.innerText.startsWith(arguments[0]));
return [...table.tBodies[0].rows].map((row) => [row.cells[0].innerText, row.cells[index].dataset.v ?? ""]);
"""
HEADING = """
const heads = [...document.querySelectorAll("table.sorts")[0].tHead.rows[0].cells];
const button = heads.find((c) => c.innerText.startsWith(arguments[0])).querySelector("button");
"""
WIDTHS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth];"

if CHROMIUM and DRIVER:

    @pytest.fixture(scope="module")
    def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
        with chromium(tmp_path_factory.mktemp("chromium")) as browser:
            yield browser

    def test_it_opens_without_a_word_in_the_console(html: Path, browser: Browser) -> None:
        browser.open(html)
        assert browser.console() == [] and browser.js("return document.title").startswith("onepass: ")
        browser.js('console.error("heard")')
        assert [entry["level"] for entry in browser.console()] == ["SEVERE"]  # it would have been

    def test_a_click_on_a_heading_sorts(html: Path, browser: Browser) -> None:
        browser.open(html)
        before = browser.js(COLUMN, "accuracy")
        values = [float(value) for _, value in before]
        assert len(set(values)) > 2 and values != sorted(values, reverse=True)
        for order in "descending", "ascending", "descending":
            browser.js(HEADING + "button.click();", "accuracy")
            after = browser.js(COLUMN, "accuracy")
            assert [float(v) for _, v in after] == sorted(values, reverse=order == "descending")
            assert sorted(after) == sorted(before)  # rows, not cells
            assert browser.js(HEADING + "return button.parentElement.ariaSort;", "accuracy") == order
        browser.js(HEADING + "button.click();", "method")
        names = [name for name, _ in browser.js(COLUMN, "accuracy")]
        assert names == sorted(names) and browser.js(HEADING + "return button.parentElement.ariaSort;", "accuracy") == "none"

    def test_enter_on_a_heading_sorts(html: Path, browser: Browser) -> None:
        browser.open(html)
        browser.js(HEADING + "button.focus();", "accuracy")
        for kind in "keyDown", "keyUp":
            browser.devtools("Input.dispatchKeyEvent", type=kind, key="Enter", windowsVirtualKeyCode=13, text="\r")
        values = [float(v) for _, v in browser.js(COLUMN, "accuracy")]
        assert values == sorted(values, reverse=True)

    def test_what_is_not_known_comes_last(html: Path, browser: Browser) -> None:
        """Of the runs without a teacher, in the table of every run."""
        browser.open(html)
        script = """
        const table = document.querySelector("#runs table"), heads = [...table.tHead.rows[0].cells];
        const i = heads.findIndex((c) => c.innerText.startsWith("teacher"));
        heads[i].querySelector("button").click();
        return [...table.tBodies[0].rows].map((row) => row.cells[i].innerText);
        """
        down, up = browser.js(script), browser.js(script)
        assert [bool(v) for v in down] == [bool(v) for v in up] == sorted([bool(v) for v in down], reverse=True)
        assert 0 < down.count("") < len(down) and down != up

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_a_phone_scrolls_one_way_only(html: Path, browser: Browser, scheme: str) -> None:
        browser.open(html, width=390, scheme=scheme)
        browser.js('for (const details of document.querySelectorAll("details")) details.open = true;')
        page, window = browser.js(WIDTHS)
        assert page == window == 390
        wide = browser.js(
            'return [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth).length'
        )
        assert wide > 3  # in their own boxes

    def test_by_night_it_is_dark_and_so_are_its_figures(html: Path, browser: Browser, tmp_path: Path) -> None:
        def light(color: str) -> float:
            return float(np.mean([float(part) for part in re.findall(r"[\d.]+", color)[:3]]))

        script = """
        const style = (element) => getComputedStyle(element), body = style(document.body);
        const text = document.querySelector("svg text"), line = document.querySelector('svg path[style*="--c0"]');
        return [body.backgroundColor, body.color, style(text).fill, style(line).stroke];
        """
        lines: list[float] = []
        for scheme in "light", "dark":
            browser.open(html, scheme=scheme)
            paper, ink, label, line = map(light, browser.js(script))
            assert (paper > 200 and ink < 80 and label < 80) if scheme == "light" else (paper < 50 and ink > 180 and label > 180)
            lines.append(line)
            browser.screenshot(tmp_path / f"{scheme}.png")
            with Image.open(tmp_path / f"{scheme}.png") as image:
                assert (np.asarray(image.convert("L")).mean() > 200) == (scheme == "light")
        assert lines[1] > lines[0] + 30
