"""Every block in README.md and docs/ does what the page says; a page's blocks are one program, from top to bottom.

What a block is, its language says:

    python     is executed, after docs/preamble.py.  One that begins with a file's name (`# my_net.py`) is that file, too.
    bash       is understood by the real parsers, and nothing is trained: `onepass run` and `search` get `--explain`, `make` is dry.
    bash run   is done, with `onepass run` and `search` made small.
    json       is taken by `onepass run er+mkd --config FILE`.
    text       is for reading alone.

Where the page's program is at, there are `photos/` with a folder of images for each of two classes, `seven.png` and `examples/`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image

import onepass
from onepass.cli import main
from onepass.commands import NAMES, Parser
from onepass.errors import Refused

ROOT = Path(__file__).parents[1]
PREAMBLE = (ROOT / "docs" / "preamble.py").read_text()
NOTEBOOK = ROOT / "examples" / "mkd.ipynb"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROJECT = (ROOT / "pyproject.toml").read_text()
TINY = "--limit 12 --per-class 4 --workers 1 --seeds 0".split()
SILENT = ("text", "mermaid")
DIRECTIVES = ("{toctree}", "{literalinclude}", "{include}", "{eval-rst}", "{math}")


class Wrong(AssertionError):
    """A block that does not do what it says."""


@dataclass(frozen=True)
class Block:
    """Some lines of a page between two fences."""

    page: Path
    line: int  # of the first
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, text: str) -> Iterator[Block]:
    for token in MarkdownIt().parse(text):
        if token.type == "code_block" and token.map:
            yield Block(page, token.map[0] + 1, "indented", token.content)
        if token.type == "fence" and token.map:
            yield Block(page, token.map[0] + 2, " ".join(token.info.split()), token.content)


# ---- what is done with a block


def do(block: Block, module: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Do what a block says, in the folder that is the current one."""
    if block.language == "python":
        python(block, module)
    elif block.language in ("bash", "bash run"):
        for line in block.text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                shell(block, words, folder, capsys)
    elif block.language == "json":
        config(block, folder, capsys)
    elif block.language.split(" ")[0] not in (*SILENT, *DIRECTIVES):
        raise Wrong(
            f"{block.place}: a block of `{block.language}`, which nothing here executes; write one of python, bash, bash run and "
            "json, or `text` for what is for reading alone."
        )


def python(block: Block, module: ModuleType) -> None:
    first = block.text.partition("\n")[0]
    if file := re.fullmatch(r"# (\w+\.py)", first):
        Path(file[1]).write_text(block.text)
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")  # a traceback names the page's own line
    exec(code, module.__dict__)


def shell(block: Block, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    really = block.language == "bash run"
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)  # VARIABLE=value in front of a command
    if not words or words[0] == "export" and all("=" in word for word in words[1:]):
        return
    program, *words = words
    program = program.removeprefix(".venv/bin/")
    if program == "onepass":
        onepass_(block, words, really, folder, capsys)
    elif program == "make":
        made = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
        check(block, made.returncode == 0, f"`make {' '.join(words)}`: {made.stderr.strip()}")
    elif program == "pip" and words[0] == "install":
        known = re.search(r"^\[project.optional-dependencies\]\n(.*?)\n\n", PROJECT, re.M | re.S)
        extras = [extra for word in words for extra in re.findall(r"\[(.*)\]", word) for extra in extra.split(",")]
        for extra in extras:
            check(block, known is not None and re.search(rf"^{extra} = ", known[1], re.M), f"there is no extra `{extra}`")
    elif program == "python":
        check(block, Path(words[0]).is_file(), f"there is no file `{words[0]}`")
        if really:
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment())
            check(block, done.returncode == 0, done.stderr)
    else:
        raise Wrong(f"{block.place}: `{program}` cannot be checked here; mark the block `text` if it is for reading alone.")


def onepass_(block: Block, words: list[str], really: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [found for word in words for found in (sorted(glob(word)) or [word] if "*" in word else [word])]
    run = words[:1] in (["run"], ["search"])
    if run and not really and "--help" not in words:
        words += ["--explain"]
        for word in re.findall(r"--device (\S+)", " ".join(words)):  # a page may name one that is not on this machine
            check(block, re.fullmatch(r"cpu|cuda(:\d+)?", word), f"there is no device `{word}`")
            words[words.index("--device") + 1] = "cpu"
    capsys.readouterr()
    try:
        if really or run:
            narrow = ["--net.width", "2"] if "--net" not in words else []
            words += TINY + narrow if really and run else []
            words += ["--runs", str(folder / "runs")] if run and "--runs" not in words else []
            code = main(words)
            said = capsys.readouterr()
            quiet = really or not said.err
            check(block, code == 0 and said.out and quiet, f"`onepass {' '.join(words)}` gave {code}: {said.err}")
        else:
            parser().parse_args(words)
    except Refused as error:
        raise Wrong(f"{block.place}: `onepass {' '.join(words)}`: {error}") from error
    except SystemExit as end:  # argparse after --help and --version
        check(block, not end.code, f"`onepass {' '.join(words)}` ends with {end.code}")


def parser() -> Parser:
    """The command line's own."""
    top = Parser(prog="onepass")
    top.add_argument("--version", action="version", version="")
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name in NAMES:
        import_module(f"onepass.commands.{name}").add(commands)
    return top


def config(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "block.json"
    file.write_text(block.text)
    code = main(["run", "er+mkd", "--config", str(file), "--explain"])
    check(block, code == 0, capsys.readouterr().err)


def check(block: Block, right: object, what: str) -> None:
    if not right:
        raise Wrong(f"{block.place}: {what}")


def environment() -> dict[str, str]:
    src = str(ROOT / "src")
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in (src, os.environ.get("PYTHONPATH")) if p), "OMP_NUM_THREADS": "1"}


# ---- the pages


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some images and the examples, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    rng = np.random.default_rng(0)
    for name, low in ("cats", 0), ("dogs", 100):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(low, low + 100, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "photos" / name / f"{i}.png")
    Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / "seven.png")
    return tmp_path


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What a page's Python is executed in, with the preamble done."""
    made = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", made)  # where dataclasses look for it
    exec(compile(PREAMBLE, "docs/preamble.py", "exec"), made.__dict__)
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: Path, folder: Path, module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, page.read_text()):
        do(block, module, folder, capsys)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_in_a_sentence_is_understood(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what stands between backticks; `onepass run` without a word more is a name."""
    for token in MarkdownIt().parse(page.read_text()):
        for child in token.children or ():
            words = shlex.split(child.content, comments=True) if child.type == "code_inline" and "onepass " in child.content else []
            if words[:1] in (["onepass"], [".venv/bin/onepass"]) and len(words) > 2:
                shell(Block(page, (token.map or [0])[0] + 1, "bash", ""), words, folder, capsys)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_somewhere(page: Path) -> None:
    """To a file that is there.  Headings are Sphinx's affair."""
    for token in MarkdownIt().parse(page.read_text()):
        for child in token.children or ():
            target = str(child.attrs.get("href", child.attrs.get("src", ""))).partition("#")[0]
            if target and not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name} links to `{target}`, which is not there"


BROKEN = {
    "python that raises": ("python", "assert model is None"),
    "python that is none": ("python", "for x in"),
    "python without an import": ("python", "EMA(alpha=0.5)"),
    "a field there is not": ("bash", "onepass run er+mkd --optim.rate 3"),
    "a method there is not": ("bash", "onepass run er+mdk"),
    "a device there is not": ("bash", "onepass run er+mkd --device gpu"),
    "a command there is not": ("bash", "onepass rnus"),
    "a flag of another command": ("bash", "onepass runs --top 3"),
    "a run of what is not there": ("bash run", "onepass predict runs/nothing photos"),
    "a target there is not": ("bash", "make demos"),
    "an extra there is not": ("bash", "pip install 'onepass[everything]'"),
    "a script there is not": ("bash", "python examples/nothing.py"),
    "another program": ("bash", "sbatch job.sh"),
    "the second line": ("bash", "onepass runs\nonepass runs \\\n  --nothing"),
    "json that is none": ("json", "{"),
    "json with another field": ("json", '{"optim.rate": 3}'),
    "no language": ("", "onepass runs"),
    "another language": ("yaml", "a: 1"),
    "indentation": ("indented", "onepass runs"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_kind_of_block_can_fail(name: str, folder: Path, module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    language, text = BROKEN[name]
    page = f"Some words.\n\n```{language}\n{text}\n```\n"
    if language == "indented":
        page = f"Some words.\n\n    {text}\n"
    (block,) = blocks(Path("page.md"), page)
    assert block.text.strip() == text and block.line == 3 + (language != "indented")
    with pytest.raises((Wrong, AssertionError, SyntaxError, NameError)):
        do(block, module, folder, capsys)
    assert not (folder / "runs").exists()


def test_what_is_right_does_not_fail(folder: Path, module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    right = {
        "python": "# mine.py\nfrom onepass import EMA\nteacher = EMA(alpha=0.5).follow(model)",
        "bash": "ONEPASS_DATA=/data .venv/bin/onepass run er+mkd --data cifar100 \\\n  --memory 5000  # more\nmake test ARGS=-x",
        "json": '{"optim.lr": 0.001}',
        "text": "sbatch job.sh",
    }
    for language, text in right.items():
        (block,) = blocks(Path("page.md"), f"```{language}\n{text}\n```\n")
        do(block, module, folder, capsys)
    assert (folder / "mine.py").read_text().startswith("# mine.py") and hasattr(module, "teacher")


# ---- the reference


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    missing = [name for name in onepass.__all__ if name != "__version__" and f":: onepass.{name}\n" not in page]
    assert not missing, f"docs/reference.md has no `.. autoclass:: onepass.{missing[0]}`, nor {missing[1:]}"


# ---- the notebook


def test_the_notebook_runs(folder: Path, module: ModuleType) -> None:
    """In short, without a kernel: its cells, one after the other."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    short = [re.sub(r"^LIMIT = None\b", "LIMIT = 24", code, flags=re.M) for code in codes]
    assert short[0] != codes[0] and short[1:] == codes[1:]
    for i, code in enumerate(short):
        exec(compile(code, f"{NOTEBOOK.name}, code cell {i}", "exec"), module.__dict__)


def test_the_notebook_was_run_from_top_to_bottom() -> None:
    """What is committed has its outputs, and no error among them."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) or "image/svg+xml" in output.get("data", {}) for output in outputs) >= 5
    assert NOTEBOOK.stat().st_size < 400_000
