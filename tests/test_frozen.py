"""A teacher of high quality: the student of another run, which saw the first task several times."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from onepass.boundaries import NewClass
from onepass.config import Config
from onepass.data import source
from onepass.errors import Refused
from onepass.loop import prepare, run, weights_of_another
from onepass.nets import ResNet18
from onepass.recipes import recipe
from onepass.record import records
from onepass.seeds import Seeds
from onepass.stream import Blurry, Clear
from onepass.teachers import Frozen


def small(word: str, **changes: object) -> Config:
    config = replace(recipe(word, source("digits"), tasks=2), net=ResNet18(width=2), per_class=4, precision="fp32", memory=6)
    return replace(config, **changes)  # pyright: ignore[reportArgumentType]


def test_the_first_task_is_seen_several_times_shuffled_anew_and_the_others_once() -> None:
    data = source("digits").load()
    once, thrice = (Clear(2, epochs).over(data.train, data.names, Seeds(0)) for epochs in (1, 3))
    n = once.task_ends[0]
    assert thrice.task_ends == (3 * n, 3 * n + len(once) - n)
    passes = [thrice.order[i * n : (i + 1) * n] for i in range(3)]
    assert all(torch.equal(p.sort().values, once.order[:n].sort().values) for p in passes)
    assert torch.equal(passes[0], once.order[:n]) and not torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[1], passes[2])
    assert torch.equal(thrice.order[3 * n :], once.order[n:])
    assert once.spec == thrice.spec


def test_it_teaches_from_the_first_boundary_on_with_the_weights_of_the_other_run(tmp_path: Path) -> None:
    config = small("er+snapshot-high")
    record = run(config, tmp_path)
    (other,) = [r for r in records(tmp_path) if r.title == "er+snapshot-high-teacher"]
    assert other.config["config"]["stream"]["first_task_epochs"] == 5 and other.config["config"]["teacher"] is None
    assert (other.done or {})["clock"]["samples"] == 5 * 20  # 5 classes of 4, five times
    weights = load_file(other.path / "model.safetensors")

    stream, _, _ = prepare(config)
    learner = config.learner(stream.spec, sharp=True)
    teacher = learner.followers["teacher"]
    teacher.load(weights_of_another(config, tmp_path, None))  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    ready: list[bool] = []
    for batch in stream.batches(config.batch_size):
        learner.observe(batch)
        ready.append(teacher.ready)
    assert ready == [False] * 10 + [True] * 10
    assert all(torch.equal(v, weights[k]) for k, v in teacher.net.named_parameters())
    saved = load_file(record.path / "model.safetensors")
    assert all(torch.equal(saved[k], v) for k, v in learner.student.state_dict().items())


def test_until_the_first_boundary_it_is_er(tmp_path: Path) -> None:
    alone, taught = (run(small(word), tmp_path).log for word in ("er", "er+snapshot-high"))
    assert alone[:9] == taught[:9] and alone[9:] != taught[9:]


def test_the_other_run_is_made_once(tmp_path: Path) -> None:
    config = small("er+snapshot-high")
    weights_of_another(config, tmp_path, None)
    (other,) = records(tmp_path)
    before = (other.path / "model.safetensors").stat().st_mtime_ns
    weights_of_another(config, tmp_path, None)
    assert (other.path / "model.safetensors").stat().st_mtime_ns == before


def test_what_it_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="epochs=0"):
        Frozen(epochs=0)
    with pytest.raises(Refused, match="first_task_epochs=0"):
        Clear(2, first_task_epochs=0)
    with pytest.raises(Refused, match="Give it a rule"):
        run(small("er+snapshot-high", stream=Blurry(2, 30.0)), tmp_path)
    with pytest.raises(Refused, match="`Clear` stream"):
        run(small("er+snapshot-high", stream=Blurry(2, 30.0), boundaries=NewClass(5)), tmp_path)
    assert list(tmp_path.iterdir()) == []
