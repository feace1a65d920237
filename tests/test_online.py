"""A learner for applications: what it takes, what it keeps, what it says meanwhile, and what it refuses."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import onepass
from onepass import online
from onepass.augment import Partial
from onepass.boundaries import NewClass
from onepass.errors import Refused
from onepass.files import aside
from onepass.learner import Adam, answers
from onepass.nets import ResNet18
from onepass.online import OnlineLearner
from onepass.teachers import EMA

NAMES = ("cat", "dog", "eel", "fox")


def toy(n: int = 80, seed: int = 0, size: int = 8) -> tuple[Tensor, list[str]]:
    """Gray images, each bright in the quarter of its class; two classes first, then two others."""
    rng = torch.Generator().manual_seed(seed)
    y = (2 * torch.arange(n) // n) * 2 + torch.randint(2, (n,), generator=rng)
    x = torch.randint(0, 100, (n, 1, size, size), generator=rng, dtype=torch.uint8)
    for image, c in zip(x, y.tolist(), strict=True):
        image[:, size // 2 * (c // 2) :, size // 2 * (c % 2) :][:, : size // 2, : size // 2] += 120
    return x, [NAMES[c] for c in y.tolist()]


def made(**more: Any) -> OnlineLearner:
    how: dict[str, Any] = {
        "image": (1, 8, 8), "net": ResNet18(width=2), "memory": 30, "replay_size": 16, "precision": "fp32",
        "augment": Partial(padding=1, flip=0.0), "optim": Adam(lr=5e-3), "max_classes": 20,
    }  # fmt: skip
    return OnlineLearner(**(how | more))


def weights(learner: OnlineLearner) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in learner._learner.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---- learning


def test_it_learns_from_what_comes_and_keeps_what_it_learnt_first() -> None:
    assert onepass.OnlineLearner is OnlineLearner
    learner = made(method="er", net=ResNet18(width=4), batch_size=5)
    x, y = toy(160)
    for i in range(0, 160, 20):
        learner.learn(x[i : i + 20], y[i : i + 20])
    test, truth = toy(80, seed=1)
    assert learner.classes_ == list(dict.fromkeys(y)) and set(learner.classes_) == set(NAMES)
    assert learner.score(test, truth) > 0.8 and learner.score(test[:40], truth[:40]) > 0.6
    assert learner.images_seen == 160
    assert repr(learner) == "OnlineLearner(4 classes, 160 images seen, 30 kept)"


@pytest.mark.parametrize("method", ["er", "er+mkd", "er-ace", "derpp+mkd", "pcr", "dvc", "ocm"])
def test_the_very_first_images_are_learnt_from(method: str) -> None:
    learner = made(method=method)
    before = weights(learner)
    x, y = toy(6)
    learner.learn(x, y)
    after = weights(learner)
    assert not torch.equal(before["student.core.conv.weight"], after["student.core.conv.weight"])
    assert learner.images_seen == 6 and learner._learner.memory.count == 6 and learner._learner.clock.batches == 1
    assert torch.equal(learner._learner.memory.x[:6], x)
    learner.learn(x[:3], y[:3])
    assert learner.images_seen == 9 and set(learner.predict(x)) <= set(y)


def test_many_at_once_are_as_many_one_batch_after_the_other() -> None:
    x, y = toy(60)
    one, other = made(batch_size=10), made(batch_size=10)
    one.learn(x, y)
    for i in range(0, 60, 10):
        other.learn(x[i : i + 10], y[i : i + 10])
    assert same(weights(one), weights(other))


def test_no_image_is_left_over_to_be_learnt_alone() -> None:
    learner = made(batch_size=10)
    sizes: list[int] = []
    observe = learner._learner.observe
    learner._learner.observe = lambda batch: (sizes.append(len(batch)), observe(batch))[1]
    x, y = toy(21)
    learner.learn(x, y)
    assert sizes == [7, 7, 7]


def test_whatever_the_form_of_the_images_what_is_learnt_is_the_same() -> None:
    x, y = toy(12)
    learners = [made() for _ in range(4)]
    learners[0].learn(x, y)
    learners[1].learn(x.permute(0, 2, 3, 1).numpy(), np.array(y))
    learners[2].learn([Image.fromarray(a) for a in x[:, 0].numpy()], tuple(y))
    learners[3].learn(x[:, 0].double() / 255, iter(y))
    assert all(same(weights(learners[0]), weights(other)) for other in learners[1:])
    said = learners[0].predict_proba(x)
    assert all(np.array_equal(said, other.predict_proba(x)) for other in learners[1:])


def test_one_image_at_a_time_with_its_label_alone() -> None:
    learner = made()
    x, y = toy(6)
    for image, label in zip(x, y, strict=True):
        learner.learn(Image.fromarray(image[0].numpy()), label)
    assert learner.images_seen == 6
    assert learner.predict(x[0]).shape == (1,) and learner.predict_proba(x[0].numpy()).shape == (1, len(set(y)))


def test_labels_are_numbers_or_text_or_both() -> None:
    x, _ = toy(8)
    numbers = made()
    numbers.learn(x, torch.tensor([7, 7, -1, 7, -1, 7, 7, -1]))
    assert numbers.classes_ == [7, -1] and numbers.predict(x).dtype.kind == "i"
    both = made()
    both.learn(x, ["a", 1, "a", 1, "a", "a", np.int64(1), np.str_("a")])
    assert both.classes_ == ["a", 1] and set(both.predict(x).tolist()) <= {"a", 1}
    assert both.predict(x).dtype == object


def test_new_classes_as_they_come() -> None:
    learner = made()
    x, y = toy(80)
    learner.learn(x[:40], y[:40])
    p = learner.predict_proba(x)
    assert p.shape == (80, 2) and np.allclose(p.sum(1), 1) and set(learner.predict(x)) <= set(y[:40])
    learner.learn(x[40:], y[40:])
    p = learner.predict_proba(x)
    assert p.shape == (80, 4) and np.allclose(p.sum(1), 1)
    assert learner.predict(x).tolist() == [learner.classes_[i] for i in p.argmax(1)]


def test_declared_classes_have_their_columns_from_the_start() -> None:
    learner = made(classes=["fox", "eel", "dog", "cat"])
    x, y = toy(80)
    learner.learn(x[:40], y[:40])
    p = learner.predict_proba(x)
    assert learner.classes_ == ["fox", "eel", "dog", "cat"] and p.shape == (80, 4)
    assert np.all(p[:, :2] == 0) and np.allclose(p[:, 2:].sum(1), 1)
    assert learner.predict(x).tolist() == [learner.classes_[i] for i in p.argmax(1)]
    with pytest.raises(Refused, match="There is no class `foxes`; did you mean `fox`"):
        learner.learn(x[:2], ["cat", "foxes"])
    assert learner.images_seen == 40


def test_as_scikit_learn_names_it() -> None:
    x, y = toy(40)
    learner = made()
    assert learner.partial_fit(x, y, classes=["cat", "dog", "eel", "fox"]) is learner
    learner.partial_fit(x, y)
    assert learner.score(x, y) == np.mean(learner.predict(x) == np.array(y))
    assert learner.score(x, ["nobody"] * 40) == 0.0


def test_the_largest_images_begin_with_another_stem() -> None:
    assert OnlineLearner(image=(3, 96, 80), memory=2).setup.net == ResNet18(stem="large")
    assert OnlineLearner(memory=2).setup.net == ResNet18(stem="small")
    assert OnlineLearner(memory=2).setup.image == (3, 32, 32) and OnlineLearner(memory=2).setup.max_classes == 1000


# ---- nothing grows


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name()] += 1
        return func(*args, **(kwargs or {}))


def held() -> tuple[int, int]:
    """How many tensors are alive, and their bytes."""
    gc.collect()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) in (Tensor, torch.nn.Parameter):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return len(storages), sum(storages.values())


def test_neither_memory_nor_work_grows_with_the_stream() -> None:
    """`bench/online.py` does it ten thousand times, with the process's memory and a clock."""
    learner, found, work = made(memory=10, replay_size=8, batch_size=1), [], []
    x, y = toy(60)
    for i in range(60):
        if i in (29, 59):
            learner.predict(x[i])
            with Count() as count:
                learner.learn(x[i], y[i])
            found.append(held())
            work.append(count.calls)
        else:
            learner.learn(x[i], y[i])
    assert found[1][0] == found[0][0] and found[1][1] <= 1.05 * found[0][1]
    assert work[0]["aten::convolution"] == work[1]["aten::convolution"] >= 60
    assert abs(work[0].total() - work[1].total()) < 30, "an image more or less is written to memory"
    assert len(learner._learner.memory) == 10


# ---- one thread learns while others predict


def test_others_predict_meanwhile_from_weights_that_are_never_torn() -> None:
    learner, probe = made(), toy(5, seed=3)[0]
    x, y = toy(80)
    learner.learn(x[:10], y[:10])
    allowed = {answers(learner._now().net, probe, "fp32", torch.device("cpu")).numpy().tobytes()}
    publish = learner._publish

    def remembering() -> None:
        publish()
        with torch.no_grad():
            allowed.add(answers(learner._now().net, probe, "fp32", torch.device("cpu")).numpy().tobytes())

    learner._publish = remembering  # pyright: ignore[reportAttributeAccessIssue]
    done, said, errors = threading.Event(), [], []
    full = learner.setup.max_classes

    def predict() -> None:
        try:
            while not done.is_set():
                now = learner._now()
                logits, names = learner._logits(probe)
                assert logits.shape == (5, len(names)) and len(names) >= len(now.names)
                said.append(answers(now.net, probe, "fp32", torch.device("cpu")).numpy().tobytes())
                assert learner.predict_proba(probe).shape[0] == 5 and full == 20
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    threads = [threading.Thread(target=predict)]
    try:
        for thread in threads:
            thread.start()
        for i in range(10, 80, 5):
            learner.learn(x[i : i + 5], y[i : i + 5])
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not errors
    assert len(said) > 10 and len(set(said)) > 3 and set(said) <= allowed


def test_two_threads_may_learn_and_a_third_save(tmp_path: Path) -> None:
    learner, errors = made(), []
    x, y = toy(40)

    def learn(part: slice) -> None:
        try:
            for _ in range(3):
                learner.learn(x[part], y[part])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=learn, args=(part,)) for part in (slice(0, 40, 2), slice(1, 40, 2))]
    for thread in threads:
        thread.start()
    for _ in range(3):
        learner.save(tmp_path / "learner")
        assert OnlineLearner.load(tmp_path / "learner").images_seen <= 120
    for thread in threads:
        thread.join()
    assert not errors and learner.images_seen == 120


def test_two_threads_may_save_to_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, errors, inside, most = made(), list[BaseException](), list[Path](), list[int]()
    learner.learn(*toy(10))

    class slow(aside):
        def __enter__(self) -> Any:
            inside.append(self.path)
            most.append(len(inside))
            time.sleep(0.02)
            return super().__enter__()

        def __exit__(self, *how: Any) -> None:
            time.sleep(0.02)
            super().__exit__(*how)
            inside.pop()

    def save() -> None:
        try:
            for _ in range(3):
                learner.save(tmp_path / "learner")
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(online, "aside", slow)
    threads = [threading.Thread(target=save) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and max(most) == 1
    assert OnlineLearner.load(tmp_path / "learner").images_seen == 10


def test_a_report_while_others_learn_is_of_one_moment() -> None:
    """Its images are of classes that its network knows, or it says that none of them is right."""
    learner, errors, stop = made(max_classes=200, memory=50), list[BaseException](), threading.Event()
    x, _ = toy(80)
    learner.learn(x[:2], [0, 1])

    def report() -> None:
        try:
            while not stop.is_set():
                learner.report()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=report)
    thread.start()
    for i in range(2, 160, 2):
        learner.learn(x[i % 80 :][:2], [i, i + 1])
    stop.set()
    thread.join()
    assert not errors


# ---- files


@pytest.mark.parametrize("method", ["er+mkd", "derpp", "er-ace+sdp", "er+te"])
def test_a_loaded_learner_says_the_same_and_goes_on_bit_for_bit(method: str, tmp_path: Path) -> None:
    learner = made(method=method, precision="auto")
    x, y = toy(60)
    learner.learn(x[:30], y[:30])
    learner.save(tmp_path / "learner.safetensors")
    again = OnlineLearner.load(tmp_path / "learner.safetensors")
    assert again.setup == learner.setup and again.classes_ == learner.classes_ and again.images_seen == 30
    assert np.array_equal(again.predict_proba(x), learner.predict_proba(x))
    for one in learner, again:
        one.learn(x[30:], y[30:])
    assert same(weights(again), weights(learner)) and np.array_equal(again.predict_proba(x), learner.predict_proba(x))
    assert not list(tmp_path.glob("*.aside"))


def test_a_learner_that_has_learnt_nothing_can_be_saved(tmp_path: Path) -> None:
    made(classes=["a", 3]).save(tmp_path / "new")
    again = OnlineLearner.load(tmp_path / "new")
    assert again.classes_ == ["a", 3]
    with pytest.raises(Refused, match="Nothing has been learnt"):
        again.predict(toy(1)[0])
    again.learn(toy(2)[0], ["a", 3])
    assert again.images_seen == 2


KILLED = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from onepass import OnlineLearner, ResNet18
place = sys.argv[1]
learner = OnlineLearner(image=(3, 32, 32), memory=300, net=ResNet18(width=2), precision="fp32", replay_size=4)
x = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
learner.learn(x, ["old", "old"])
began = time.perf_counter()
learner.save(place)
took = time.perf_counter() - began
learner.learn(x, ["new", "new"])
random.seed(0)
cut = 0
for turn in range(12):
    child = os.fork()
    if not child:
        while True:
            learner.save(place)
    time.sleep(took * random.uniform(0.3, 2))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    cut += os.path.exists(place + ".aside")
    found = OnlineLearner.load(place)
    assert found.images_seen in (2, 4) and found.classes_ == ["old", "new"][: found.images_seen // 2], found
    assert found.predict_proba(x).shape == (2, len(found.classes_))
print(cut)
"""


def test_a_save_that_is_killed_at_any_moment_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "learner")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) >= 2, "some were killed with a file half written"


def test_something_else_is_not_loaded(tmp_path: Path) -> None:
    file = tmp_path / "something"
    learner = made()
    learner.learn(*toy(4))
    learner.save(file)
    whole = file.read_bytes()

    def refused(said: str) -> None:
        with pytest.raises(Refused, match=f"something` is not a learner that was saved.*{said}") as error:
            OnlineLearner.load(file)
        assert "\n" not in str(error.value)

    for damaged in (b"", b"hello", whole[: len(whole) // 2], whole[100:]):
        file.write_bytes(damaged)
        refused("")
    file.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}))
    refused("it says nothing of `learner`")
    learner.export(file)
    refused("it says nothing of `learner`")
    state, about = safetensors.torch.load(whole), json.loads(made_header(whole)["learner"])
    for key, wrong in (("setup", {}), ("names", ["a"] * 99), ("names", None)):
        file.write_bytes(safetensors.torch.save(state, {"learner": json.dumps(about | {key: wrong})}))
        refused("")
    other = json.dumps(about | {"setup": about["setup"] | {"net": {"is": "ResNet18", "width": 3}}})
    file.write_bytes(safetensors.torch.save(state, {"learner": other}))
    refused("")
    file.write_bytes(safetensors.torch.save({k: v for k, v in state.items() if k != "clock"}, {"learner": json.dumps(about)}))
    refused("clock")
    file.unlink()
    refused("")
    file.mkdir()
    refused("")


def made_header(file: bytes) -> dict[str, str]:
    length = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + length])["__metadata__"]


# ---- what it says of itself


def test_the_report_is_of_the_memory_and_of_what_happened_since_the_last() -> None:
    learner = made(net=ResNet18(width=4), optim=Adam(lr=1e-2))
    x, y = toy(80)
    learner.learn(x[:40], y[:40])
    first = learner.report()
    assert first.images == 40 and first.drift is None and first.forgetting == {}
    kept = learner._learner.memory.all()
    right = learner.predict(kept.x) == np.array([learner.classes_[c] for c in kept.y])
    for c, name in enumerate(learner.classes_):
        assert first.remembered[name] == int((kept.y == c).sum())
        assert first.accuracy[name] == pytest.approx(right[(kept.y == c).numpy()].mean())
    still = learner.report()
    assert still.drift == 0.0 and still.forgetting == {} and still.accuracy == first.accuracy
    before = weights(learner)
    learner.report()
    assert same(before, weights(learner)), "asking moves nothing"
    for _ in range(4):
        learner.learn(x[40:], y[40:])
    later = learner.report(fell=0.0)
    assert later.drift is not None and later.drift > 0.01
    assert set(later.forgetting) <= set(y[:40]) and all(now <= then for then, now in later.forgetting.values())
    assert "% of the memory is right" in str(later)


def test_what_is_unlearnt_is_reported_as_being_forgotten() -> None:
    """Images of the first classes are given others' names, over and over."""
    learner = made(method="er", net=ResNet18(width=4), memory=400, batch_size=5)
    x, y = toy(80)
    learner.learn(x[:40], y[:40])
    for _ in range(3):
        learner.learn(x[:40], y[:40])
    assert learner.report().mean > 0.9
    for _ in range(6):
        learner.learn(x[:40], ["eel"] * 40)
    report = learner.report()
    assert report.forgetting and set(report.forgetting) <= {"cat", "dog"}
    assert all(then - now >= 0.1 for then, now in report.forgetting.values())


# ---- bad input


def untouched(learner: OnlineLearner, *args: Any, said: str) -> None:
    before, names = weights(learner), learner.classes_
    with pytest.raises(Refused, match=said) as error:
        learner.learn(*args)
    assert "\n" not in str(error.value)
    assert same(before, weights(learner)) and learner.classes_ == names


def test_what_cannot_be_learnt_from_is_refused_and_nothing_happens() -> None:
    learner = made(max_classes=3)
    x, y = toy(4)
    learner.learn(x, ["a", "b", "a", "b"])
    untouched(learner, x, ["a"], said="4 images and 1 labels")
    nan = x.float() / 255
    nan[2, 0, 1, 1] = torch.nan
    untouched(learner, nan, y, said="Image 2 holds a NaN")
    untouched(learner, torch.zeros(4, 3, 8, 8), y, said=r"not of the declared `image=\(1, 8, 8\)`")
    untouched(learner, x, ["a", "c", "d", "e"], said="would be class 4, and the network was built for `max_classes=3`")
    untouched(learner, toy(60)[0], ["a"] * 58 + ["c", "d"], said="would be class 4")
    untouched(learner, x, [0.5, 1.0, 1.5, 2.0], said=r"`0.5` \(float\) is no label")
    untouched(learner, x, [True, False, True, True], said="is no label")
    untouched(learner, x, [[1], [2], [3], [4]], said="is no label")
    with pytest.raises(Refused, match="would be class 4"):
        learner.partial_fit(x, y, classes=["c", "d"])
    learner.learn(x[:2], ["c", "a"])
    assert learner.classes_ == ["a", "b", "c"]


@pytest.mark.parametrize("nothing", [[], np.zeros((0, 1, 8, 8)), torch.zeros(0, 8, 8, 1)])
def test_with_an_empty_batch_nothing_happens(nothing: Any) -> None:
    learner = made()
    learner.learn(nothing, [])
    assert learner.images_seen == 0 and not learner.classes_
    x, y = toy(4)
    learner.learn(x, y)
    before = weights(learner)
    learner.learn(nothing, [])
    assert same(before, weights(learner))
    assert learner.predict(nothing).shape == (0,) and learner.predict_proba(nothing).shape == (0, len(learner.classes_))
    with pytest.raises(Refused, match="no image to score"):
        learner.score(nothing, [])


@pytest.mark.parametrize("ask", ["predict", "predict_proba", "report", "export"])
def test_before_anything_is_learnt_nothing_can_be_asked(ask: str, tmp_path: Path) -> None:
    learner = made()
    given = {"report": (), "export": (tmp_path / "net",)}.get(ask, (toy(1)[0],))
    with pytest.raises(Refused, match="Nothing has been learnt yet"):
        getattr(learner, ask)(*given)
    assert not list(tmp_path.iterdir())


def test_a_single_image_that_batch_norm_cannot_normalise_is_refused_beforehand() -> None:
    learner = made(method="er-ace")
    x, y = toy(4)
    untouched(learner, x[:1], y[:1], said="`ERACE` shows its network.*give two or more at a time, or take `er")
    learner.learn(x, y)
    untouched(learner, x[:1], y[:1], said="give two or more")
    larger = made(method="er-ace", image=(1, 16, 16))
    for image, label in zip(*toy(3, size=16), strict=True):
        larger.learn(image, label)
    assert larger.images_seen == 3


@pytest.mark.parametrize("method", ["er", "er+mkd", "er+te"])
def test_when_it_diverges_that_is_refused_and_predictions_stay(method: str) -> None:
    learner = made(method=method)
    x, y = toy(20)
    learner.learn(x, y)
    before = learner.predict_proba(x)
    for group in learner._learner.optimizer.param_groups:
        group["lr"] = float("inf")
    with pytest.raises(Refused, match="it diverged. Predictions are those of before"):
        learner.learn(x[:10], y[:10])
    assert np.array_equal(learner.predict_proba(x), before)


def test_when_it_diverges_on_a_new_class_that_class_is_reported_as_not_known() -> None:
    learner = made(method="er")
    x, y = toy(20)
    learner.learn(x, y)
    for group in learner._learner.optimizer.param_groups:
        group["lr"] = float("inf")
    with pytest.raises(Refused, match="it diverged"):
        learner.learn(x[:10], ["gnu"] * 10)
    assert learner.report().accuracy["gnu"] == 0.0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"method": "err"}, "There is no method `err`; did you mean `er`"),
        ({"method": "gsa"}, "`gsa` cannot learn from a stream that does not say where tasks begin: it must know"),
        ({"method": "er+snapshot"}, "`er[+]snapshot` cannot learn from a stream"),
        ({"method": "er+snapshot-high", "boundaries": NewClass()}, "cannot learn from a stream"),
        ({"method": "ocm", "image": (3, 32, 16)}, "turns images by 90 degrees"),
        ({"image": (32, 32)}, r"`image=\(32, 32\)` is no shape of an image"),
        ({"image": (0, 8, 8)}, "is no shape"),
        ({"image": "8x8"}, "is no shape"),
        ({"max_classes": 0}, "`max_classes=0`"),
        ({"classes": []}, "`max_classes=0`"),
        ({"classes": ["a", "a"]}, "named twice"),
        ({"classes": [1.5]}, "is no label"),
        ({"memory": 0}, "`memory=0`"),
        ({"batch_size": 0}, "`batch_size=0`"),
        ({"replay_size": 0}, "`replay_size=0`"),
        ({"precision": "fp7"}, "`precision=fp7`"),
        ({"device": "nowhere"}, "`device=nowhere`"),
        ({"seed": -1}, "`seed=-1`"),
    ],
)
def test_what_cannot_be_made_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said) as error:
        made(**how)
    assert "\n" not in str(error.value)


def test_a_rule_of_tasks_lets_methods_in_that_need_one() -> None:
    learner = made(method="gsa", boundaries=NewClass(lag=2))
    learner.learn(*toy(40))
    assert learner.images_seen == 40 and learner._learner.task > 0


def test_a_device_that_is_not_there_is_named_on_loading(tmp_path: Path) -> None:
    made().save(tmp_path / "learner")
    with pytest.raises(Refused, match="`device=nowhere` cannot be computed on here"):
        OnlineLearner.load(tmp_path / "learner", device="nowhere")


def test_a_moving_average_is_debiased_unless_another_teacher_is_given() -> None:
    assert made().setup.teacher == EMA(0.01, start="debiased") and made(method="er").setup.teacher is None
    assert made(method="er+te").setup.teacher == EMA(0.01, start="debiased", buffers="average")
    assert made(teacher=EMA(0.05)).setup.teacher == EMA(0.05)
    with pytest.raises(Refused, match="`alpha=0.0005` has no weight"):
        made(teacher=EMA(0.0005))
