"""Figures are files that say what they show, the same bytes each time."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from onepass import figures
from onepass.figures import Curve, Grid, alpha, style
from onepass.figures.curves import Drift, smoothed
from onepass.figures.embedding import Cloud
from onepass.figures.presence import Shown

METHODS = ("er", "er+mkd", "a method & <more>")
TASKS = ((0, 1), (2, 3), (4, 5, 6))


def curves(seeds: int, methods: Sequence[str] = METHODS) -> dict[str, list[Curve]]:
    rng = np.random.default_rng(0)
    return {m: [Curve(np.arange(10, 301, 10) + s, rng.random(30)) for s in range(seeds)] for m in methods}


def matrices(count: int, classes: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"method {i}": rng.integers(0, 50, (classes, classes)) for i in range(count)}


def words(path: Path) -> set[str]:
    return {e.text for e in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text") if e.text}


def written(figure: Figure, folder: Path) -> list[bytes]:
    paths = figures.save(figure, folder / "deeper" / "alpha.0.01", ("svg", "png"))
    assert paths == [folder / "deeper" / f"alpha.0.01.{kind}" for kind in ("svg", "png")]
    assert sorted((folder / "deeper").iterdir()) == sorted(paths)
    return [path.read_bytes() for path in paths]


@pytest.mark.parametrize("seeds", [1, 3])
def test_along_the_stream(tmp_path: Path, seeds: int) -> None:
    figure = figures.along_the_stream(curves(seeds), [100, 200, 300], "a title")
    svg, png = written(figure, tmp_path)
    assert svg and png.startswith(b"\x89PNG")
    said = {word.strip() for word in words(tmp_path / "deeper" / "alpha.0.01.svg")}
    assert {*METHODS, "a title", "images seen", "accuracy on the tasks so far (%)"} <= said
    assert any("Mean of 3 seeds" in word for word in said) == (seeds == 3)
    assert len(figure.axes[0].collections) == (len(METHODS) if seeds > 1 else 0)  # the bands


def test_the_line_is_the_mean_and_the_band_one_std() -> None:
    seeds = [Curve(np.array([0, 100, 200]), np.array(a)) for a in ([0.2, 0.4, 0.5], [0.4, 0.4, 0.7])]
    axes = figures.along_the_stream({"er": seeds}, [], "").axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [30, 40, 60])
    (band,) = axes.collections[0].get_paths()
    np.testing.assert_allclose([band.vertices[:, 1].min(), band.vertices[:, 1].max()], [30 - 200**0.5, 60 + 200**0.5])


def test_seeds_are_read_where_all_of_them_reach() -> None:
    """The grid is the first curve's; nothing is made up beyond the end of a shorter one."""
    ramp = [Curve(x, x / 1000) for x in (np.array([100, 200, 300]), np.array([110, 150, 290]))]
    line = figures.along_the_stream({"er": ramp}, [300], "").axes[0].lines[-1]
    np.testing.assert_allclose(line.get_xydata(), [[110, 11], [200, 20], [290, 29]])


def test_more_methods_than_colours_are_told_apart() -> None:
    axes = figures.along_the_stream(curves(1, [str(i) for i in range(14)]), [], "").axes[0]
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 14
    assert [line.get_color() for line in axes.lines[:7]] == list(style.PALETTE)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
@pytest.mark.parametrize("classes", [7, 21])
def test_confusions(tmp_path: Path, count: int, classes: int) -> None:
    names = [f"name {c}" for c in range(classes)]
    figure = figures.confusions(matrices(count, classes), names, TASKS, "a title")
    assert all(written(figure, tmp_path))
    said = words(tmp_path / "deeper" / "alpha.0.01.svg")
    assert {*matrices(count), "a title", "true class", "predicted class"} <= said
    assert (set(names) <= said) == (classes <= 20)
    *panels, _bar = figure.axes  # one colour bar
    assert [axes.images[0].get_clim() for axes in panels] == [panels[0].images[0].get_clim()] * count
    assert all(len(axes.lines) == 4 for axes in panels)  # two boundaries, across and down
    assert len({round(axes.get_position().y0, 6) for axes in panels}) == -(-count // 4)


def test_confusions_of_little(tmp_path: Path) -> None:
    """Nothing predicted, no names, no tasks."""
    written(figures.confusions({"er": np.zeros((3, 3), dtype=np.int64)}, None, (), ""), tmp_path)


def test_colours_follow_log_one_plus_count() -> None:
    norm = figures.confusions({"er": np.array([[0, 3], [15, 255]])}, None, [[0], [1]], "").axes[0].images[0].norm
    np.testing.assert_allclose(norm([0, 3, 15, 255]), [0, 0.25, 0.5, 1])


# ---- of the paper

ALPHAS, WEIGHTS = (0.001, 0.01, 0.1), (1.0, 5.5, 10.0)


def grid(best: Sequence[int]) -> Grid:
    """Accuracies that are highest in these rows."""
    out = np.random.default_rng(0).uniform(20, 40, (3, 3))
    out[best, range(3)] = 50
    return Grid(ALPHAS, WEIGHTS, out)


def drift(seed: int) -> Drift:
    return Drift(np.arange(100, 301, 20), np.random.default_rng(seed).random(11))


def cloud(classes: int) -> Cloud:
    y = np.repeat(np.arange(classes), 3)
    return Cloud(np.stack([10 * (y % 6), 10 * (y // 6)], 1) + np.random.default_rng(0).random((len(y), 2)), y)


def test_a_fit_recovers_the_line_and_best_is_of_whole_columns() -> None:
    law = alpha.fit({a: 4.5 * np.log10(a) + 14.5 for a in (0.001, 0.003, 0.01, 0.3)})
    assert law is not None and law == pytest.approx((4.5, 14.5))
    assert alpha.fit({0.01: 5.5, 0.1: 10.0}) is None  # a line goes through any two
    assert grid([0, 1, 2]).best() == dict(zip(ALPHAS, WEIGHTS, strict=True))
    holed = grid([2, 2, 0])
    holed.accuracy[1, 1] = np.nan
    assert holed.best() == {0.001: 10.0, 0.1: 1.0}


def test_heat_map_and_line_say_slope_and_intercept() -> None:
    heat, line = (draw(grid([0, 1, 2]), "a title") for draw in (figures.heat_map, figures.fitted_line))
    assert len(heat.axes[0].patches) == 3  # the best of each alpha is framed
    for figure in heat, line:
        (ours,) = [drawn for drawn in figure.axes[0].lines if str(drawn.get_label()).startswith("fit: ")]
        assert ours.get_label() == r"fit: $\lambda = 4.50\,\log_{10}\alpha + 14.50$"
        x, y = np.asarray(ours.get_xydata()).T
        np.testing.assert_allclose(y, 4.5 * np.log10(x) + 14.5)
    assert heat.axes[0].get_xscale() == heat.axes[0].get_yscale() == line.axes[0].get_xscale() == "log"


def test_what_was_not_run_is_blank() -> None:
    nothing = Grid(ALPHAS, WEIGHTS, np.full((3, 3), np.nan))
    for figure in figures.heat_map(nothing, ""), figures.fitted_line(nothing, ""):
        assert any("not run yet" in t.get_text() or "no alpha was run" in t.get_text() for t in figure.axes[0].texts)
    some = [
        figures.confusions({"er": np.eye(7, dtype=np.int64), "er+mkd": None}, None, TASKS, "", columns=2),
        figures.drifts({"er": {"alone": drift(0)}, "ocm": {"alone": None, "+mkd": None}}, [100], ""),
        figures.embeddings({"er": cloud(3), "er+mkd": None}, "abc", ""),
        figures.durations({"er": [1.0], "ocm": []}, ""),
        figures.presence({"clear": Shown([0, 1, 2, 3, 4, 5, 6] * 4, [12, 28]), "blurry": None}, TASKS, ""),
    ]
    for figure in some:
        said = [t.get_text() for axes in figure.axes for t in axes.texts]
        assert len([text for text in said if text in ("not run yet", "the data is not there")]) == 1


def test_plasticity_and_stability_are_means_over_seeds() -> None:
    axes = figures.plasticity_and_stability(ALPHAS, {"plasticity": [[30.0, 50.0], [60.0], []]}, "").axes[0]
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_xydata()), [[0.001, 40], [0.01, 60]])


def test_drift_is_smoothed_by_its_neighbours() -> None:
    samples, values = drift(3)
    naive = []
    for x in samples:
        weights = [np.exp(-(((x - other) / 6) ** 2) / 2) for other in samples]  # 2 % of 300
        naive.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
    np.testing.assert_allclose(smoothed(samples, values), naive)
    axes = figures.drifts({"er": {"alone": drift(0), "+mkd": drift(1)}}, [100, 200, 300], "").axes[0]
    np.testing.assert_allclose(axes.lines[3].get_ydata(), drift(0).distance)  # after three ends of tasks: as it was measured
    np.testing.assert_allclose(axes.lines[4].get_ydata(), smoothed(*drift(0)))


def test_tsne_is_seeded_and_takes_few_points() -> None:
    features = np.random.default_rng(0).normal(size=(24, 5)) + 20 * np.repeat(np.eye(5)[:2], 12, 0)
    points = figures.tsne(features)
    assert points.shape == (24, 2) and np.array_equal(points, figures.tsne(features))
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    assert apart[:12, :12].max() < apart[:12, 12:].min()
    assert figures.tsne(features[:3]).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("classes", [6, 30])
def test_classes_are_named_where_they_have_a_place(tmp_path: Path, classes: int) -> None:
    names = [f"name {c}" for c in range(classes)]
    there = cloud(classes)
    there.points[1] += 100  # of class 0 one point is off; of class 1 two
    there.points[3] -= 300
    there.points[4] += 300
    figure = figures.embeddings({"er": there}, names, "a title", "a note")
    said = [text.get_text() for text in figure.axes[0].texts]  # on the map; a legend beside it has every class, if they are few
    assert said == [names[c] if classes == 6 else f"{c}" for c in (0, *range(2, classes))]
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert legend == (names if classes == 6 else [])
    figures.save(figure, tmp_path / "map", ("svg",))
    assert {"a title", "a note", "er"} <= words(tmp_path / "map.svg")


def test_durations_have_a_bar_for_each_method_and_a_colour_for_what_is_added() -> None:
    seconds = {"er": [60.0, 180.0], "er+mkd": [240.0], "pcr": [12_000.0], "pcr+mkd": [30.0]}
    axes = figures.durations(seconds, "").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [2, 4, 200, 0.5] and axes.get_xlabel() == "minutes"
    assert [t.get_text() for t in axes.get_yticklabels()] == ["er", "er+mkd", "pcr", "pcr+mkd"]
    assert {"2", "4", "200", "0.5"} <= {t.get_text() for t in axes.texts}
    alone, added, *_ = colors = [bar.get_facecolor() for bar in axes.patches]
    assert colors == [alone, added, alone, added] and alone != added
    short = figures.durations({"er": [3.5]}, "").axes[0]
    assert [bar.get_width() for bar in short.patches] == [3.5] and short.get_xlabel() == "seconds"


def test_presence_is_cut_where_tasks_end_and_coloured_where_a_class_is() -> None:
    y = [0, 1] * 30 + [2, 3] * 30 + [4, 5, 6] * 20
    (mesh,) = figures.presence({"clear": Shown(y, [60, 120, 180])}, TASKS, "").axes[0].collections
    edges = mesh.get_coordinates()[0, :, 0]  # pyright: ignore
    assert {0, 60, 120, 180} <= set(edges) and len(edges) == 16  # 15 pieces of 12
    shown = (np.asarray(mesh.get_array()) < 1).any(-1)
    for c, row in enumerate(shown):
        assert row.tolist() == [any(y[t] == c for t in range(int(a), int(b))) for a, b in zip(edges, edges[1:], strict=False)]


def test_same_figure_same_bytes(tmp_path: Path) -> None:
    draw = [
        lambda: figures.along_the_stream(curves(2), [100, 200], "a title"),
        lambda: figures.confusions(matrices(2), None, TASKS, "a title"),
    ]
    for i, figure in enumerate(draw):
        once = figure()
        first = written(once, tmp_path / f"{i}")
        assert first == written(once, tmp_path / f"{i} again")
        with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "path", "lines.linewidth": 9}):
            assert first == written(figure(), tmp_path / f"{i} in another style")


def test_clouds_and_pdfs_have_the_same_bytes_too(tmp_path: Path) -> None:
    """Points are pixels in every kind of file, and a PDF has no date."""
    once, again = (figures.embeddings({"er": cloud(30)}, list("x" * 30), "") for _ in range(2))
    first, second = (figures.save(figure, tmp_path / name, ("svg", "pdf")) for figure, name in ((once, "once"), (again, "again")))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[1].read_bytes().startswith(b"%PDF")


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "figure.svg").write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):
        figures.save(figures.along_the_stream(curves(1), [], ""), tmp_path / "figure")
    assert (tmp_path / "figure.svg").read_text() == "old"


def test_inputs_are_left_alone() -> None:
    given, counts = curves(2), matrices(2)
    style = dict(matplotlib.rcParams)
    figures.along_the_stream(given, [100], "")
    figures.confusions(counts, None, TASKS, "")
    assert dict(matplotlib.rcParams) == style
    for method, seeds in curves(2).items():
        np.testing.assert_array_equal(given[method], seeds)
    for method, matrix in matrices(2).items():
        np.testing.assert_array_equal(counts[method], matrix)


@pytest.mark.parametrize("lines", [1, 2])
def test_names_beside_lines_do_not_overlap(lines: int) -> None:
    """Where all lines end at nearly the same height."""
    names = ["\n".join([f"method {i}"] * lines) for i in range(7)]
    ends = {name: [Curve(np.array([10, 20]), np.array([0.1, 0.5 + i / 1000]))] for i, name in enumerate(names)}
    figure = figures.along_the_stream(ends, [], "")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    said = [text for text in figure.axes[0].texts if "method" in text.get_text()]
    boxes = sorted((Text.get_window_extent(text, canvas.get_renderer()) for text in said), key=lambda box: box.y0)
    assert len(boxes) == 7 and all(a.y1 <= b.y0 + 1 for a, b in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize("seed", range(5))
def test_names_are_spread(seed: int) -> None:
    y = np.random.default_rng(seed).uniform(20, 40, 9)
    spread = style.spread(y, 3.0, 0.0, 100.0)
    assert (np.diff(spread[np.argsort(y)]) >= 3 - 1e-9).all()
    assert spread.mean() == pytest.approx(y.mean())  # no further than needed
    for low, high in ((30.0, 100.0), (0.0, 30.0)):
        bounded = style.spread(y, 3.0, low, high)
        assert low - 1e-9 <= bounded.min() and bounded.max() <= high + 1e-9
    apart = np.array([30.0, 10.0, 20.0])
    np.testing.assert_allclose(style.spread(apart, 3.0, 0.0, 100.0), apart)


def test_neither_the_package_nor_pyplot_is_touched() -> None:
    """`import onepass` does not wait for matplotlib, and figures keep no global state."""
    code = (
        "import sys, onepass; assert 'matplotlib' not in sys.modules\n"
        "import onepass.figures; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
