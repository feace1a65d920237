"""One page of what was made: each table and figure by its label, and the command, machine and time behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from onepass.paper.found import Found, commits
from onepass.paper.item import Scale, values
from onepass.paper.table import Table
from onepass.record import Record
from onepass.terminal import duration

MEANING: dict[Scale, str] = {
    "full": "This is the paper's setting. Published numbers stand beside ours.",
    "small": ("Networks of width 20, on the paper's data. They are not comparable with the published numbers, which are left out."),
    "smoke": (
        "These are handwritten digits of 8x8, 1,433 of them in five tasks, of which 20 may be remembered (for t-SNE, 200), "
        "learnt in batches of ten by networks of width 8. They show that every table and figure can be made, and how each looks. "
        "They are not comparable with the published numbers, which are left out, and nothing can be concluded from two seeds of "
        "144 updates."
    ),
}


class Entry(NamedTuple):
    """What was made of a label: a table, or a figure's files; none of them where there was nothing to draw."""

    label: str
    shows: str
    found: Found
    made: Table | Sequence[str]


def page(command: str, scale: Scale, entries: Sequence[Entry]) -> str:
    """In Markdown, with links to the files beside it."""
    out = [f"# The paper's tables and figures at scale {scale}", "", MEANING[scale], "", "```bash", command, "```", ""]
    out += [*_origin(entries), ""]
    for label, shows, found, made in entries:
        out += [f"## {label}", "", f"{shows[0].upper()}{shows[1:]}.", ""]
        if isinstance(made, Table):
            _, _, body = made.text("markdown").partition("\n\n")  # without its heading
            out += [f"**{made.title}**", "", body, "", f"The same as [CSV]({made.stem}.csv) and [LaTeX]({made.stem}.tex)."]
        else:
            out += [*(f"![{shows}]({name})" for name in made), ""]
            out += [f"- {note}" for note in found.notes if found.cells] or ["- drawn from the data alone, without a run"]
        out += [""]
    return "\n".join(out).rstrip()


def _origin(entries: Sequence[Entry]) -> list[str]:
    """The birth certificate of the numbers, as a table."""
    runs = {run.record.path: run for entry in entries for run in entry.found.runs}
    if not runs:
        return ["No run is there yet."]
    done = [run.record.done or {} for run in runs.values()]
    envs = [env for run in runs.values() for env in _environments(run.record)]
    resumed = sum("resumed" in run.record.env for run in runs.values())
    rows = {
        "runs": f"{len(runs)}, each once" + (f"; {resumed} of them stopped on the way and taken up" if resumed else ""),
        "seeds": ", ".join(sorted(values([run.cell for run in runs.values()], "seed"), key=int)),
        "commit": ", ".join(commits(runs.values())) or "not known",
        "machine": _each(f"{env['device']}, {env['precision']}, threads {env['threads']}" for env in envs),
        "torch": _each(str(env["torch"]) for env in envs if "torch" in env),
        "computing": f"{duration(sum(end.get('seconds', 0.0) for end in done))}, counted as if one run followed the other",
        "first begun": min((env["began"] for env in envs if "began" in env), default=""),
        "last ended": max((end["ended"] for end in done if "ended" in end), default=""),
    }
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items() if value)]


def _environments(record: Record) -> list[dict[str, Any]]:
    """Where it was begun, and where it was taken up."""
    return [record.env, *record.env.get("resumed", ())]


def _each(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(words))
