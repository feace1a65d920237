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
from matplotlib.figure import Figure

from onepass import figures
from onepass.figures import Curve, style

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
    paths = figures.save(figure, folder / "deeper" / "alpha.0.01")
    assert paths == [folder / "deeper" / "alpha.0.01.svg", folder / "deeper" / "alpha.0.01.png"]
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
