"""How good a teacher a snapshot can be: the first task learnt once or many times, hard or easy; and what teachers of it give.

The paper's `tab:teacher_quality1`: GSA on the first of ten tasks of CIFAR-100, memory 5000, offline (20 epochs) and online.  Which
tasks its "hard" and "easy" are is not said; here they are the worst and the best of fifty, every task of seeds 0 to 4 put first
once (the notes of the table name them), so they hold the luck of one run each as well.  55 short runs at `full`.

Its `tab:teacher_quality2`: ER on CIFAR-100 in two tasks, memory 5000, alone, with the student at the end of the first task
as a teacher of the second, and with a student that saw the first task five times: 15 runs, and 5 of teachers.

    onepass paper tab:teacher_quality1 --run

Smoke: digits, five first tasks x 2 seeds and 20 epochs x 2; three methods x 2 seeds.
"""

from dataclasses import replace

from onepass.paper.cost import LENGTHS
from onepass.paper.found import Found
from onepass.paper.item import Cell, Item, Label, Scale, configured, renamed, seeds, settings
from onepass.paper.published import TEACHER_QUALITY_1, TEACHER_QUALITY_2
from onepass.paper.table import Line, Table, compared
from onepass.recipes import Family
from onepass.record import Record
from onepass.stream import Clear

EPOCHS = 20
WORDS = ("er", "er+snapshot", "er+snapshot-high")


def cells(scale: Scale, family: Family) -> list[Cell]:
    return _first_tasks(scale, family) + _teachers(scale, family)


def _first_tasks(scale: Scale, family: Family) -> list[Cell]:
    out: list[Cell] = []
    for data, memory in settings(scale, {"cifar100": (5000,)}):
        length = LENGTHS[data.name][0] // data.habits.tasks // 100 * 100  # of a first task; those of digits differ a little
        for seed in seeds(scale):
            config = configured("gsa", data, memory, seed, scale, family)
            keys = {"data": data.name, "memory": str(memory), "method": "gsa"}
            for task in range(data.habits.tasks):
                online = replace(config, stream=Clear(data.habits.tasks, first=task), limit=length)
                where = {**keys, "scenario": "online", "first": str(task), "seed": str(seed)}
                out.append(Cell(where, renamed(online, f"-task-{task}-first")))
            offline = replace(config, stream=Clear(data.habits.tasks, first_task_epochs=EPOCHS), limit=EPOCHS * length)
            where = {**keys, "scenario": "offline", "first": "0", "seed": str(seed)}
            out.append(Cell(where, renamed(offline, f"-{EPOCHS}-epochs")))
    return out


def _teachers(scale: Scale, family: Family) -> list[Cell]:
    return [
        Cell(
            {"data": data.name, "memory": str(memory), "method": word, "scenario": "two tasks", "seed": str(seed)},
            configured(word, data, memory, seed, scale, family, tasks=2),
        )
        for data, memory in settings(scale, {"cifar100": (5000,)})
        for word in WORDS
        for seed in seeds(scale)
    ]


def first_task(record: Record) -> float:
    """The accuracy on the first task, in percent, when it was learnt."""
    return 100 * float(record.results.matrix()[0, 0])


def render(found: Found) -> Table:
    if found.label == "tab:teacher_quality2":
        there = [Line(word, {"method": (word,)}, TEACHER_QUALITY_2["cifar100", "accuracy", word], WORDS[0]) for word in WORDS]
        lines = [replace(there[0], against=""), *there[1:]]
        title = "Final average accuracy (%) of ER in two tasks, with a snapshot of the first as teacher"
        return compared("tab_teacher_quality2", title, found, [({}, lines)])
    published = {name: TEACHER_QUALITY_1["cifar100", "accuracy", name] for name in ("offline", "online", "hard", "easy")}
    lines = [
        Line(f"offline, {EPOCHS} epochs", {"scenario": ("offline",)}, published["offline"], "online", first_task),
        Line("online", {"scenario": ("online",), "first": ("0",)}, published["online"], measure=first_task),
    ]
    every = {(run.cell.keys["seed"], run.cell.keys["first"]): first_task(run.record) for run in found.of({"scenario": ("online",)})}
    notes: list[str] = []
    for name, extreme in (("hard", min), ("easy", max)):
        seed, task = extreme(every, key=lambda key: every[key]) if every else ("", "")
        lines.append(Line(f"online, {name} task", {"scenario": ("online",), "seed": (seed,), "first": (task,)}, published[name],
                          measure=first_task))  # fmt: skip
        if every:
            notes.append(
                f"{name}: task {task} of seed {seed}, the {'best' if name == 'easy' else 'worst'} of {len(every)} put first"
            )
    if found.scale == "full":
        notes.append("the paper gives neither deviations nor the number of runs, so that agreement cannot be tested")
    title = "Accuracy (%) of GSA on its first task, when it was learnt"
    return compared("tab_teacher_quality1", title, found, [({}, lines)], first="scenario", notes=notes)


ONE, TWO = {"scenario": ("online", "offline")}, {"scenario": ("two tasks",)}
ITEM = Item(
    "tab_teacher_quality",
    {
        "tab:teacher_quality1": Label("how well a first task is learnt: once or in 20 epochs, hard or easy", ONE),
        "tab:teacher_quality2": Label("what a snapshot of the first task is worth as a teacher", TWO),
    },
    cells,
    render,
)
