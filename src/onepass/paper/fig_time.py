"""How long each method trains, with MKD and with the rival teachers.

The paper's `fig:time_consumption`: CIFAR-100, memory 5000, clear tasks, on V100s, in the precision that each method had; it prints
no numbers.  Here all 17 rows of the tables, and all bars of one machine, one precision and one number of threads: those that most
of the runs have.  Training alone is counted, not what is measured on the way.  85 runs at `full`, `tab_clear`'s; runs side by
side take longer than one alone, so for a figure to print, fill it with `--workers 1`.

    onepass paper fig_time --where seed=0 --workers 1 --run

Smoke: digits, 17 methods x 2 seeds, `tab_clear`'s.
"""

from collections import Counter

from onepass.paper.found import Found
from onepass.paper.item import METHODS, Cell, Drawing, Item, Label, Scale, grid, values
from onepass.recipes import Family
from onepass.record import Record


def cells(scale: Scale, family: Family) -> list[Cell]:
    return grid(METHODS, {"cifar100": (5000,)}, scale, family)


def render(found: Found) -> list[Drawing]:
    from onepass import figures

    machines = Counter(_machine(run.record) for run in found.runs)
    most, _ = machines.most_common(1)[0]
    kept = [run for run in found.runs if _machine(run.record) == most]
    rows: dict[str, list[float]] = {word: [] for word in values(found.cells, "method")}
    for run in kept:
        rows[run.cell.keys["method"]].append((run.record.done or {})["seconds_of"]["train"])
    left = len(found.runs) - len(kept)
    note = f"{most}; mean over the seeds; runs that went side by side took longer than alone\n{found.about}"
    note += f"; {left} of another machine or precision left out" if left else ""
    return [Drawing("fig_time_consumption", figures.durations(rows, f"Training time: {found.setting}", note))]


def _machine(record: Record) -> str:
    """What times have to have in common; a run that was resumed elsewhere has nothing in common with any."""
    parts = (record.env, *record.env.get("resumed", ()))
    return " and ".join(sorted({f"{env['device']}, {env['precision']}, threads {env['threads']}" for env in parts}))


ITEM = Item("fig_time", {"fig:time_consumption": Label("training time of every method and teacher")}, cells, render)
