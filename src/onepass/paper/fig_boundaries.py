"""Clear and blurry boundaries of tasks, drawn from real streams: which classes are shown when.

The paper's `fig:knowing_task_boundaries`, which is a sketch.  Here the streams of seed 0 themselves, of CIFAR-100 in ten tasks:
nothing is run, but the data has to be there.

    onepass paper fig_boundaries --data-dir DIR

Smoke: digits in five tasks.
"""

from onepass.data import source
from onepass.errors import Refused
from onepass.loop import prepare
from onepass.paper.found import Found
from onepass.paper.item import Cell, Drawing, Item, Label, Scale
from onepass.recipes import Family, Setting, recipe
from onepass.stream import Pass


def cells(scale: Scale, family: Family) -> list[Cell]:
    return []


def render(found: Found) -> list[Drawing]:
    from onepass import figures
    from onepass.figures.presence import Shown

    data = source("digits" if found.scale == "smoke" else "cifar100")
    settings: tuple[Setting, ...] = ("clear", "blurry")
    try:
        clear, blurry = (prepare(recipe("er", data, stream=kind), found.data_dir)[0] for kind in settings)
    except Refused as error:
        drawn = figures.presence(dict.fromkeys(settings), (), f"Boundaries of tasks: {data.name}", str(error))
        return [Drawing("fig_knowing_task_boundaries", drawn)]
    rank = {label: row for row, label in enumerate(clear.spec.original)}  # rows in the order in which clear tasks show them

    def shown(stream: Pass) -> Shown:
        return Shown([rank[stream.spec.original[c]] for c in stream.y[stream.order].tolist()], stream.task_ends)

    title = f"Boundaries of tasks: {data.name}"
    note = "a row for each class, a colour for each task; dashed: where tasks end (nominally, if blurry)\n"
    note += f"seed 0; scale {found.scale}, recipe default; nothing is run"
    drawn = figures.presence({"clear": shown(clear), "blurry": shown(blurry)}, clear.spec.tasks, title, note, clear.spec.names)
    return [Drawing("fig_knowing_task_boundaries", drawn)]


ITEM = Item(
    "fig_boundaries",
    {"fig:knowing_task_boundaries": Label("clear and blurry boundaries of tasks, from real streams")},
    cells,
    render,
)
