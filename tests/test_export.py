"""A learnt network in other programs: the same predictions, by whatever reads the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import onepass.export
from onepass.augment import Partial
from onepass.errors import Refused
from onepass.export import read
from onepass.learner import Adam
from onepass.nets import Custom, Linear, Net, ResNet18
from onepass.online import OnlineLearner
from onepass.seeds import Seeds
from onepass.stream import Spec


def made(**more: Any) -> OnlineLearner:
    how: dict[str, Any] = {
        "image": (3, 8, 8), "net": ResNet18(width=2), "memory": 30, "replay_size": 8, "precision": "fp32", "max_classes": 20,
        "augment": Partial(padding=1), "optim": Adam(lr=5e-3),
    }  # fmt: skip
    learner = OnlineLearner(**(how | more))
    learner.learn(images(20), ["ant", "bee", "cow", 4, "elk"] * 4)
    return learner


def images(n: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, (n, 3, 8, 8)).astype(np.uint8)


def close(logits: Any, learner: OnlineLearner, x: np.ndarray) -> None:
    p = torch.as_tensor(np.asarray(logits)).double().softmax(1).numpy()
    np.testing.assert_allclose(p, learner.predict_proba(x), atol=1e-5)
    assert [learner.classes_[i] for i in p.argmax(1)] == learner.predict(x).tolist()


@pytest.mark.parametrize("method", ["er+mkd", "er", "pcr+mkd", "dvc"])
def test_safetensors_read_again_gives_the_same_predictions(method: str, tmp_path: Path) -> None:
    learner = made(method=method)
    learner.export(tmp_path / "net.safetensors")
    net, labels = read(tmp_path / "net.safetensors")
    assert labels == learner.classes_ == ["ant", "bee", "cow", 4, "elk"] and not net.training
    close(net(torch.from_numpy(images(50)) / 255), learner, images(50))


def test_a_normalisation_is_part_of_what_is_exported(tmp_path: Path) -> None:
    rule = ResNet18(width=2)
    net = Net(rule.build(Spec(3, (3, 8, 8)), Linear(), Seeds()), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)).eval()
    onepass.export.export(net, [1, 2], (3, 8, 8), (rule, Linear(), 3), tmp_path / "net", "safetensors")
    again, labels = read(tmp_path / "net")
    x = torch.from_numpy(images(4)) / 255
    assert labels == [1, 2] and torch.equal(again(x), net(x)[:, :2])


def test_torch_export_gives_the_same_predictions_for_any_number_of_images(tmp_path: Path) -> None:
    learner = made()
    learner.export(tmp_path / "net.pt2", "torch.export")
    extra = {"onepass.json": ""}
    net = torch.export.load(tmp_path / "net.pt2", extra_files=extra).module()
    for n in (1, 2, 7):
        close(net(torch.from_numpy(images(n)) / 255).detach(), learner, images(n))
    assert json.loads(extra["onepass.json"]) == {"labels": learner.classes_, "image": [3, 8, 8]}


def test_onnx_gives_the_same_labels_in_onnxruntime(tmp_path: Path) -> None:
    import onnxruntime

    learner = made()
    learner.export(tmp_path / "net.onnx", "onnx")
    assert [f.name for f in tmp_path.iterdir()] == ["net.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["onepass"])
    assert about["labels"] == learner.classes_
    for n in (1, 2, 50):
        (logits,) = session.run(["logits"], {"images": images(n).astype(np.float32) / 255})
        close(logits, learner, images(n))


def test_exporting_leaves_the_learner_as_it_was(tmp_path: Path) -> None:
    learner = made(method="dvc")
    before = {k: v.clone() for k, v in learner._learner.state_dict().items()}
    now = learner._now()
    learner.export(tmp_path / "net")
    after = learner._learner.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before) and before.keys() == after.keys()
    assert learner._now() is now and list(now.net.heads) == ["pair"]


@pytest.mark.parametrize(("format", "missing"), [("onnx", "onnxscript"), ("onnx", "onnx")])
def test_a_format_whose_library_is_missing_says_what_to_install(
    format: Any, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onepass.export, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(Refused, match=rf"`onnx` needs {missing}, not installed here: `pip install 'onepass\[onnx\]'`"):
        made().export(tmp_path / "net", format)
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="There is no format `onx`; did you mean `onnx`"):
        made().export(tmp_path / "net", "onx")  # pyright: ignore[reportArgumentType]


def test_what_is_no_such_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "net"
    learner = made()
    learner.save(file)
    with pytest.raises(Refused, match="not a network that onepass exported as safetensors .it says nothing of `onepass`"):
        read(file)
    file.write_bytes(b"something else")
    with pytest.raises(Refused, match="not a network that onepass exported"):
        read(file)
    with pytest.raises(Refused, match="not a network that onepass exported"):
        read(tmp_path / "nowhere")


class Own(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.classifier = nn.Linear(3, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def test_a_network_that_a_function_made_is_exported_and_its_weights_read_by_hand(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    learner = made(net=Custom(lambda classes, image: Own(classes)))
    learner.export(tmp_path / "net")
    with pytest.raises(Refused, match="a function of your own made"):
        read(tmp_path / "net")
    net = Net(Own(20))
    net.load_state_dict(load_file(tmp_path / "net"))
    close(net(torch.from_numpy(images(9)) / 255).detach()[:, :5], learner, images(9))
    learner.export(tmp_path / "net.pt2", "torch.export")
    close(torch.export.load(tmp_path / "net.pt2").module()(torch.from_numpy(images(9)) / 255).detach(), learner, images(9))
    with pytest.raises(Refused, match="cannot be written down"):
        learner.save(tmp_path / "learner")
