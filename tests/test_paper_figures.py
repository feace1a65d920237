"""The paper's figures as items: which runs they ask for, and that they draw what there is, however little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from onepass.data import source
from onepass.loop import run
from onepass.losses import lambda_for
from onepass.nets import ResNet18
from onepass.paper import fig_alpha, fig_boundaries, fig_confusion, fig_drift, fig_time, fig_tsne
from onepass.paper.found import Found, Run
from onepass.paper.item import SCALES, Cell, Item, Scale, chosen, values
from onepass.probes import Drift, MemoryFeatures, Predictions
from onepass.recipes import recipe
from onepass.record import Record

ITEMS = [module.ITEM for module in (fig_alpha, fig_boundaries, fig_confusion, fig_drift, fig_time, fig_tsne)]
LATEX = Path("/work/shared/paper/rethinking-mkd-ocl.tex")
FULL = {  # runs at `full`, by label
    "fig:plasticity_stability_alpha": 30,
    "fig:lambda_alpha1": 240,
    "fig:lambda_alpha2": 240,
    "fig:knowing_task_boundaries": 0,
    "fig:confusion_matrices": 8,
    "fig:supp_confusion_matrices": 14,
    "fig:feature_drift": 2,
    "fig:supp_feat_drift": 12,
    "fig:time_consumption": 85,
    "fig:tsne": 2,
    "fig:all_tsne": 12,
}


def cells_of(item: Item, label: str, scale: Scale) -> tuple[Cell, ...]:
    return tuple(chosen(item.cells(scale, "default"), item.labels[label].where))


def test_labels_are_the_papers_and_ask_for_so_many_runs() -> None:
    asked = {label: len(cells_of(item, label, "full")) for item in ITEMS for label in item.labels}
    assert asked == FULL
    if LATEX.is_file():
        text = LATEX.read_text()
        assert not [label for label in asked if rf"\label{{{label}}}" not in text]
        assert r"\lambda_\alpha = a*\log_{10}(\alpha) + b$, with $a=9/2$ and $b=29/2$" in text and fig_alpha.LAW == (9 / 2, 29 / 2)
    for item in ITEMS:
        for scale in SCALES:
            for label in item.labels:
                folders = [cell.config.folder for cell in cells_of(item, label, scale)]
                assert len(set(folders)) == len(folders)  # each cell is a run of its own
                assert bool(folders) == (item.name != "fig_boundaries")


def test_the_recipes_own_point_of_the_grid_is_the_recipes_own_run() -> None:
    cells = fig_alpha.ITEM.cells("full", "default")
    (own,) = [c for c in cells if (c.keys["alpha"], c.keys["lambda"], c.keys["seed"]) == ("0.01", "5.5", "0")]
    assert own.config.folder == recipe("er+mkd", source("cifar100"), memory=5000).folder
    lawful = {(c.keys["alpha"], c.keys["lambda"]) for c in cells if c.keys["law"] == "yes"}
    assert lawful == {("0.001", "1"), ("0.003", "4"), ("0.01", "5.5"), ("0.03", "8"), ("0.1", "12"), ("0.3", "12")}
    for cell in cells:
        alpha, weight = float(cell.keys["alpha"]), float(cell.keys["lambda"])
        teacher, distill = cell.config.to_json()["teacher"], cell.config.to_json()["distill"]
        assert teacher["alpha"] == alpha and (distill["weight"] or lambda_for(alpha)) == pytest.approx(weight)


# ---- drawn from two real runs, which stand for all that an item asks for


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    probes = (Predictions(), Drift(every=2), MemoryFeatures())
    small: dict[str, Any] = {"net": ResNet18(width=2), "per_class": 4, "probes": probes, "precision": "fp32"}
    root = tmp_path_factory.mktemp("runs")
    return {word: run(replace(recipe(word, source("digits"), memory=9), **small), root) for word in ("er", "er+mkd")}


def found(item: Item, label: str, records: dict[str, Record], but: str = "") -> Found:
    """All runs of a label at smoke, but for those of a method."""
    cells = cells_of(item, label, "smoke")
    there = [c for c in cells if c.keys["method"] != but]
    runs = tuple(Run(c, records["er+mkd" if "+mkd" in c.keys["method"] else "er"], "fp32") for c in there)
    return Found(label, "smoke", "default", cells, runs, (f"{len(runs)} of {len(cells)} runs are there",))


def drawn(item: Item, label: str, records: dict[str, Record], but: str = "") -> Figure:
    ((stem, figure),) = item.render(found(item, label, records, but))
    assert stem == label.replace(":", "_")
    return figure


def said(figure: Figure) -> str:
    texts = [
        t.get_text() for axes in figure.axes for t in (*axes.texts, axes.title, *axes.get_xticklabels(), *axes.get_yticklabels())
    ]
    texts += [axes.get_title(loc="left") for axes in figure.axes]
    return "\n".join([*texts, figure.get_suptitle(), figure.get_supxlabel()])


def test_alpha(records: dict[str, Record]) -> None:
    item = fig_alpha.ITEM
    figure = drawn(item, "fig:plasticity_stability_alpha", records)
    matrix = records["er+mkd"].results.matrix("teacher")
    heights = [np.mean(matrix[-1]), np.mean(matrix.diagonal()), np.mean([row[:t].mean() for t, row in enumerate(matrix) if t])]
    ours = [float(np.asarray(line.get_ydata())[0]) for line in figure.axes[0].lines]
    np.testing.assert_allclose(ours, 100 * np.array(heights))
    heat = drawn(item, "fig:lambda_alpha1", records)
    assert said(heat).count(f"{100 * records['er+mkd'].summary['accuracy']:.1f}") == 9
    assert not [line for line in heat.axes[0].lines if "paper" in str(line.get_label())]
    heading = " ".join(said(heat).split())  # in lines no longer than the page is wide
    assert "mean over 2 seeds" in heading and "18 of 18 runs" in heading and "3 of 3 best at an edge of the grid" in heading
    (full,) = item.render(replace(found(item, "fig:lambda_alpha2", records), scale="full"))
    assert [line for line in full.figure.axes[0].lines if "paper" in str(line.get_label())]  # pyright: ignore
    few = replace(there := found(item, "fig:lambda_alpha2", records), runs=there.runs[:3])
    assert "no alpha was run with every weight yet" in said(item.render(few)[0].figure)  # pyright: ignore


def test_confusion(records: dict[str, Record]) -> None:
    figure = drawn(fig_confusion.ITEM, "fig:confusion_matrices", records, but="derpp+mkd")
    titles = [axes.get_title(loc="left") for axes in figure.axes[:8]]
    assert titles == ["er", "derpp", "er-ace", "gsa", "er+mkd", "derpp+mkd", "er-ace+mkd", "gsa+mkd"]
    images = {title: axes.images for title, axes in zip(titles, figure.axes, strict=False)}
    np.testing.assert_array_equal(np.asarray(images["gsa+mkd"][0].get_array()), records["er+mkd"].results.confusion())
    assert not images["derpp+mkd"] and "not run yet" in said(figure) and "7 of 8 runs are there" in said(figure)


def test_drift(records: dict[str, Record]) -> None:
    _, measured = records["er"].results.at("drift/student")
    one = drawn(fig_drift.ITEM, "fig:feature_drift", records)
    assert any(np.array_equal(np.asarray(line.get_ydata()), measured) for line in one.axes[0].lines)
    six = drawn(fig_drift.ITEM, "fig:supp_feat_drift", records, but="ocm")
    assert [axes.get_title(loc="left") for axes in six.axes] == list(fig_drift.BASES)


def test_tsne(records: dict[str, Record]) -> None:
    figure = drawn(fig_tsne.ITEM, "fig:tsne", records)
    (cloud,) = figure.axes[1].collections
    assert np.asarray(cloud.get_offsets()).shape == (9, 2)
    assert "not run yet" in said(drawn(fig_tsne.ITEM, "fig:tsne", records, but="er"))


def test_time_is_of_one_machine_and_precision(records: dict[str, Record]) -> None:
    there = found(fig_time.ITEM, "fig:time_consumption", records, but="ocm")
    elsewhere = Record(records["er"].path)
    elsewhere.__dict__["env"] = records["er"].env | {"precision": "bf16"}
    mixed = replace(there, runs=(*there.runs[1:], replace(there.runs[0], record=elsewhere)))
    (drawing,) = fig_time.ITEM.render(mixed)
    text = said(drawing.figure)  # pyright: ignore
    assert values(there.cells, "method") == [w for w in text.split("\n") if w in values(there.cells, "method")]
    assert "fp32" in text and "bf16" not in text and "not run yet" in text
    assert "1 of another machine or precision left out" in " ".join(text.split())


def test_boundaries_are_the_streams_and_say_if_there_is_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    label = "fig:knowing_task_boundaries"
    figure = drawn(fig_boundaries.ITEM, label, {})
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["clear", "blurry"]
    shown = [(np.asarray(axes.collections[0].get_array()) < 1).any(-1) for axes in figure.axes]
    assert shown[0].sum() < shown[1].sum()  # where it is blurry, a class is seen for longer
    monkeypatch.delenv("ONEPASS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (drawing,) = fig_boundaries.ITEM.render(replace(found(fig_boundaries.ITEM, label, {}), scale="full"))
    assert "the data is not there" in said(drawing.figure) and "cifar-100-python" in said(drawing.figure)  # pyright: ignore
