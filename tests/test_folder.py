"""A user's own images: both layouts, their quirks, what is refused, and a whole run on them."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import torch
from trees import encoded, folder, write

from onepass import images
from onepass.cli import main
from onepass.config import Config, with_source_fields
from onepass.data import Habits, held_out, source
from onepass.data.folder import Folder
from onepass.errors import Refused
from onepass.loop import run
from onepass.nets import ResNet18
from onepass.predict import classify
from onepass.recipes import recipe
from onepass.stream import Clear


def refusal(act: Any) -> str:
    with pytest.raises(Refused) as error:
        act()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_train_and_test_are_read_with_the_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    data = Folder(path=str(folder(tmp_path / "x", ("cat", "ape", "bee")))).load()
    assert data.names == ("ape", "bee", "cat") and data.skipped == ()
    assert data.train.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4 and data.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    assert (data.train.x[1].numpy() == images.pixels(tmp_path / "x" / "train" / "ape" / "1.JPG")).all()


def test_val_stands_for_test_where_there_is_none(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    expected = Folder(path=str(root)).load()
    (root / "test").rename(root / "val")
    assert torch.equal(Folder(path=str(root)).load().test.x, expected.test.x)


def test_a_share_of_each_class_is_held_out_evenly_spaced(tmp_path: Path) -> None:
    root = tmp_path / "x"
    for name, n in ("a", 10), ("b", 5), ("c", 3):
        for i in range(n):
            write(root / name / f"{i:02d}.png", encoded(i, (8, 8), kind="PNG"))
    data = Folder(path=str(root), split=0.2).load()
    assert np.bincount(data.train.y).tolist() == [8, 4, 2] and np.bincount(data.test.y).tolist() == [2, 1, 1]
    held = [images.pixels(root / name) for name in ("a/04.png", "a/09.png", "b/04.png", "c/02.png")]
    assert all((x.numpy() == h).all() for x, h in zip(data.test.x, held, strict=True))


@pytest.mark.parametrize("share", [0.05, 0.2, 1 / 3, 0.5, 0.75, 0.99])
def test_what_is_held_out_is_a_share_of_each_class_and_never_all_of_it(share: float) -> None:
    labels = np.random.default_rng(0).integers(0, 4, 200).tolist() + [4, 4, 5]
    held = held_out(labels, share)
    for c in range(6):
        of, n = sum(h for h, label in zip(held, labels, strict=True) if label == c), labels.count(c)
        assert abs(of - n * share) < 1 or (of == 1 and n > 1)
        assert of < n


def test_train_beside_no_test_is_split_too(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    shutil.rmtree(root / "test")
    assert "has no `test` beside its classes" in refusal(Folder(path=str(root)).load)
    data = Folder(path=str(root), split=0.25).load()
    assert data.names == ("ape", "bee", "cat") and len(data.train) == 9 and len(data.test) == 3


# ---- quirks


def test_a_class_has_one_name_however_its_folder_is_spelt(tmp_path: Path) -> None:
    for part, form in ("train", "NFC"), ("test", "NFD"):
        for name in "café", "猫", "žába ŽÁBA":
            write(tmp_path / "x" / part / normalize(form, name) / "ein Bild äöü.PNG", encoded(1, (8, 8), kind="PNG"))
    assert Folder(path=str(tmp_path / "x")).load().names == tuple(sorted(normalize("NFC", n) for n in ("café", "猫", "žába ŽÁBA")))


def test_links_in_circles_and_nested_folders_and_other_files_do_no_harm(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    expected = Folder(path=str(root)).load()
    (root / "train" / "ape" / "again").symlink_to(root / "train")
    (root / "train" / "bee" / "itself").symlink_to(root / "train" / "bee" / "itself")
    (root / "train" / "cat" / "nested").mkdir()
    (root / "train" / "cat" / "0.png").rename(root / "train" / "cat" / "nested" / "0.png")
    write(root / "train" / "ape" / "Thumbs.db", b"x")
    write(root / "train" / "readme.txt", b"x")
    data = Folder(path=str(root)).load()
    assert len(data.train) == len(expected.train) and data.names == expected.names


def test_a_class_without_images_is_left_out_and_said_so(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    (root / "train" / "axe").mkdir()
    (root / "test" / "axe").mkdir()
    write(root / "train" / "zoo" / "list.txt", b"nothing yet")
    data = Folder(path=str(root)).load()
    assert data.names == ("ape", "bee", "cat") and sorted(data.train.y.unique().tolist()) == [0, 1, 2]
    assert data.skipped == ("`axe` (a class without images)", "`zoo` (a class without images)")


# ---- refusals


def test_a_folder_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for act in Folder(path="flowers").load, lambda: Folder(path="flowers").habits, lambda: recipe("er", source("folder:flowers")):
        said = refusal(act)
        assert "There is no folder `flowers`" in said and str(tmp_path / "flowers") in said and "folder:PATH" in said


def test_a_class_that_is_tested_and_never_learnt_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    write(root / "test" / "dog" / "1.png", encoded(1, (16, 16)))
    assert "The class `dog` has images in" in refusal(Folder(path=str(root)).load)
    (root / "train" / "dog").mkdir()  # an empty one is no remedy
    assert "The class `dog`" in refusal(Folder(path=str(root)).load)


def test_a_folder_of_no_images_is_refused(tmp_path: Path) -> None:
    for name in "train/a", "test/a":
        write(tmp_path / "x" / name / "list.txt", b"x")
    assert "has no images in its 1 folders" in refusal(Folder(path=str(tmp_path / "x")).load)
    (tmp_path / "empty").mkdir()
    assert "`train` and `test`" in refusal(Folder(path=str(tmp_path / "empty")).load)
    assert "has no images in its 0 folders" in refusal(Folder(path=str(tmp_path / "empty"), split=0.2).load)
    for i in range(3):  # images, but no classes
        write(tmp_path / "flat" / f"{i}.png", encoded(i))
    assert "a folder of its own" in refusal(Folder(path=str(tmp_path / "flat"), split=0.2).load)
    root = folder(tmp_path / "half", test=0)
    (root / "test").mkdir()
    assert "no image to test on" in refusal(Folder(path=str(root)).load)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"size": 0}, "size=0"), ({"size": -3}, "size=-3"), ({"channels": 2}, "channels=2"), ({"split": 0.0}, "split=0.0"),
        ({"split": 1.0}, "split=1.0"), ({"split": float("nan")}, "split=nan"), ({"mean": (0.5,) * 3}, "3 and 0"),
        ({"mean": (0.5,), "std": (1.0,)}, "1 and 1"), ({"mean": (0.5,) * 3, "std": (1.0, 0.0, 1.0)}, "above 0"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(fields: dict[str, Any], word: str) -> None:
    assert word in refusal(lambda: Folder(path="x", **fields))


def test_a_share_beside_a_test_folder_is_refused(tmp_path: Path) -> None:
    assert "leave out `split=0.2`" in refusal(Folder(path=str(folder(tmp_path / "x")), split=0.2).load)


# ---- what a recipe starts from


def test_habits_suit_what_is_there(tmp_path: Path) -> None:
    root = folder(tmp_path / "x", tuple("abcdef"), train=50, size=8)
    habits = Folder(path=str(root)).habits
    assert isinstance(habits, Habits) and (habits.tasks, habits.memory, habits.scale) == (3, 30, 3.0)
    assert habits.stem == "small" and Folder(path=str(root), size=96).habits.stem == "large"
    assert Folder(path=str(root), mean=(0.5,) * 3, std=(0.2,) * 3).habits.mean == (0.5,) * 3


@pytest.mark.parametrize(
    ("classes", "tasks"), [(2, 2), (3, 3), (4, 2), (5, 5), (10, 5), (12, 6), (37, 1), (100, 20), (200, 20), (1000, 20), (1, 1)]
)
def test_tasks_divide_the_classes_with_two_in_each_where_that_goes(classes: int, tasks: int) -> None:
    from onepass.data import habits_for

    assert habits_for(classes, 1000, 32).tasks == tasks and classes % tasks == 0


def test_the_size_of_the_network_follows_the_first_image_or_the_size_given(tmp_path: Path) -> None:
    root = f"folder:{folder(tmp_path / 'x', size=70)}"
    assert recipe("er", source(root)).net == ResNet18(stem="large")
    small = with_source_fields(source(root), {"data.size": "32", "optim.lr": "1"})
    assert small == Folder(path=root.removeprefix("folder:"), size=32) and recipe("er", small).net == ResNet18(stem="small")


def test_a_config_of_it_goes_through_json_and_its_folder_needs_no_slash(tmp_path: Path) -> None:
    data = Folder(path=str(folder(tmp_path / "my images")), size=8, split=None, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    config = recipe("er+mkd", data)
    assert Config.from_json(config.to_json()) == config
    assert config.folder.parts[0] == "folder-my images-clear" and len(config.folder.parts) == 4
    assert replace(config, data=replace(data, path="else")).identity != config.identity


# ---- a whole run


def words(root: Path, runs: Path) -> list[str]:
    small = ["--net.width", "4", "--memory", "8", "--workers", "1"]
    return ["run", "er", "--data", f"folder:{root}", "--runs", str(runs), *small]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on a folder with a broken image in it, from the command line."""
    root = folder(tmp_path_factory.mktemp("data") / "beasts", train=6, size=8)
    write(root / "train" / "bee" / "0.png", b"broken")
    runs = tmp_path_factory.mktemp("runs")
    normalised = ["--data.mean", "0.5,0.5,0.5", "--data.std", "0.25,0.25,0.25"]
    assert main([*words(root, runs), "--data.corrupt", "skip", *normalised]) == 0
    return root, runs


def test_a_run_on_it_ends_and_is_found_again(finished: tuple[Path, Path], capsys: Any) -> None:
    (done,) = finished[1].rglob("done.json")
    assert done.parents[2].name == "er" and done.parents[3].name == "folder-beasts-clear"
    assert main(["runs", str(finished[1])]) == 0
    assert "folder-beasts" in capsys.readouterr().out


def test_the_command_line_says_what_it_leaves_out(finished: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    root = finished[0]
    assert main(words(root, tmp_path)) == 2
    assert "1 image of folder:" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert main([*words(root, tmp_path), "--data.corrupt", "skip", "--limit", "6"]) == 0
    said = capsys.readouterr().err
    assert f"left out of folder:{root}: `{root}/train/bee/0.png` (it is no image" in said


def test_its_network_classifies_images_where_the_data_is_no_more(finished: tuple[Path, Path], tmp_path: Path) -> None:
    root = finished[0]
    (done,) = finished[1].rglob("done.json")
    image = shutil.copy(root / "test" / "cat" / "0.png", tmp_path / "some.png")
    before = list(classify(done.parent, [Path(image)], top=3))
    moved = root.rename(root.with_name("elsewhere"))
    try:
        assert list(classify(done.parent, [Path(image)], top=3)) == before
    finally:
        moved.rename(root)
    assert all(name in before[0] for name in ("ape", "bee", "cat"))


def test_a_run_is_not_resumed_on_other_images(tmp_path: Path) -> None:
    root = folder(tmp_path / "x", size=8)
    config = replace(recipe("er", Folder(path=str(root)), memory=4), stream=Clear(3))
    config = replace(config, net=replace(config.net, width=4))  # type: ignore[type-var]
    seen = 0

    def stop(progress: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "runs", tell=stop)
    write(root / "train" / "ape" / "0.png", encoded(1234, (8, 8), kind="PNG"))
    os.utime(root / "train" / "ape" / "0.png", ns=(1, 1))
    assert "begun on other data" in refusal(lambda: run(config, tmp_path / "runs"))
