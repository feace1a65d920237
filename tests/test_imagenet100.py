"""ImageNet-100 out of an ImageNet tree: which classes, at which size, normalised where, in which order."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from trees import encoded, imagenet, write

from onepass.augment import Full, Normalised, Partial
from onepass.config import Config, with_field
from onepass.data import Dataset, source
from onepass.data.imagenet100 import ImageNet100
from onepass.errors import Refused
from onepass.loop import run
from onepass.methods.er_ace import ERACE
from onepass.nets import ResNet18
from onepass.recipes import recipe
from onepass.seeds import Seeds
from onepass.stream import Blurry, Clear

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return imagenet(tmp_path_factory.mktemp("imagenet"))


@pytest.fixture(scope="module")
def data(tree: Path) -> Dataset:
    return ImageNet100(size=32).load(tree.parent)


def test_the_papers_classes_are_the_first_hundred_in_sorted_order(data: Dataset, tree: Path) -> None:
    folders = sorted(p.name for p in (tree / "train").iterdir())
    assert len(folders) == 103 and data.names == tuple(folders[:100])
    assert data.train.y.tolist() == data.test.y.tolist() == list(range(100))


def test_images_are_stretched_to_224_not_cropped_as_pillow_does_it(tmp_path: Path) -> None:
    tree = imagenet(tmp_path, classes=2, train=2)
    write(tmp_path / "two.txt", "".join(f"{p.name}\n" for p in (tree / "train").iterdir()).encode())
    data = ImageNet100(classes=str(tmp_path / "two.txt")).load(tmp_path)
    assert data.train.x.shape == (4, 3, 224, 224)
    file = next((tree / "train" / data.names[0]).glob("*_1.JPEG"))
    plain = Image.open(io.BytesIO(file.read_bytes())).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
    assert (data.train.x[1].numpy() == np.asarray(plain).transpose(2, 0, 1)).all()


def test_classes_of_ones_own_are_those_of_a_file_in_its_order(tree: Path, tmp_path: Path) -> None:
    folders = sorted(p.name for p in (tree / "train").iterdir())
    file = write(
        tmp_path / "mine.txt", f"{folders[102]} goldfish, some words\n\n{folders[3]}\n{folders[102]}\n{folders[50]}".encode()
    )
    data = ImageNet100(classes=str(file), size=16).load(tree.parent)
    assert data.names == (folders[102], folders[3], folders[50]) and data.train.y.tolist() == [0, 1, 2]


def test_it_is_found_below_a_folder_or_as_the_folder_itself(tree: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ImageNet100(size=32).load(tree).fingerprint == data.fingerprint
    monkeypatch.setenv("ONEPASS_DATA", str(tree.parent))
    assert ImageNet100(size=32).load().fingerprint == data.fingerprint
    renamed = tree.parent / "ILSVRC2012"
    renamed.symlink_to(tree)
    assert ImageNet100(size=32).load(renamed).fingerprint == data.fingerprint


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(data: ImageNet100, folder: Path) -> str:
        with pytest.raises(Refused) as error:
            data.load(folder)
        return str(error.value)

    monkeypatch.delenv("ONEPASS_DATA", raising=False)
    assert "no `imagenet` in" in (said := refusal(ImageNet100(), tmp_path)) and "`onepass data get imagenet100`" in said
    tree = imagenet(tmp_path, classes=5)
    assert "has 5 classes, and the paper takes the first hundred" in refusal(ImageNet100(), tmp_path)
    assert "none.txt` cannot be read" in refusal(ImageNet100(classes=str(tmp_path / "none.txt")), tmp_path)
    file = write(tmp_path / "classes.txt", b"n1\n")
    assert "names `n1`, which is no folder" in refusal(ImageNet100(classes=str(file)), tmp_path)
    assert "names no class" in refusal(ImageNet100(classes=str(write(tmp_path / "empty.txt", b"\n"))), tmp_path)
    name = sorted(p.name for p in (tree / "train").iterdir())[2]
    mine = ImageNet100(classes=str(write(tmp_path / "mine.txt", name.encode())), size=8)
    (tree / "val" / name / "ILSVRC2012_val_00000002.JPEG").unlink()
    assert f"val/{name}` has no images" in refusal(mine, tmp_path)
    (tree / "val" / name).rmdir()
    assert f"val/{name}` cannot be read" in refusal(mine, tmp_path)
    with pytest.raises(Refused, match="size=0"):
        ImageNet100(size=0)


def test_a_truncated_image_is_named_or_skipped(tree: Path, tmp_path: Path) -> None:
    small = imagenet(tmp_path, classes=2, train=3)
    names = sorted(p.name for p in (small / "train").iterdir())
    mine = ImageNet100(classes=str(write(tmp_path / "mine.txt", "\n".join(names).encode())), size=8)
    write(small / "train" / names[0] / f"{names[0]}_1.JPEG", encoded(1)[:-50])
    with pytest.raises(Refused, match=f"1 image of imagenet100 cannot be read: `.*{names[0]}_1.JPEG`"):
        mine.load(tmp_path)
    data = replace(mine, corrupt="skip").load(tmp_path)
    assert len(data.train) == 5 and len(data.skipped) == 1


# ---- recipes


@pytest.mark.parametrize("word", ["er", "er+mkd", "gsa", "ocm+mkd", "pcr+mkd"])
def test_the_papers_setting(word: str) -> None:
    config = recipe(word, ImageNet100())
    assert config.stream == Clear(20) and config.memory == 10_000 and config.net == ResNet18(width=64, stem="large", pool="global")
    assert config.full == Full() and config.augment in (Full(), Partial())
    assert recipe(word, ImageNet100(), stream="blurry").stream == Blurry(20, 500.0, sequential=False) or word == "gsa"
    assert Config.from_json(config.to_json()) == config


def test_gsa_has_the_authors_smaller_rate_here_but_not_with_sdp() -> None:
    assert recipe("gsa", ImageNet100()).optim.lr == recipe("gsa+mkd", ImageNet100()).optim.lr == 1e-4  # type: ignore[attr-defined]
    assert recipe("gsa+sdp", ImageNet100()).optim.lr == 5e-4 == recipe("gsa", source("cifar10")).optim.lr  # type: ignore[attr-defined]


def test_the_network_normalises_first_and_so_after_the_augmentation() -> None:
    config = recipe("er", ImageNet100(size=32))
    data = ImageNet100(size=32).habits
    assert (data.mean, data.std) == (MEAN, STD) and data.stem == "small"
    rows = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    from onepass.stream import Batch

    stream = Clear(2).over(Batch(rows, torch.arange(4)), tuple("abcd"), Seeds(0))
    learner = replace(config, net=ResNet18(width=4)).learner(stream.spec, sharp=True)
    net = learner.student
    assert net.mean.flatten().tolist() == pytest.approx(MEAN) and net.std.flatten().tolist() == pytest.approx(STD)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    x = rows.float() / 255
    with torch.no_grad():
        assert torch.allclose(net.eval().features(x), net.core.features((x - mean) / std))


def test_published_normalises_before_it_augments_pools_the_corner_and_is_not_blurry() -> None:
    config = recipe("er+mkd", ImageNet100(), family="published")
    assert config.net == ResNet18(width=64, stem="large", pool="window") and config.stream == Clear(20)
    assert config.full == config.augment == Normalised(of=Full(), mean=MEAN, std=STD)
    assert recipe("er", ImageNet100(), family="published", stream="blurry").stream == Blurry(20, 500.0, sequential=True)
    partial = recipe("er-ace+mkd", ImageNet100(), family="published")
    assert isinstance(partial.method, ERACE)
    assert partial.augment == Normalised(of=Partial(shared=True), mean=MEAN, std=STD) and partial.full == config.full
    assert Config.from_json(config.to_json()) == config and config.identity != recipe("er+mkd", ImageNet100()).identity


def test_each_of_its_quirks_is_a_field_of_its_own() -> None:
    config = recipe("er", ImageNet100(), stream="blurry")
    assert with_field(config, "stream.sequential", "true").stream == Blurry(20, 500.0, sequential=True)
    assert with_field(config, "net.pool", "window").net == ResNet18(stem="large", pool="window")
    tree = {"is": "Normalised", "of": "Full", "mean": list(MEAN), "std": list(STD)}
    assert with_field(config, "augment", tree).augment == Normalised(of=Full(), mean=MEAN, std=STD)


@pytest.mark.parametrize("family", ["default", "published"])
@pytest.mark.parametrize("stream", ["clear", "blurry"])
def test_a_run_ends(family: str, stream: str, tree: Path, tmp_path: Path) -> None:
    names = sorted(p.name for p in (tree / "train").iterdir())
    mine = ImageNet100(classes=str(write(tmp_path / "mine.txt", "\n".join(names[:4]).encode())), size=128)
    config = recipe("er+mkd", mine, memory=4, tasks=2, stream=stream, family=family)  # type: ignore[arg-type]
    config = replace(config, net=replace(config.net, width=4), batch_size=2, replay_size=2, precision="fp32")  # type: ignore[type-var]
    record = run(config, tmp_path / "runs", data_dir=tree.parent)
    assert record.done is not None and record.done["clock"]["samples"] == 4
    assert record.path.parts[-4] == f"imagenet100-{stream}"
