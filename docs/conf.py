"""How Sphinx builds these pages: `make docs`."""

import re
from typing import Any

from sphinx.application import Sphinx

from onepass import __version__

project, author, release = "onepass", "The onepass founders", __version__
copyright = "the onepass founders"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme, html_title, html_copy_source = "furo", "onepass", False
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["paper-smoke/tab_*.md"]  # its index has them all
nb_execution_mode = "off"  # examples/mkd.ipynb is committed with its outputs; a test runs it
highlight_language = "text"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
add_module_names = False

COLUMN = re.compile(r"((?:\w+, )*\w+) {2,}(?=\S)")


def readable(text: str) -> str:
    """A docstring's paragraph as reStructuredText: what is in backticks is code, and no other character is markup."""
    parts = text.split("`")
    return "``".join(part if i % 2 else re.sub(r"([\\*|_])", r"\\\1", part) for i, part in enumerate(parts))


def items(block: str) -> list[str]:
    """Columns (`start   "copy" of ...`) as a list of terms and what they mean."""
    out: list[str] = []
    for line in block.splitlines():
        if found := COLUMN.match(line):
            out.append(f"``{found[1]}``")
        out.append(f"    {readable(line[found.end(1) :] if found else line).strip()}")
    return out


def as_written(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Our docstrings are plain text of paragraphs, columns and examples, which are indented."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if block.startswith(" "):
            out += [".. code-block:: python", "", *(f"    {line}" for line in block.splitlines())]
        elif any(COLUMN.match(line) for line in block.splitlines()):
            out += items(block)
        else:
            out += readable(block).splitlines()
        out.append("")
    lines[:] = out


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_written)
