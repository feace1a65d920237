"""Tiny ImageNet in its official tree: boxes, gray and CMYK images, labels by annotation, and what a broken tree is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trees import WNIDS, encoded, tiny, write

from onepass import images
from onepass.augment import Full, Partial
from onepass.config import Config
from onepass.data import Dataset, source
from onepass.data.tiny_imagenet import TinyImageNet
from onepass.errors import Refused
from onepass.nets import ResNet18
from onepass.recipes import recipe
from onepass.stream import Blurry, Clear


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def data(tree: Path) -> Dataset:
    return TinyImageNet().load(tree.parent)


def test_classes_are_numbered_in_the_order_of_their_wordnet_names(data: Dataset, tree: Path) -> None:
    plain = [(c, tree / "train" / wnid / "images" / f"{wnid}_{i}.JPEG") for c, wnid in enumerate(sorted(WNIDS)) for i in range(4)]
    assert data.train.y.tolist() == [c for c, _ in plain] and data.train.x.shape == (12, 3, 64, 64)
    assert all((x.numpy() == images.pixels(file)).all() for x, (_, file) in zip(data.train.x, plain, strict=True))
    assert torch.equal(data.train.x[0, 0], data.train.x[0, 1])  # the gray one; the CMYK one is not:
    assert not torch.equal(data.train.x[1, 0], data.train.x[1, 1])


def test_images_for_testing_are_the_validation_images_labelled_by_their_annotations(data: Dataset, tree: Path) -> None:
    lines = [line.split("\t") for line in (tree / "val" / "val_annotations.txt").read_text().splitlines()]
    assert data.test.y.tolist() == [sorted(WNIDS).index(line[1]) for line in lines] == [1, 2, 0, 1, 2, 0]
    assert all(
        (x.numpy() == images.pixels(tree / "val" / "images" / line[0])).all() for x, line in zip(data.test.x, lines, strict=True)
    )


def test_classes_have_the_first_of_their_words_told_apart_where_two_share_it(data: Dataset) -> None:
    assert data.names == ("goldfish", "crane (n01629819)", "crane (n01641577)")


def test_without_words_they_have_their_wordnet_names(tmp_path: Path) -> None:
    tree = tiny(tmp_path)
    write(tree / "words.txt", b"n01443537\t\nno tab\n")
    assert TinyImageNet().load(tmp_path).names == WNIDS


def test_it_is_found_where_it_lies(tree: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TinyImageNet().load(tree).fingerprint == data.fingerprint  # the tree itself
    monkeypatch.setenv("ONEPASS_DATA", str(tree.parent))
    assert source("tiny-imagenet").load().fingerprint == data.fingerprint


def test_nowhere_it_says_where_it_looked_and_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "env"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "flag").mkdir()
    with pytest.raises(Refused) as error:
        TinyImageNet().load(tmp_path / "flag")
    said = str(error.value)
    order = [said.index(f"`{place}`") for place in (tmp_path / "flag", tmp_path / "env", tmp_path / "home" / "onepass")]
    assert order == sorted(order) and "no `tiny-imagenet-200`" in said and "`onepass data get tiny-imagenet`" in said


DAMAGES: dict[str, tuple[Any, str]] = {
    "no list of classes": (lambda t: (t / "wnids.txt").unlink(), "wnids.txt` cannot be read"),
    "an empty list": (lambda t: write(t / "wnids.txt", b"\n"), "has no classes"),
    "no class folder": (lambda t: (t / "train" / WNIDS[1]).rename(t / "gone"), f"train/{WNIDS[1]}` cannot be read"),
    "an empty class": (
        lambda t: [f.unlink() for f in (t / "train" / WNIDS[1] / "images").iterdir()],
        f"train/{WNIDS[1]}` has no images: the tree is not whole",
    ),
    "no annotations": (lambda t: (t / "val" / "val_annotations.txt").unlink(), "val_annotations.txt` cannot be read"),
    "an unknown class": (lambda t: write(t / "val" / "val_annotations.txt", b"val_0.JPEG\tn1\n"), "which is not in `wnids.txt`"),
    "a missing image": (lambda t: (t / "val" / "images" / "val_2.JPEG").unlink(), "names `val_2.JPEG`, which is not in"),
    "a truncated image": (
        lambda t: write(t / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_2.JPEG", encoded(0)[:-30]),
        f"1 image of tiny-imagenet cannot be read: `.*{WNIDS[0]}_2.JPEG` .image file is truncated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_tree_that_is_not_whole_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    act, said = DAMAGES[damage]
    act(tiny(tmp_path))
    with pytest.raises(Refused, match=said):
        TinyImageNet().load(tmp_path)


def test_a_truncated_image_is_skipped_by_choice(tmp_path: Path) -> None:
    tree = tiny(tmp_path)
    write(tree / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_2.JPEG", encoded(0)[:-30])
    data = TinyImageNet(corrupt="skip").load(tmp_path)
    assert len(data.train) == 11 and len(data.skipped) == 1 and f"{WNIDS[0]}_2.JPEG" in data.skipped[0]


def test_new_annotations_make_a_new_cache(tmp_path: Path) -> None:
    tree = tiny(tmp_path)
    first = TinyImageNet().load(tmp_path)
    file = tree / "val" / "val_annotations.txt"
    write(file, file.read_bytes().replace(WNIDS[1].encode(), WNIDS[0].encode()))
    assert TinyImageNet().load(tmp_path).test.y.tolist() == [0, 2, 0, 0, 2, 0] != first.test.y.tolist()


# ---- recipes


@pytest.mark.parametrize("word", ["er", "er+mkd", "er-ace", "ocm+mkd", "pcr", "dvc+mkd"])
def test_the_papers_setting_has_20_tasks_and_pools_globally(word: str) -> None:
    config = recipe(word, TinyImageNet())
    assert config.stream == Clear(20) and config.memory == 10_000 and config.net == ResNet18(width=64, stem="small", pool="global")
    assert config.full == Full() and config.augment in (Full(), Partial())
    assert recipe(word, TinyImageNet(), stream="blurry").stream == Blurry(20, 500.0)
    assert Config.from_json(config.to_json()) == config


def test_published_has_100_tasks_and_the_authors_window() -> None:
    config = recipe("er+mkd", TinyImageNet(), family="published")
    assert config.stream == Clear(100) and config.net == ResNet18(width=64, stem="small", pool="window")
    assert config.full == config.augment == Full()  # not normalised at all
    assert recipe("er", TinyImageNet(), family="published", stream="blurry").stream == Blurry(100, 500.0)
    assert recipe("er", TinyImageNet(), family="published", tasks=20).stream == Clear(20)
    assert TinyImageNet().habits.mean == ()


def test_a_run_in_its_official_layout_ends(tree: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from onepass.loop import run

    config = replace(recipe("er+mkd", TinyImageNet(), memory=4), stream=Clear(3), net=ResNet18(width=4), precision="fp32")
    record = run(config, tmp_path, data_dir=tree.parent)
    assert record.path.parts[-4] == "tiny-imagenet-clear" and record.done is not None and record.done["clock"]["samples"] == 12
