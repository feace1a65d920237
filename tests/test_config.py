"""A run as a tree of values: through JSON and back, its identity, its fields from text, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import onepass.config
from onepass.augment import Full, Partial
from onepass.boundaries import NewClass, Oracle
from onepass.config import Config, to_json, with_field
from onepass.data import source
from onepass.data.digits import Digits
from onepass.distill import EQUATION_3, MKD, SINGLE_VIEW
from onepass.errors import Refused
from onepass.learner import SGD, Adam
from onepass.methods.er import ER
from onepass.nets import Custom, ResNet18, resolve_precision
from onepass.probes import Predictions
from onepass.recipes import METHODS, SUFFIXES, recipe
from onepass.stream import Blurry, Clear
from onepass.teachers import EMA

RECIPES = {
    f"{word} {data} {stream} {family}": recipe(word, source(data), stream=stream, family=family, seed=3)
    for method in METHODS
    for word in (method, *(f"{method}+{suffix}" for suffix in SUFFIXES))
    for data in ("digits", "cifar10", "cifar100")
    for stream in ("clear", "blurry")
    for family in ("default", "published")
}

# Every leaf away from its default, and every class that a field may hold somewhere.
FULL = Config(
    data=Digits(),
    stream=Blurry(2, 12.5),
    method=ER(),
    teacher=EMA(0.2, start="debiased", statistics="running", buffers="average"),
    distill=MKD(weight=3.5, temperature=2.0, pairs=EQUATION_3, augment=Full(scale=(0.5, 0.9), hue=0.0)),
    infer="teacher",
    boundaries=NewClass(7),
    net=ResNet18(4, stem="large", pool="window"),
    optim=Adam(1e-3, betas=(0.8, 0.99), weight_decay=0.1, decoupled=True),
    memory=9,
    batch_size=3,
    replay_size=5,
    updates=2,
    augment=Partial(padding=2),
    full=Full(flip=0.0),
    precision="fp64",
    per_class=8,
    limit=31,
    seed=4,
    name="mine",
    device="cpu",
    probes=(Predictions(), Predictions(every=5)),
)
OTHERS = {
    "every field of its own": FULL,
    "other classes": replace(FULL, stream=Clear(5), optim=SGD(), boundaries=Oracle(), net=Custom("tests/net.py:build"), probes=()),
}


def through_json(config: Config) -> Config:
    return Config.from_json(json.loads(json.dumps(config.to_json())))


def er(**changes: Any) -> Config:
    return replace(recipe("er", Digits()), **changes)


def er_mkd(**changes: Any) -> Config:
    return replace(recipe("er+mkd", Digits()), **changes)


def refusal(act: Callable[[], object]) -> str:
    """What is said, in one line."""
    with pytest.raises(Refused) as error:
        act()
    said = str(error.value)
    assert said and "\n" not in said
    return said


# ---- through JSON and back


@pytest.mark.parametrize("config", (RECIPES | OTHERS).values(), ids=list(RECIPES | OTHERS))
def test_a_config_goes_through_json_and_back(config: Config) -> None:
    assert through_json(config) == config


@pytest.mark.parametrize("config", [*RECIPES.values(), FULL], ids=[*RECIPES, "every field of its own"])
def test_its_identity_and_folder_do_so_too(config: Config) -> None:
    again = through_json(config)
    assert again.identity == config.identity and again.folder == config.folder


@pytest.mark.parametrize(
    ("whole", "real"),
    [
        (er(stream=Blurry(5, 30)), er(stream=Blurry(5, 30.0))),
        (er(optim=Adam(1)), er(optim=Adam(1.0))),
        (er_mkd(distill=MKD(weight=4)), er_mkd(distill=MKD(weight=4.0))),
    ],
    ids=["scale", "lr", "weight"],
)
def test_a_whole_number_for_a_real_one_is_the_same_run(whole: Config, real: Config) -> None:
    assert whole == real
    assert whole.identity == real.identity == through_json(whole).identity


def test_json_spells_out_every_field_and_class() -> None:
    tree = FULL.to_json()
    assert list(tree) == [f.name for f in fields(Config)]
    assert tree["teacher"] == {
        "is": "EMA", "alpha": 0.2, "start": "debiased", "statistics": "running", "buffers": "average", "correction": 0,
    }  # fmt: skip
    assert tree["stream"] == {"is": "Blurry", "tasks": 2, "scale": 12.5, "sequential": False}
    assert tree["distill"]["pairs"] == [["aug", "raw"], ["aug", "aug"]]
    assert tree["probes"] == [{"is": "Predictions", "every": None}, {"is": "Predictions", "every": 5}]
    assert (tree["data"], tree["method"]) == ({"is": "Digits"}, {"is": "ER"})


def test_without_defaults_it_says_what_differs_and_no_more() -> None:
    config = Config(data=Digits(), stream=Clear(5), method=ER(), teacher=EMA(0.1), net=ResNet18(width=3), name="x")
    assert to_json(config, defaults=False) == {
        "data": {"is": "Digits"},
        "stream": {"is": "Clear", "tasks": 5},
        "method": {"is": "ER"},
        "teacher": {"is": "EMA", "alpha": 0.1},
        "net": {"is": "ResNet18", "width": 3},
    }


def test_from_json_fields_left_out_are_at_their_defaults() -> None:
    config = Config.from_json({"data": "Digits", "stream": {"is": "Clear", "tasks": 5}, "method": {"is": "ER"}})
    assert config == Config(data=Digits(), stream=Clear(5), method=ER())


def test_a_network_that_has_no_name_cannot_be_recorded() -> None:
    config = er(net=Custom(lambda classes, image: torch.nn.Identity()))
    assert "file.py:build" in refusal(config.to_json)


# ---- identity


def test_it_is_eight_hex_digits_and_the_end_of_the_folder() -> None:
    config = er_mkd(seed=3)
    assert len(config.identity) == 8 and int(config.identity, 16) >= 0
    assert config.folder == Path("digits-clear", "er+mkd", "m20", f"s3-{config.identity}")
    assert recipe("er", Digits(), stream="blurry", memory=7).folder.parts[:3] == ("digits-blurry", "er", "m7")


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1}, {"memory": 21}, {"batch_size": 3}, {"replay_size": 21}, {"updates": 2}, {"per_class": 5}, {"limit": 5},
        {"optim": Adam(lr=1e-3)}, {"optim": SGD(lr=5e-4)}, {"net": ResNet18(width=21)}, {"stream": Clear(2)},
        {"stream": Blurry(5)}, {"augment": Partial(padding=2)}, {"full": None}, {"boundaries": Oracle()}, {"infer": "student"},
        {"teacher": EMA(0.05, start="debiased")}, {"distill": MKD()}, {"precision": "fp64"},
    ],
    ids=str,
)  # fmt: skip
def test_what_changes_results_changes_it(changes: dict[str, Any]) -> None:
    assert er_mkd(**changes).identity != er_mkd().identity


@pytest.mark.parametrize("changes", [{"name": "other"}, {"probes": ()}, {"probes": (Predictions(every=7),)}], ids=str)
def test_names_and_probes_do_not(changes: dict[str, Any]) -> None:
    assert er_mkd(**changes).identity == er_mkd().identity


def test_the_device_does_not_but_by_the_precision_it_works_in() -> None:
    assert er(device="cpu:0", precision="fp32").identity == er(device="cpu", precision="fp32").identity


def test_auto_precision_is_the_one_it_comes_to() -> None:
    here = resolve_precision("auto", torch.device("cpu"))
    other = {"fp32": "bf16", "bf16": "fp32"}[here]
    assert er(precision="auto").identity == er(precision=here).identity != er(precision=other).identity


def test_the_results_version_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = er().identity
    monkeypatch.setattr(onepass.config, "RESULTS_VERSION", onepass.config.RESULTS_VERSION + 1)
    assert er().identity != before


def test_a_field_at_its_default_has_no_part_in_it() -> None:
    spelled = Config(data=Digits(), stream=Clear(5), method=ER(), memory=1000, optim=Adam(5e-4, betas=(0.9, 0.999)), updates=1)
    assert spelled.identity == Config(data=Digits(), stream=Clear(5), method=ER()).identity


def test_a_new_field_with_a_default_leaves_old_runs_where_they_are() -> None:
    # tomorrow's Config and EMA, each with one more field
    later_ema = make_dataclass("EMA", [("warmth", float, 0.5)], bases=(EMA,), frozen=True)
    later = make_dataclass("Config", [("added", int, 3)], bases=(Config,), frozen=True, kw_only=True)
    now = er_mkd(teacher=EMA(0.03))
    values = {f.name: getattr(now, f.name) for f in fields(now)}
    assert later(**values).identity == now.identity
    assert later(**values | {"teacher": later_ema(0.03)}).identity == now.identity
    assert later(**values, added=4).identity != now.identity
    assert later(**values | {"teacher": later_ema(0.03, warmth=0.6)}).identity != now.identity


def test_the_source_of_a_network_of_ones_own_has_part_in_it(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    config = er(net=Custom(f"{file}:build"))
    file.write_text("width = 3\n")
    before = config.identity
    file.write_text("width = 4\n")
    assert config.identity != before
    file.write_text("width = 3\n")
    assert config.identity == before


def test_a_network_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    said = refusal(lambda: er(net=Custom(f"{tmp_path / 'none.py'}:build")).identity)
    assert f"{tmp_path / 'none.py'}" in said


# ---- fields from text


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("memory", "7", 7),
        ("limit", "7", 7),
        ("limit", "none", None),
        ("per_class", "2", 2),
        ("optim.lr", "1e-3", 1e-3),
        ("optim.lr", "2", 2.0),
        ("optim.decoupled", "true", True),
        ("optim.decoupled", "false", False),
        ("distill.cross_entropy", "yes", True),
        ("optim.betas", "0.5,0.75", (0.5, 0.75)),
        ("optim.betas", "[0.5, 0.75]", (0.5, 0.75)),
        ("precision", "fp64", "fp64"),
        ("teacher.start", "debiased", "debiased"),
        ("distill.weight", "2.5", 2.5),
        ("distill.weight", "none", None),
        ("distill.pairs", "EQUATION_3", EQUATION_3),
        ("distill.pairs", "SINGLE_VIEW", SINGLE_VIEW),
        ("distill.pairs", '[["raw", "raw"]]', (("raw", "raw"),)),
        ("name", "mine", "mine"),
        ("stream.tasks", "2", 2),
        ("optim", "SGD", SGD()),
        ("teacher", "EMA", EMA(alpha=0.05)),  # it is there already: nothing of it changes
        ("distill", "none", None),
        ("boundaries", "NewClass", NewClass()),
        ("augment", "Full", Full()),
        ("augment", "none", None),
        ("probes", "Predictions", (Predictions(),)),
        ("probes", '[{"is": "Predictions", "every": 5}]', (Predictions(every=5),)),
        ("seed", "4294967295", 2**32 - 1),
    ],
)
def test_a_field_is_set_from_text(path: str, text: str, value: Any) -> None:
    config = with_field(er_mkd(), path, text)
    got: Any = config
    for part in path.split("."):
        got = getattr(got, part)
    assert got == value and type(got) is type(value)
    kept = {f.name for f in fields(Config)} - {path.partition(".")[0]}
    assert all(getattr(config, name) == getattr(er_mkd(), name) for name in kept)


@pytest.mark.parametrize("path", ["memroy", "optim.lrr", "memory.rows", "method.lr"])
def test_a_field_that_is_not_there_cannot_be_set(path: str) -> None:
    with pytest.raises(Refused):
        with_field(er_mkd(), path, "1")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("memory", "many"), ("memory", "2.5"), ("memory", "none"), ("memory", ""), ("limit", "all"), ("optim.lr", "fast"),
        ("optim.lr", "none"), ("optim.decoupled", "perhaps"), ("optim.betas", "0.9"), ("optim.betas", "0.9,0.9,0.9"),
        ("optim.betas", "a,b"), ("optim.betas", "[0.9"), ("optim.betas", "EQUATION_3"), ("distill.pairs", "EQUATION_4"),
        ("distill.pairs", "[1]"), ("seed", "-1"), ("seed", "4294967296"), ("stream.tasks", "five"),
    ],
)  # fmt: skip
def test_text_of_another_type_is_refused_with_what_was_given(path: str, text: str) -> None:
    said = refusal(lambda: with_field(er_mkd(), path, text))
    assert path in said
    if text in ("many", "fast", "perhaps", "five", "all"):
        assert text in said


# ---- refusals


@pytest.mark.parametrize(
    ("tree", "wrong", "right"),
    [
        ({"optim": {"is": "Adm"}}, "Adm", "Adam"),
        ({"teacher": "EMMA"}, "EMMA", "EMA"),
        ({"stream": {"is": "Blury", "tasks": 5}}, "Blury", "Blurry"),
        ({"data": {"is": "Digit"}}, "Digit", "Digits"),
        ({"net": "ResNet"}, "ResNet", "ResNet18"),
        ({"memroy": 5}, "memroy", "memory"),
        ({"optim": {"is": "Adam", "learning": 5}}, "learning", "lr"),
        ({"optim": {"is": "Adam", "beta": [0.9, 0.9]}}, "beta", "betas"),
        ({"probes": [{"is": "Prediction"}]}, "Prediction", "Predictions"),
        ({"precision": "bf61"}, "bf61", "bf16"),
        ({"teacher": {"is": "EMA", "start": "coppy"}}, "coppy", "copy"),
    ],
    ids=str,
)
def test_an_unknown_name_is_refused_with_the_nearest_right_one(tree: dict[str, Any], wrong: str, right: str) -> None:
    said = refusal(lambda: Config.from_json(er_mkd().to_json() | tree))
    assert f"`{wrong}`" in said and re.search(rf"\b{right}\b", said)


@pytest.mark.parametrize(
    "tree",
    [
        {"memory": "many"}, {"memory": True}, {"memory": None}, {"memory": [5]}, {"memory": 2.5}, {"optim": 3}, {"optim": [1]},
        {"teacher": True}, {"optim": {"is": "Adam", "lr": "fast"}}, {"optim": {"is": "Adam", "lr": True}},
        {"optim": {"is": "Adam", "betas": 0.9}}, {"probes": {"is": "Predictions"}}, {"probes": [3]}, {"name": None},
        {"optim": {"is": "Adam", "decoupled": "perhaps"}}, {"optim": {"is": "Adam", "decoupled": None}}, {"stream": None},
    ],
    ids=str,
)  # fmt: skip
def test_json_of_another_type_is_refused(tree: dict[str, Any]) -> None:
    (name,) = tree
    assert name in refusal(lambda: Config.from_json(er_mkd().to_json() | tree))


@pytest.mark.parametrize("name", ["data", "stream", "method"])
def test_a_field_without_default_must_be_given(name: str) -> None:
    tree = er().to_json()
    del tree[name]
    assert f"`{name}`" in refusal(lambda: Config.from_json(tree))


def test_so_must_one_within() -> None:
    assert "`tasks`" in refusal(lambda: Config.from_json(er().to_json() | {"stream": {"is": "Clear"}}))


@pytest.mark.parametrize("alpha", [0.0, -0.1, 2.0, 1.0001, float("nan")])
def test_alpha_outside_0_to_1_is_refused(alpha: float) -> None:
    tree = er_mkd().to_json()
    tree["teacher"]["alpha"] = alpha
    said = refusal(lambda: Config.from_json(tree))
    assert f"alpha={alpha}" in said and ("(0, 1]" if alpha == alpha else "finite number") in said


def test_an_alpha_without_a_positive_lambda_is_refused_before_anything_runs() -> None:
    said = refusal(lambda: er_mkd(teacher=EMA(alpha=0.0005)))
    assert "0.0005" in said and "0.0006" in said
    weighed = er_mkd(teacher=EMA(alpha=0.0005), distill=MKD(weight=1.0, cross_entropy=False, draw="main"))
    assert weighed.teacher == EMA(alpha=0.0005)  # the law is not asked


@pytest.mark.parametrize("name", ["memory", "batch_size", "replay_size", "updates", "per_class", "limit"])
@pytest.mark.parametrize("value", [0, -3])
def test_nothing_to_learn_from_is_refused(name: str, value: int) -> None:
    assert f"{name}={value}" in refusal(lambda: er(**{name: value}))


def test_a_memory_smaller_than_its_batch_is_no_mistake() -> None:
    assert er(memory=3).replay_size > 3


def test_a_distiller_needs_a_teacher() -> None:
    said = refusal(lambda: er(distill=MKD()))
    assert "MKD" in said and "teacher" in said


@pytest.mark.parametrize("infer", ["teacher", "average"])
def test_inference_by_a_teacher_needs_one(infer: Any) -> None:
    said = refusal(lambda: er(infer=infer))
    assert infer in said and "student" in said


def test_an_unknown_word_for_inference_is_refused() -> None:
    assert "meen" in refusal(lambda: er(infer="meen"))


@pytest.mark.parametrize("device", ["cud", "gpu", "", "cpu:x", "xpu", "cuda:63"])
def test_a_device_that_is_not_here_is_refused(device: str) -> None:
    assert f"`device={device}`" in refusal(lambda: er(device=device))


@pytest.mark.parametrize("name", ["a/b", "../../elsewhere", "/elsewhere", "..", "."])
def test_a_name_that_leads_out_of_its_folder_is_refused(name: str) -> None:
    assert name in refusal(lambda: er(name=name).folder)
