"""The paper's tables: their cells at every scale, what is found of them, what is run, and what is printed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import onepass.doctor
import onepass.paper.ask
from onepass.__about__ import RESULTS_VERSION
from onepass.cli import main
from onepass.config import Config
from onepass.data import source
from onepass.distill import MKD
from onepass.errors import Refused
from onepass.loop import Progress
from onepass.nets import ResNet18, resolve_precision
from onepass.paper import ITEMS, tab_clear, tab_hp, tab_ncm, tab_recipes, tab_teacher_quality, tab_views
from onepass.paper.agreement import Sample, welch
from onepass.paper.ask import asked_of_all, look, parsed, parts, wanting
from onepass.paper.found import Found, Shelf, find
from onepass.paper.item import FAMILIES, SCALES, Cell, Item, Label, Scale, grid
from onepass.paper.published import CLEAR
from onepass.paper.table import Block, Number, Table, by_setting, compared
from onepass.probes import NCM, Drift, Predictions
from onepass.recipes import recipe
from onepass.record import Record, Results
from onepass.teachers import Frozen
from onepass.terminal import Live

LATEX = Path("/work/shared/paper/rethinking-mkd-ocl.tex")
TABLES = [item for item in ITEMS.values() if item.name.startswith("tab_")]
FULL = {  # runs at `full`; tab_clear's 1,020 and tab_blurry's 840 are the paper's
    "tab:teacher_quality1": 55,
    "tab:teacher_quality2": 15,
    "tab:clear_setting_all": 1020,
    "tab:blurry_all": 840,
    "tab:ablation": 30,
    "tab:NCM_trick": 40,
    "tab:all_ncm_trick": 60,
    "tab:backward_tf": 60,
    "tab:backward_tf_app": 120,
    "tab:all_hp": 563,
    "tab:controls": 145,
    "tab:views": 95,
    "tab:recipes": 170,
}


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(Refused) as error:
        act()
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- cells


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_is_a_run_of_its_own_at_every_scale(scale: Scale, family: Any) -> None:
    for item in ITEMS.values():
        cells = item.cells(scale, family)
        folders = {cell.config.folder for cell in cells}
        named = {tuple(cell.keys.items()) for cell in cells}
        assert len(named) == len(cells) and (len(folders) == len(cells) or item.name == "fig_tsne")
        for cell in cells:
            config = cell.config
            assert cell.keys["data"] == config.data.name and cell.keys["memory"] == str(config.memory)
            assert cell.keys["seed"] == str(config.seed) and Predictions() in config.probes
            assert (config.data.name == "digits") == (scale == "smoke")
            assert isinstance(config.net, ResNet18) and config.net.width == {"full": 64, "small": 20, "smoke": 8}[scale]
            assert config.net.stem == ("large" if config.data.name == "imagenet100" else "small")
            if item.name != "tab_recipes":
                assert config.name.endswith("-published") == (family == "published")


def test_tables_need_as_many_runs_as_the_paper_says() -> None:
    found = {part.label: len(part.cells) for part in parts(["all"], {}, "full", "default") if part.item in TABLES}
    assert found == FULL


def test_labels_are_the_papers() -> None:
    labels = [label for item in ITEMS.values() for label in item.labels if not item.ours]
    assert len(set(labels)) == len(labels) == 21
    if LATEX.is_file():
        assert not [label for label in labels if f"\\label{{{label}}}" not in LATEX.read_text()]
    for item in ITEMS.values():
        assert sys.modules[f"onepass.paper.{item.name}"].ITEM is item
        doc = sys.modules[f"onepass.paper.{item.name}"].__doc__ or ""
        assert f"onepass paper {item.name}" in doc or any(f"onepass paper {label}" in doc for label in item.labels)
        assert "Smoke: " in doc and (item.ours or any(label in doc for label in item.labels))


def test_runs_are_shared_between_items() -> None:
    """What several tables show is one run: of 2,993 at `full`, only 63 are made for one small table alone, say."""
    clear = {cell.config.folder for cell in tab_clear.ITEM.cells("full", "default")}
    for name, shared in (("tab_ncm", 60), ("tab_backward_transfer", 120), ("tab_ablation", 15), ("tab_controls", 50)):
        assert sum(cell.config.folder in clear for cell in ITEMS[name].cells("full", "default")) == shared
    own = {cell.config.folder for cell in tab_views.ITEM.cells("full", "default")}
    assert len(own & clear) == 25  # Algorithm 1 as the recipes have it
    both = {cell.config.folder for cell in tab_recipes.ITEM.cells("full", "default")}
    published = {cell.config.folder for cell in tab_clear.ITEM.cells("full", "published")}
    assert len(both & clear) == len(both & published) == 85


def test_the_first_task_is_put_first_and_no_more() -> None:
    cells = [c for c in tab_teacher_quality.ITEM.cells("full", "default") if c.keys["scenario"] == "online"]
    assert {(c.keys["seed"], c.keys["first"]) for c in cells} == {(str(s), str(t)) for s in range(5) for t in range(10)}
    assert all(c.config.limit == 5000 and getattr(c.config.stream, "first", None) == int(c.keys["first"]) for c in cells)
    (offline,) = {(c.config.limit, c.config.stream) for c in tab_teacher_quality.ITEM.cells("full", "default")
                  if c.keys["scenario"] == "offline"}  # fmt: skip
    assert offline[0] == 100_000 and getattr(offline[1], "first_task_epochs", 0) == 20
    taught = [c.config for c in tab_teacher_quality.ITEM.cells("full", "default") if c.keys["method"] == "er+snapshot-high"]
    assert all(isinstance(config.teacher, Frozen) and getattr(config.stream, "tasks", 0) == 2 for config in taught)


def test_the_search_never_sees_a_test_image_and_has_the_recipes_own_point() -> None:
    cells = tab_hp.ITEM.cells("full", "default")
    assert all(cell.config.held_out is not None for cell in cells)
    own = {cell.keys["method"]: tab_hp.described(cell.config) for cell in cells if cell.keys["recipe"] == "yes"}
    assert own.keys() == {"er", "er-ace", "derpp", "dvc", "gsa", "er+sdp", "pcr", "er+te"}
    assert own["er"] == {"optim": "Adam", "lr": "0.0005", "wd": "0", "aug": "full"}
    assert own["er-ace"] == {"optim": "SGD", "lr": "0.001", "wd": "0", "momentum": "0.9", "aug": "partial"}
    assert own["er+sdp"]["mu"] == "100" and own["er+sdp"]["c2"] == "0.75"
    counts = {word: sum(cell.keys["method"] == word for cell in cells) for word in own}
    assert counts == {"er": 49, "er-ace": 48, "derpp": 384, "dvc": 48, "gsa": 16, "er+sdp": 10, "pcr": 1, "er+te": 7}
    for cell in cells:  # a cell's keys are its config's values
        assert {k: v for k, v in cell.keys.items() if k in tab_hp.described(cell.config)} == tab_hp.described(cell.config)


def test_views_are_what_they_are_called() -> None:
    for cell in tab_views.ITEM.cells("full", "published"):
        distill = cell.config.distill
        assert isinstance(distill, MKD) and distill.draw == ("main" if cell.keys["draw"] == "shared" else "mkd")
        seen = {student for student, _ in distill.pairs}
        assert seen == ({"raw", "aug"} if cell.keys["views"] == "algorithm-1" else {"aug"})


# ---- asking


def test_a_filter_is_keys_with_values() -> None:
    assert parsed(["data=cifar100", "method=er,er+mkd"]) == {"data": ("cifar100",), "method": ("er", "er+mkd")}
    for word in "data", "data=", "=":
        assert "is no filter" in refusal(lambda word=word: parsed([word]))


def test_names_labels_and_filters_choose_cells() -> None:
    where = parsed(["data=cifar100", "memory=5000", "method=er,er+mkd", "seed=0"])
    (part,) = parts(["tab_clear"], where, "full", "default")
    assert [cell.config.title for cell in part.cells] == ["er", "er+mkd"]
    assert part.cells[1].config == replace(recipe("er+mkd", source("cifar100"), memory=5000), probes=(Predictions(),))
    assert [p.label for p in parts(["tab_ncm"], {}, "full", "default")] == ["tab:NCM_trick", "tab:all_ncm_trick"]
    (main_table,) = parts(["tab:NCM_trick"], {}, "smoke", "default")
    assert {cell.keys["method"] for cell in main_table.cells} == set(tab_ncm.MAIN)
    assert {p.item.name for p in parts(["all"], {"method": ("er+rawpass",)}, "full", "default")} == {"tab_controls"}


def test_what_is_not_there_is_said_with_what_there_is() -> None:
    said = refusal(lambda: parts(["tab_clear"], {"data": ("cifar1000",)}, "full", "default"))
    assert "`data=cifar1000`" in said and "data: cifar10, cifar100, tiny-imagenet, imagenet100" in said and "memory: 200" in said
    assert "there are no cells at all" in refusal(lambda: parts(["fig_boundaries"], {"data": ("x",)}, "full", "default"))
    assert "did you mean `tab_clear`" in refusal(lambda: parts(["tab_cleer"], {}, "full", "default"))
    assert "did you mean `tab:ablation`" in refusal(lambda: parts(["tab:ablatio"], {}, "full", "default"))


# ---- records that exist: synthetic ones, as a run leaves them


def write(root: Path, config: Config, accuracy: float, *, results: int = RESULTS_VERSION, ncm: float | None = None) -> Path:
    """A finished run of five tasks of two classes, of which a share of the test images is right at every task's end."""
    y = np.repeat(np.arange(10, dtype=np.int16), 100)
    tasks = [[2 * t, 2 * t + 1] for t in range(5)]

    def predicted(share: float, ended: int) -> np.ndarray:
        out = np.where(np.tile(np.arange(100), 10) < round(100 * share), y, (y + 1) % 10).astype(np.int16)
        return np.where(y < 2 * ended, out, -1).astype(np.int16)

    arrays = {f"task/{which}@{100 * t:09d}": predicted(accuracy + more, t) for t in range(1, 6) for which, more in
              (("student", -0.02), ("teacher", -0.05), ("average", 0.0))}  # fmt: skip
    if config.infer == "student":
        arrays = {f"task/student@{100 * t:09d}": predicted(accuracy, t) for t in range(1, 6)}
    if ncm is not None:
        arrays[f"ncm/{config.infer}@{500:09d}"] = predicted(ncm, 5)
    stream = {"classes": 10, "tasks": tasks, "infer": config.infer, "task_ends": [100 * t for t in range(1, 6)], "length": 500}
    path = root / config.folder
    path.mkdir(parents=True)
    np.savez(path / "probes.npz", y=y, **arrays)  # pyright: ignore[reportArgumentType]
    summary = Results(arrays | {"y": y}, stream).summary()
    precision = resolve_precision(config.precision, torch.device("cpu"))
    tree = {"identity": config.identity, "results": results, "onepass": "0", "config": config.to_json()}
    done = {"summary": summary, "seconds": 60.0, "seconds_of": {"train": 50.0}, "images_per_second": 10.0}
    env = {"precision": precision, "device": "cpu (test)", "threads": 1}
    for name, value in (("config", tree), ("stream", stream), ("done", done), ("env", env)):
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


WHERE = parsed(["data=cifar100", "memory=1000", "method=er,er+mkd"])
SHARES = {"er": (0.22, 0.24, 0.23, 0.21, 0.25), "er+mkd": (0.40, 0.41, 0.41, 0.40, 0.42)}


def shown(words: list[str], runs: Path, scale: Scale = "full", where: Mapping[str, tuple[str, ...]] = WHERE) -> Found:
    (found,) = look(parts(words, where, scale, "default"), runs, scale, "default")
    return found


def fill(root: Path, but: int = 0) -> None:
    for cell in shown(["tab_clear"], root).cells[: 10 - but]:
        write(root, cell.config, SHARES[cell.keys["method"]][int(cell.keys["seed"])])


def cell_of(table: Table, line: str, column: str) -> Any:
    (row,) = [row for block in table.blocks for row in block.lines if row[0] == line]
    return row[list(table.columns).index(column)]


def test_a_table_has_ours_the_published_their_difference_and_the_pairs(tmp_path: Path) -> None:
    fill(tmp_path)
    found = shown(["tab_clear"], tmp_path)
    table = ITEMS["tab_clear"].render(found)
    assert isinstance(table, Table)
    ours, theirs = cell_of(table, "er", "ours"), CLEAR["cifar100", "1000", "er"]
    assert ours == pytest.approx(Sample(23.0, float(np.std([22, 24, 23, 21, 25], ddof=1)), 5))
    assert cell_of(table, "er", "published") == theirs == Sample(23.0, 0.8, 5)
    assert cell_of(table, "er", "difference").value == pytest.approx(0.0) and cell_of(table, "er", "agrees") == "yes"
    assert cell_of(table, "er+mkd", "difference").value == pytest.approx(40.8 - 38.5)
    assert cell_of(table, "er+mkd", "agrees") == "no" and cell_of(table, "er+mkd", "p").value == pytest.approx(
        welch(cell_of(table, "er+mkd", "ours"), CLEAR["cifar100", "1000", "er+mkd"])
    )
    interval = cell_of(table, "er+mkd", "paired difference")
    assert interval.mean == pytest.approx(17.8) and interval.low < 17.8 < interval.high and interval.n == 5
    assert cell_of(table, "er", "paired difference") is None and cell_of(table, "er+mkd", "to") == "er"
    assert any("ocm+mkd 37.1 (38.21)" in note for note in table.notes)  # where the paper disagrees with itself, both
    assert table.notes[-1].startswith("10 of 10 runs are there; precision ")


def test_cells_not_run_are_blank(tmp_path: Path) -> None:
    fill(tmp_path, but=5)
    table = ITEMS["tab_clear"].render(shown(["tab_clear"], tmp_path))
    assert isinstance(table, Table)
    columns = "n", "ours", "difference", "p", "agrees", "paired difference", "to"
    assert [cell_of(table, "er+mkd", column) for column in columns] == [None] * 7
    assert cell_of(table, "er+mkd", "published").mean == 38.5 and cell_of(table, "er", "n") == 5
    assert "5 of 10 runs are there" in table.notes[-1]
    (line,) = [line for line in table.text("csv").splitlines() if line.startswith("cifar100,1000,er+mkd")]
    assert line == "cifar100,1000,er+mkd,,,,38.5,0.5,,,,,,,,"


def test_published_numbers_stand_beside_full_alone(tmp_path: Path) -> None:
    for scale in "small", "smoke":
        where = {} if scale == "smoke" else WHERE
        table = ITEMS["tab_clear"].render(shown(["tab_clear"], tmp_path, scale, where))
        assert isinstance(table, Table) and not {"published", "difference", "p", "agrees"} & set(table.columns)
        assert f"scale {scale}" in table.notes[0] and "38.21" not in table.text("terminal")


def test_every_format_has_every_number(tmp_path: Path) -> None:
    fill(tmp_path)
    table = ITEMS["tab_clear"].render(shown(["tab_clear"], tmp_path))
    assert isinstance(table, Table)
    rows = list(csv.DictReader(io.StringIO(table.text("csv"))))
    assert [row["method"] for row in rows] == ["er", "er+mkd"]
    assert float(rows[1]["ours"]) == pytest.approx(40.8) and float(rows[1]["published std"]) == 0.5
    assert float(rows[1]["paired difference"]) == pytest.approx(17.8) and rows[1]["paired difference n"] == "5"
    assert rows[0]["data"] == "cifar100" and rows[0]["paired difference low"] == ""
    terminal, markdown, latex = (table.text(form) for form in ("terminal", "markdown", "latex"))
    for text in terminal, markdown:
        assert "40.80 ± 0.84" in text and "cifar100, memory 1000" in text and "+17.80 [+16.76, +18.84]" in text
    assert "| er+mkd | 5 | 40.80 ± 0.84 | 38.50 ± 0.50 | +2.30 |" in markdown
    assert "40.80 $\\pm$ 0.84" in latex and latex.count("\\midrule") == 1 and "\\toprule" in latex and "\\bottomrule" in latex
    columns = len(table.columns)
    body = [line for line in latex.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
    assert all(line.count(" & ") == columns - 1 for line in body) and f"{{l{'r' * (columns - 1)}}}" in latex


def test_what_latex_reads_otherwise_is_escaped() -> None:
    table = Table("t", "50 % & more_", ("a_b", "c"), [Block({}, [["x^2 {y}", Number(1.5, "+.1f")]])], ("note",))
    assert "50 \\% \\& more\\_" in table.text("latex") and "\\{y\\} & +1.5" in table.text("latex")
    assert table.text("csv") == "a_b,c\nx^2 {y},1.5"


def test_other_scales_versions_and_recipes_are_left_out_and_counted(tmp_path: Path) -> None:
    fill(tmp_path, but=2)
    er = shown(["tab_clear"], tmp_path).cells[0].config
    write(tmp_path, shown(["tab_clear"], tmp_path, "small").cells[0].config, 0.9)
    published = parts(["tab_clear"], WHERE, "full", "published")[0].cells
    write(tmp_path, published[0].config, 0.9)
    write(tmp_path, published[1].config, 0.9)
    old = write(tmp_path, replace(er, optim=replace(er.optim, lr=1.0)), 0.9, results=RESULTS_VERSION - 1)  # pyright: ignore
    write(tmp_path, replace(er, memory=999), 0.9)  # nobody's
    found = shown(["tab_clear"], tmp_path)
    assert len(found.runs) == 8 and old not in {run.record.path for run in found.runs}
    assert "left out: 2 of recipe `published`, 1 of scale `small`, 1 of another version of the results" in found.notes


def test_half_written_records_are_ignored_and_said(tmp_path: Path) -> None:
    fill(tmp_path)
    paths = [run.record.path for run in shown(["tab_clear"], tmp_path).runs]
    (paths[0] / "done.json").unlink()
    (paths[1] / "done.json").write_text('{"summary": {"acc')
    (paths[2] / "probes.npz").write_bytes((paths[2] / "probes.npz").read_bytes()[:100])
    (paths[3] / "config.json").write_text("")
    (paths[4] / "stream.json").unlink()
    (paths[5] / "env.json").write_text("{")
    found = shown(["tab_clear"], tmp_path)
    assert len(found.runs) == 4
    assert f"1 not finished, and ignored: {paths[0]}" in found.notes
    (damaged,) = [note for note in found.notes if "damaged or half-written, and ignored" in note]
    assert damaged.startswith("5 ") and str(paths[1]) in damaged
    table = ITEMS["tab_clear"].render(found)
    assert isinstance(table, Table) and cell_of(table, "er", "n") is None and damaged in table.notes


def test_runs_that_were_not_asked_for_what_is_shown_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    found = shown(["tab:NCM_trick"], tmp_path, where=parsed(["method=er"]))
    assert not found.runs and any("5 left out, for they were not asked for what is measured here" in n for n in found.notes)


def test_a_setting_has_one_precision(tmp_path: Path) -> None:
    cells = shown(["tab_clear"], tmp_path).cells
    for cell, precision in zip(cells, ["fp32", "bf16", "bf16", "bf16", "fp32", "fp16", "fp16"], strict=False):
        write(tmp_path, replace(cell.config, precision=precision), 0.3)  # pyright: ignore
    found = shown(["tab_clear"], tmp_path)
    assert [(run.cell.keys["method"], run.precision) for run in found.runs] == [("er", "bf16")] * 3 + [("er+mkd", "fp16")] * 2
    assert found.notes[0] == "5 of 10 runs are there; precision bf16 (3) and fp16 (2)"
    assert any("2 left out, for the other seeds of the same setting have another precision" in note for note in found.notes)
    configs = wanting([found], "full", "cpu")
    assert [config.precision for config in configs.values()] == ["bf16", "bf16", "fp16", "fp16", "fp16"]


def test_no_cell_keeps_a_record_of_another_cell(tmp_path: Path) -> None:
    """A run's folder says its whole identity: whatever else lies there is nobody's."""
    cell = shown(["tab_clear"], tmp_path).cells[0]
    write(tmp_path, replace(cell.config, batch_size=11), 0.9)
    assert not shown(["tab_clear"], tmp_path).runs and [*Shelf(tmp_path).at(cell.config)] == []


# ---- each table


def test_the_nearest_mean_stands_beside_the_logits(tmp_path: Path) -> None:
    where = parsed(["method=er,er+mkd"])
    for cell in shown(["tab:NCM_trick"], tmp_path, where=where).cells:
        write(tmp_path, cell.config, 0.3, ncm=0.4 if cell.keys["method"] == "er" else 0.1)
    table = ITEMS["tab_ncm"].render(shown(["tab:NCM_trick"], tmp_path, where=where))
    assert isinstance(table, Table) and table.stem == "tab_NCM_trick"
    (er, mkd) = table.blocks
    assert er.title == "method er" and [line[0] for line in er.lines] == ["logits", "nearest mean"]
    difference = list(table.columns).index("paired difference")
    assert [round(block.lines[1][difference].mean, 6) for block in (er, mkd)] == [10.0, -20.0]  # pyright: ignore
    assert er.lines[1][list(table.columns).index("published")] == Sample(29.0, 0.3, 5)


def test_the_ablation_is_one_run_by_three_networks(tmp_path: Path) -> None:
    where = parsed(["memory=5000"])
    for cell in shown(["tab_ablation"], tmp_path, where=where).cells:
        write(tmp_path, cell.config, 0.5 + 0.01 * int(cell.keys["seed"]) - (0.1 if "single" in cell.keys["method"] else 0))
    table = ITEMS["tab_ablation"].render(shown(["tab_ablation"], tmp_path, where=where))
    assert isinstance(table, Table)
    means = {str(line[0]): line[list(table.columns).index("ours")].mean for line in table.blocks[0].lines}  # pyright: ignore
    assert means == pytest.approx({"average": 52.0, "student": 50.0, "teacher": 47.0, "student, single view": 40.0})
    assert cell_of(table, "student, single view", "published") == Sample(47.9, 0.4, 5)
    assert cell_of(table, "teacher", "to") == "average" and cell_of(table, "student, single view", "to") == "student"


def test_easy_and_hard_first_tasks_are_the_extremes_and_named(tmp_path: Path) -> None:
    empty = ITEMS["tab_teacher_quality"].render(shown(["tab:teacher_quality1"], tmp_path, where={}))
    assert isinstance(empty, Table) and cell_of(empty, "online, hard task", "n") is None
    for cell in shown(["tab:teacher_quality1"], tmp_path, where={}).cells:
        seed, first = int(cell.keys["seed"]), int(cell.keys["first"])
        write(tmp_path, cell.config, 0.9 if cell.keys["scenario"] == "offline" else 0.4 + 0.01 * first + 0.05 * (seed == 3))
    table = ITEMS["tab_teacher_quality"].render(shown(["tab:teacher_quality1"], tmp_path, where={}))
    assert isinstance(table, Table)
    assert cell_of(table, "online, hard task", "ours").mean == pytest.approx(40.0)
    assert cell_of(table, "online, easy task", "ours").mean == pytest.approx(54.0)
    assert cell_of(table, "online", "ours").n == 5 and cell_of(table, "online", "ours").mean == pytest.approx(41.0)
    assert cell_of(table, "offline, 20 epochs", "paired difference").mean == pytest.approx(49.0)
    assert cell_of(table, "online", "agrees") is None and cell_of(table, "online", "difference").value == pytest.approx(-20.0)
    assert any(note == "easy: task 9 of seed 3, the best of 50 put first" for note in table.notes)
    assert any(note.startswith("hard: task 0 of seed 0, the worst") for note in table.notes)


def test_the_search_shows_the_best_points_and_the_recipes_rank(tmp_path: Path) -> None:
    where = parsed(["method=er"])
    cells = shown(["tab_hp"], tmp_path, where=where).cells
    for i, cell in enumerate(cells):
        write(tmp_path, cell.config, 0.2 if cell.keys["recipe"] == "yes" else 0.3 + 0.01 * i)
    table = ITEMS["tab_hp"].render(shown(["tab_hp"], tmp_path, where=where))
    assert isinstance(table, Table)
    (block,) = table.blocks
    assert block.title == "method er, points 49 of 49" and len(block.lines) == 11
    assert [line[1] for line in block.lines] == [*range(1, 11), 49] and block.lines[-1][0] == "Adam lr 0.0005 wd 0 full"
    assert [line[3] for line in block.lines] == [None] * 10 + ["recipe"]
    best = max((c for c in cells if c.keys["recipe"] == "no"), key=cells.index)
    assert str(block.lines[0][0]) == "Adam lr {lr} wd {wd} {aug}".format(**best.keys)


def test_views_come_with_their_cost_and_recipes_with_both(tmp_path: Path) -> None:
    table = ITEMS["tab_views"].render(shown(["tab_views"], tmp_path, where=parsed(["method=er+mkd"])))
    assert isinstance(table, Table)
    costs = {line[0]: line[1] for line in table.blocks[0].lines}
    assert costs == {"algorithm-1, shared draws": 518, "equation-3, shared draws": 370, "single-view, shared draws": 296}
    table = ITEMS["tab_recipes"].render(shown(["tab_recipes"], tmp_path, where=parsed(["method=er,dvc"])))
    assert isinstance(table, Table)
    assert [[line[0] for line in block.lines] for block in table.blocks] == [["default", "published"]] * 2


@pytest.mark.parametrize("item", TABLES, ids=lambda item: item.name)
def test_every_table_is_drawn_from_nothing_and_from_everything(item: Item, tmp_path: Path) -> None:
    for label in item.labels:
        for part in parts([label], {}, "smoke", "default"):
            empty = item.render(find(item, label, part.cells, Shelf(tmp_path / "none"), "smoke", "default"))
            assert isinstance(empty, Table) and all(empty.text(form) for form in ("terminal", "markdown", "latex", "csv"))
            for i, cell in enumerate(part.cells):
                if not (tmp_path / "all" / cell.config.folder).exists():
                    config = replace(cell.config, probes=(Predictions(), NCM()))
                    write(tmp_path / "all", config, 0.3 + 0.001 * i, ncm=0.2)
            table = item.render(find(item, label, part.cells, Shelf(tmp_path / "all"), "smoke", "default"))
            assert isinstance(table, Table) and table.blocks and all(block.lines for block in table.blocks)
            column = next(c for c in ("ours", "held-out accuracy") if c in table.columns)
            assert all(line[list(table.columns).index(column)] is not None for block in table.blocks for line in block.lines)


# ---- the command, on an item of two narrow methods and two seeds

TINY = {"net": ResNet18(width=2), "limit": 120, "batch_size": 10, "replay_size": 10, "precision": "fp32"}


def tiny(probes: Any = ()) -> Item:
    def cells(scale: Scale, family: Any) -> list[Cell]:
        there = grid(["er", "er+mkd"], {"cifar10": (200,)}, "smoke", family, probes=probes)
        return [Cell(cell.keys, replace(cell.config, **TINY)) for cell in there]

    def render(found: Found) -> Table:
        return compared("tab_tiny", "Tiny", found, by_setting(found, {}))

    return Item("tab_tiny", {"tab:tiny": Label("a small one")}, cells, render)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder for runs, an item that is quickly run, and a machine that is quickly measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(onepass.doctor, "seconds_per_update", lambda config, budget=10.0: 0.5)  # pyright: ignore
    for module in onepass.paper.ask, onepass.paper:
        monkeypatch.setattr(module, "ITEMS", {"tab_tiny": tiny()})
    yield tmp_path / "runs"


def paper(*words: str) -> int:
    return main(["paper", *words])


def test_what_is_missing_is_said_with_its_cost_run_and_shown(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tab_tiny", "--scale", "smoke", "--runs", str(bench), "--workers", "1"]
    assert paper(*words) == 0
    assert "0 of 4 runs are there" in capsys.readouterr().out and not bench.exists()
    assert paper(*words, "--run", "--where", "seed=0", "--out", str(bench / "out")) == 0
    out, err = capsys.readouterr()
    assert "onepass: 2 runs to do: about" in err and "2 of 2 runs are there; precision fp32" in out
    assert err.index("runs to do") < err.index("2 runs: er seed 0, er+mkd seed 0")
    assert sorted(p.name for p in (bench / "out").iterdir()) == ["index.md", "tab_tiny.csv", "tab_tiny.md", "tab_tiny.tex"]
    assert (bench / "out" / "tab_tiny.csv").read_text().startswith("data,memory,method,n,ours,ours std")
    record = Record(next(bench.glob("digits-clear/er/m20/s0-*")))
    assert f"{100 * record.summary['accuracy']:.2f}" in out
    assert paper(*words, "--run", "--where", "seed=0") == 0 and "every run is there" in capsys.readouterr().err
    assert paper("list", "--scale", "smoke", "--runs", str(bench)) == 0
    listed = capsys.readouterr().out.splitlines()
    assert re.search(r"^tab_tiny +tab:tiny +a small one +4 +2 +\d+ s$", listed[2]) and listed[-1].split()[-4:-2] == ["4", "2"]


def test_stopped_twice_it_ends_the_same(bench: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(runs: Path) -> int:
        return paper("tab:tiny", "--scale", "smoke", "--runs", str(runs), "--workers", "1", "--run", "--format", "csv",
                     "--where", "seed=0")  # fmt: skip

    assert filled(bench / "whole") == 0
    whole = capsys.readouterr().out
    told, stops = Live.tell, [60, 90]  # images of the first run, of the second time

    def tell(self: Live, i: int, event: Any) -> None:
        told(self, i, event)
        if isinstance(event, Progress) and stops and event.samples == stops[0]:
            stops.pop(0)
            os.kill(os.getpid(), signal.SIGTERM)  # the run has taken the signal over, and saves

    monkeypatch.setattr(Live, "tell", tell)
    for _ in range(2):
        assert filled(bench / "broken") == 130
        out, err = capsys.readouterr()
        assert not out and "2 runs stopped and saved; the same command goes on" in err
    assert filled(bench / "broken") == 0 and capsys.readouterr().out == whole
    for path in (bench / "whole").glob("*/*/m*/s*-*"):
        other = bench / "broken" / path.relative_to(bench / "whole")
        ours, theirs = Record(path).results.arrays, Record(other).results.arrays
        assert ours.keys() == theirs.keys() and all(np.array_equal(ours[k], theirs[k]) for k in ours)
    assert len(Record(next((bench / "broken").glob("*/er/m*/s*-*"))).env["resumed"]) == 2


def test_a_run_is_asked_at_once_for_all_that_any_item_wants(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = replace(tiny((NCM(), Drift(every=7))), name="tab_more", labels={"tab:more": Label("more")})
    both = {"tab_tiny": tiny(), "tab_more": more}
    monkeypatch.setattr(onepass.paper.ask, "ITEMS", both)
    (part,) = look(parts(["tab_tiny"], {}, "smoke", "default"), bench, "smoke", "default")
    configs = asked_of_all(wanting([part], "smoke", "cpu"), "smoke", "default")
    assert len(configs) == 4 and all(c.probes == (Predictions(), NCM(), Drift(every=7)) for c in configs)
    assert [c.folder for c in configs] == [cell.config.folder for cell in part.cells]  # the same runs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tab_tinny"], "There is no table or figure `tab_tinny`; did you mean `tab_tiny`?"),
        (["tab_tiny", "--scale", "half"], "There is no scale `half`"),
        (["tab_tiny", "--recipe", "defaults"], "did you mean `default`?"),
        (["tab_tiny", "--format", "latx"], "did you mean `latex`?"),
        (["tab_tiny", "--figures", "png", "pgn"], "There is no kind of figure `pgn`; did you mean `png`?"),
        (["tab_tiny", "--workers", "0"], "`--workers 0` would run nothing"),
        (["tab_tiny", "--where", "method=er+sdp"], "there are data: digits; memory: 20; method: er, er+mkd; seed: 0, 1"),
        (["tab_tiny", "--where", "method=er,er+mdk"], "No cell of tab_tiny at scale smoke has `method=er+mdk`; there are data"),
        (["tab_tiny", "--where", "method"], "`method` is no filter"),
    ],
)
def test_mistakes_are_one_line(bench: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert paper(*words, "--runs", str(bench), "--scale", "smoke") == 2 if "--scale" not in words else paper(*words) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out and not bench.exists()


def test_of_many_runs_those_under_way_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    configs = [recipe("er", source("digits"), seed=seed) for seed in range(30)]
    with Live(configs) as live:
        live.tell(3, Progress(10, 1433, 1.0, None))
        live.tell(4, Refused("no"))
        rows = [*live._table().columns[0].cells], [*live._table().columns[1].cells]  # pyright: ignore[reportPrivateUsage]
    assert rows == (["30 runs", "er seed 3"], ["1 over", "10/1433 images"])
    assert capsys.readouterr().err.splitlines()[0].endswith("er seed 23, ...")
