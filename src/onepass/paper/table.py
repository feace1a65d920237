"""A table of results beside the published ones, and how it is written: for the terminal, Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from onepass import terminal
from onepass.paper.agreement import LEVEL, Interval, Sample, paired, sample, welch
from onepass.paper.found import Found
from onepass.paper.item import Where, chosen, values
from onepass.record import Record

Format = Literal["terminal", "markdown", "latex", "csv"]
ENDINGS: dict[Format, str] = {"terminal": "txt", "markdown": "md", "latex": "tex", "csv": "csv"}


class Number(NamedTuple):
    """A number, and the format in which a reader wants it."""

    value: float
    form: str  # "+.2f"


Value = str | int | float | Sample | Interval | Number | None


class Block(NamedTuple):
    """Lines that belong together, and what they have in common: {"data": "cifar100", "memory": "5000"}."""

    keys: Mapping[str, str]
    lines: Sequence[Sequence[Value]]

    @property
    def title(self) -> str:
        return ", ".join(value if key == "data" else f"{key} {value}" for key, value in self.keys.items())


@dataclass(frozen=True, eq=False)
class Table:
    """Columns, and blocks of lines; what was not measured is blank."""

    stem: str
    title: str
    columns: Sequence[str]
    blocks: Sequence[Block]
    notes: Sequence[str] = ()

    def text(self, form: Format) -> str:
        return {"terminal": _terminal, "markdown": _markdown, "latex": _latex, "csv": _csv}[form](self)


# -- what stands in one ---------------------------------------------------------------------------------------------


def accuracy(record: Record) -> float:
    """The final average accuracy in percent."""
    return 100 * record.summary["accuracy"]


def accuracy_of(network: str) -> Callable[[Record], float]:
    """The same by another network of the run than the one that predicts."""
    return lambda record: 100 * record.summary.get(f"accuracy_{network}", np.nan)


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a comparison: which runs, what of them, the published number, and the line it is paired with by seed."""

    name: str
    where: Where
    published: Sample | None = None
    against: str = ""
    measure: Callable[[Record], float] = accuracy
    more: Sequence[Value] = field(default=())


Blocks = list[tuple[Mapping[str, str], list[Line]]]


def by_setting(
    found: Found, published: Mapping[tuple[str, str, str], Sample], measure: Callable[[Record], float] = accuracy
) -> Blocks:
    """A block for each data set and memory size, a line for each method, paired with the method it adds something to."""
    blocks: Blocks = []
    for data in values(found.cells, "data"):
        for memory in values(chosen(found.cells, {"data": (data,)}), "memory"):
            place = {"data": (data,), "memory": (memory,)}
            words = values(chosen(found.cells, place), "method")
            lines: list[Line] = []
            for word in words:
                base = word.partition("+")[0]
                against = base if base != word and base in words else ""
                where = {**place, "method": (word,)}
                lines.append(Line(word, where, published.get((data, memory, word)), against, measure))
            blocks.append(({"data": data, "memory": memory}, lines))
    return blocks


def compared(
    stem: str,
    title: str,
    found: Found,
    blocks: Blocks,
    *,
    first: str = "method",
    more: Sequence[str] = (),
    notes: Sequence[str] = (),
    disagreement: str = "",
) -> Table:
    """Ours, beside what was published if the scale is the paper's; `more` are columns of the item's own, from `Line.more`.

    `disagreement` is what the paper says elsewhere of the same numbers.
    """
    pairs = any(line.against for _, lines in blocks for line in lines)
    published = found.scale == "full" and any(line.published for _, lines in blocks for line in lines)
    columns = [first, *more, "n", "ours"]
    columns += ["published", "difference", "p", "agrees"] if published else []
    columns += ["paired difference", "to"] if pairs else []
    written = [Block(keys, _compared(found, lines, published, pairs)) for keys, lines in blocks]
    said = [
        f"scale {found.scale}, recipe {found.family}; ours: mean and standard deviation over n seeds",
        *([f"agrees: Welch's test at {100 * LEVEL:.0f} %, p is its chance; blank where n or a deviation is wanting"] * published),
        *([disagreement] * bool(published and disagreement)),
        *([f"paired difference: mean over the seeds both have, with its {100 - 100 * LEVEL:.0f} % interval"] * pairs),
    ]
    return Table(stem, title, columns, written, [*said, *notes, *found.notes])


def _compared(found: Found, lines: Sequence[Line], published: bool, pairs: bool) -> list[list[Value]]:
    measured = {line.name: found.by_seed(line.where, line.measure) for line in lines}
    out: list[list[Value]] = []
    for line in lines:
        ours = sample(measured[line.name])
        row: list[Value] = [line.name, *line.more, ours.n or None, ours if ours.n else None]
        if published:
            theirs = line.published
            both = theirs is not None and ours.n > 0
            p = welch(ours, theirs) if theirs is not None and both else None
            row += [theirs, Number(ours.mean - theirs.mean, "+.2f") if theirs is not None and both else None]
            row += [None if p is None else Number(p, ".3f"), None if p is None else "yes" if p >= LEVEL else "no"]
        if pairs:
            difference = paired(measured[line.name], measured[line.against]) if line.against else None
            row += [difference, line.against if difference else None]
        out.append(row)
    return out


# -- how it is written ----------------------------------------------------------------------------------------------


def shown(value: Value) -> str:
    """A value as a reader wants it."""
    if value is None:
        return ""
    if isinstance(value, Sample):
        return f"{value.mean:.2f}" if np.isnan(value.std) else f"{value.mean:.2f} ± {value.std:.2f}"
    if isinstance(value, Interval):
        bounds = "" if np.isnan(value.low) else f" [{value.low:+.2f}, {value.high:+.2f}]"
        return f"{value.mean:+.2f}{bounds}"
    if isinstance(value, Number):
        return format(value.value, value.form)
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def _terminal(table: Table) -> str:
    rows = [list(table.columns), *([shown(v) for v in line] for block in table.blocks for line in block.lines)]
    heading, rule, *lines = terminal.table(rows).splitlines()
    out = [table.title, "", heading, rule]
    for block in table.blocks:
        out += ["", block.title] if block.title else []
        out += lines[: len(block.lines)]
        lines = lines[len(block.lines) :]
    return "\n".join([*out, "", *table.notes])


def _markdown(table: Table) -> str:
    out = [f"### {table.title}", ""]
    for block in table.blocks:
        out += [f"**{block.title}**", ""] if block.title else []
        out += [_piped(table.columns), "|" + "---|" + "---:|" * (len(table.columns) - 1)]
        out += [*(_piped([shown(v) for v in line]) for line in block.lines), ""]
    return "\n".join([*out, *(f"- {note}" for note in table.notes)])


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _latex(table: Table) -> str:
    columns = len(table.columns)
    out = [*(f"% {note}" for note in table.notes), "% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering"]
    out += [f"\\caption{{{_tex(table.title)}}}", f"\\label{{tab:{table.stem.removeprefix('tab_').replace('_', '-')}}}"]
    out += [f"\\begin{{tabular}}{{l{'r' * (columns - 1)}}}", "\\toprule", _ampersands(table.columns)]
    for block in table.blocks:
        out += ["\\midrule"]
        out += [f"\\multicolumn{{{columns}}}{{l}}{{\\textit{{{_tex(block.title)}}}}} \\\\"] if block.title else []
        out += [_ampersands([shown(v) for v in line]) for line in block.lines]
    return "\n".join([*out, "\\bottomrule", "\\end{tabular}", "\\end{table}"])


def _ampersands(cells: Sequence[str]) -> str:
    return " & ".join(_tex(cell) for cell in cells) + " \\\\"


def _tex(text: str) -> str:
    text = text.replace("\\", "\\textbackslash ")
    for c in "&%$#_{}":
        text = text.replace(c, f"\\{c}")
    return text.replace("±", "$\\pm$").replace("~", "\\textasciitilde ")


def _csv(table: Table) -> str:
    """Every number in a column of its own, unrounded."""
    keys = list(dict.fromkeys(key for block in table.blocks for key in block.keys))
    heading = [*keys, *(name + part for name in table.columns for part in PARTS.get(name, ("",)))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heading)
    for block in table.blocks:
        for line in block.lines:
            row: list[object] = [block.keys.get(key, "") for key in keys]
            for name, value in zip(table.columns, line, strict=True):
                row += _spread(value, len(PARTS.get(name, ("",))))
            writer.writerow(row)
    return out.getvalue().rstrip("\n")


PARTS = {"ours": ("", " std"), "published": ("", " std"), "paired difference": ("", " low", " high", " n")}
"""What a column becomes in CSV, where it is more than one."""


def _spread(value: Value, width: int) -> list[object]:
    if value is None:
        return [""] * width
    parts: tuple[object, ...] = tuple(value)[:width] if isinstance(value, tuple) else (value,)
    return ["" if part != part else part for part in parts]
