"""The parts of a page: tables that sort, and figures inside the page; whatever comes from outside is escaped here."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count

from matplotlib.figure import Figure

from onepass.figures.style import FAINT, INK, PALETTE, SOFT, UNDATED, styled

COLOURS = {INK: "--ink", SOFT: "--soft", FAINT: "--faint", "#eeeeee": "--card"} | {
    colour.lower(): f"--c{i}" for i, colour in enumerate(PALETTE)
}
"""What figures are drawn in, and the names by which the page's style changes it at night."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, what it is sorted by, and its class in the page's style."""

    text: str
    value: float | None = None  # None: a text, and sorted as one
    kind: str = ""
    more: str = ""  # said after it, smaller
    share: float | None = None  # in [0, 1]: how deep its colour is

    def html(self, tag: str = "td") -> str:
        kinds = " ".join(kind for kind in (self.kind, "number" if self.value is not None else "") if kind)
        attributes = f' class="{kinds}"' if kinds else ""
        if self.value is not None and self.value == self.value:
            attributes += f' data-v="{self.value!r}"'
        if self.share is not None:
            attributes += f' style="--share:{self.share:.3f}"'
        more = f" <small>{escape(self.more)}</small>" if self.more else ""
        scope = ' scope="row"' if tag == "th" else ""
        return f"<{tag}{scope}{attributes}>{escape(self.text)}{more}</{tag}>"


def number(value: float, digits: int = 1, *, std: float = float("nan")) -> Cell:
    """A number, or an empty cell for nan; with its standard deviation if there is one."""
    return Cell("" if value != value else f"{value:,.{digits}f}", float(value), more="" if std != std else f"± {std:,.{digits}f}")


def table(label: str, heading: Sequence[str], rows: Iterable[Sequence[Cell]], *, sorts: bool = False, kind: str = "") -> str:
    """A table in a box of its own, which is what scrolls where the page is narrow.  The first column names the rows."""

    rows = list(rows)
    lines = ["<tr>" + row[0].html("th") + "".join(cell.html() for cell in row[1:]) + "</tr>" for row in rows]
    heads = [_heading(text, sorts, i > 0 and rows[0][i].value is not None) for i, text in enumerate(heading)]
    classes = " ".join(c for c in (kind, "sorts" if sorts else "") if c)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table class="{classes}">\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def _heading(text: str, sorts: bool, of_numbers: bool) -> str:
    kind = ' class="number"' if of_numbers else ""
    if not sorts:
        return f'<th scope="col"{kind}>{escape(text)}</th>'
    return f'<th scope="col"{kind} aria-sort="none"><button type="button">{escape(text)}</button></th>'


def folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n{inside}\n</details>"


class Drawer:
    """Puts figures into a page: SVG with ids of its own for each, and colours that follow the page's."""

    def __init__(self) -> None:
        self._numbers = count(1)

    @styled
    def __call__(self, figure: Figure, label: str) -> str:
        file = io.StringIO()
        nobody = (UNDATED["svg"] or {}) | dict.fromkeys(("Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, dpi=200, metadata=nobody)
        svg = file.getvalue()
        svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg[svg.index("<svg") :], count=1, flags=re.S)
        own, referred = f"f{next(self._numbers)}-", set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        # a tag at a time, for the words between them may look like anything
        svg = re.sub(r"<[^>]*>", lambda tag: _inside(tag[0], own, referred), svg)
        width = re.search(r'width="([\d.]+pt)"', svg)
        size = f'style="--width:{width[1]}"' if width else ""
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" {size} ', 1).strip()
        return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{svg}</div>'


def _inside(tag: str, own: str, referred: set[str]) -> str:
    """A tag with the figure's own ids, of which those go that nothing refers to, and with the page's colours."""
    tag = re.sub(r' id="([^"]*)"', lambda found: f' id="{own}{found[1]}"' if found[1] in referred else "", tag)
    tag = re.sub(r'href="#|url\(#', lambda found: found[0] + own, tag)
    return re.sub(r"(?<=: )#[0-9a-f]{6}(?=[;\"])", lambda c: f"var({COLOURS[c[0]]}, {c[0]})" if c[0] in COLOURS else c[0], tag)
