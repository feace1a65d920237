"""The networks: counted from first principles, rewritten plainly, seeded part by part, and those a user brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.errors import Refused
from onepass.nets import (
    PRECISIONS,
    Across,
    Block,
    Cosine,
    Custom,
    Linear,
    Net,
    ResNet18,
    UnitLinear,
    build_net,
    features_of,
    load_object,
    low_precision,
    predicting,
    resolve_precision,
)
from onepass.seeds import Seeds
from onepass.stream import Spec

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads on a busy machine are far slower than one on networks as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def built(network: Any = None, image: tuple[int, int, int] = (3, 16, 16), classes: int = 10, seed: int = 0, **more: Any) -> Net:
    parts: dict[str, Any] = {"classifier": Linear(), "heads": {}, **more}
    return build_net(network or ResNet18(width=2), Spec(classes, image), seeds=Seeds(seed), **parts)


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


# ---- ResNet-18


def counted(width: int, classes: int, channels: int, kernel: int, cells: int = 1) -> int:
    """Weights of ResNet-18: convolutions without bias, two numbers a channel of batch-norm, a classifier with bias."""

    def conv_and_norm(inside: int, out: int, kernel: int) -> int:
        return inside * out * kernel**2 + 2 * out

    total, inside = conv_and_norm(channels, width, kernel), width
    for stage in range(4):
        out = width * 2**stage
        for _ in range(2):
            total += conv_and_norm(inside, out, 3) + conv_and_norm(out, out, 3)
            total += conv_and_norm(inside, out, 1) if inside != out else 0
            inside = out
    return total + (inside * cells + 1) * classes


def size(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_the_papers_network_has_eleven_million_weights() -> None:
    count = size(built(ResNet18(), (3, 32, 32)))
    assert count == counted(64, 10, 3, 3) == 11_173_962


@pytest.mark.parametrize(
    ("network", "image", "classes", "hand"),
    [
        (ResNet18(width=20), (3, 32, 32), 100, counted(20, 100, 3, 3)),
        (ResNet18(width=3), (1, 8, 8), 10, counted(3, 10, 1, 3)),
        (ResNet18(width=4, pool="window"), (3, 64, 64), 7, counted(4, 7, 3, 3, cells=4)),
        (ResNet18(width=4, stem="large"), (3, 224, 224), 5, counted(4, 5, 3, 7)),
    ],
)
def test_any_network_has_as_many_weights_as_it_is_made_of(
    network: ResNet18, image: tuple[int, int, int], classes: int, hand: int
) -> None:
    assert size(built(network, image, classes)) == hand


@pytest.mark.parametrize(
    ("network", "image", "features"),
    [
        (ResNet18(width=2), (1, 8, 8), 16),
        (ResNet18(width=2), (3, 32, 32), 16),
        (ResNet18(width=2, pool="window"), (3, 32, 32), 16),
        (ResNet18(width=2), (3, 64, 64), 16),
        (ResNet18(width=2, pool="window"), (3, 64, 64), 64),  # 2,048 at width 64
        (ResNet18(width=2, stem="large"), (3, 224, 224), 16),
        (ResNet18(width=2, stem="large", pool="window"), (3, 224, 224), 16),
        (ResNet18(width=2), (3, 30, 45), 16),
    ],
)
@pytest.mark.parametrize("classifier", [Linear(), Cosine()])
def test_features_and_logits_have_their_shapes(
    network: ResNet18, image: tuple[int, int, int], features: int, classifier: Any
) -> None:
    net = built(network, image, 7, classifier=classifier)
    x = images(2, *image)
    assert net.features(x).shape == (2, features) and net(x).shape == (2, 7)
    assert features_of(net.core, image) == features


def final_map(net: Net, x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    handle = net.core.blocks.register_forward_hook(lambda _, __, out: seen.append(out))
    net.features(x)
    handle.remove()
    return seen[0].detach()


@pytest.mark.parametrize(("stem", "side"), [("small", 32), ("small", 64), ("large", 224)])
def test_pooling_is_global_or_by_windows_of_four_from_the_top_left(stem: Any, side: int) -> None:
    x = images(2, 3, side, side)
    over_all, windows = (built(ResNet18(2, stem, pool), (3, side, side)).eval() for pool in ("global", "window"))
    h = final_map(over_all, x)
    assert h.shape[2] == {32: 4, 64: 8, 224: 7}[side]
    torch.testing.assert_close(over_all.features(x), h.mean((2, 3)))
    corners = range(0, h.shape[2] - 3, 4)
    hand = torch.stack([h[:, :, i : i + 4, j : j + 4].mean((2, 3)) for i in corners for j in corners], 2).flatten(1)
    torch.testing.assert_close(windows.features(x), hand)


def plain_block(block: Block, x: Tensor) -> Tensor:
    def norm(bn: nn.BatchNorm2d, h: Tensor) -> Tensor:
        mean, var = h.mean((0, 2, 3), keepdim=True), h.var((0, 2, 3), correction=0, keepdim=True)
        return (h - mean) / (var + 1e-5).sqrt() * bn.weight[:, None, None] + bn.bias[:, None, None]

    stride = block.conv1.stride
    h = norm(block.norm1, F.conv2d(x, block.conv1.weight, stride=stride, padding=1)).clamp(min=0)
    h = norm(block.norm2, F.conv2d(h, block.conv2.weight, padding=1))
    short = norm(block.short[1], F.conv2d(x, block.short[0].weight, stride=stride)) if len(block.short) else x
    return (h + short).clamp(min=0)


def test_the_network_in_training_equals_its_plain_rewriting() -> None:
    """Stem, four stages of two blocks, the first of each later stage with stride 2, mean, classifier."""
    net = built(image=(3, 16, 16)).double()
    x = images(4, 3, 16, 16, dtype=torch.float64)
    h = F.conv2d(x, net.core.conv.weight, padding=1)
    h = ((h - h.mean((0, 2, 3), keepdim=True)) / (h.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()).clamp(min=0)
    for i, block in enumerate(net.core.blocks):
        before = h.shape[2]
        h = plain_block(block, h)
        assert before // h.shape[2] == (2 if i in (2, 4, 6) else 1)
    hand = h.mean((2, 3)) @ net.classifier.weight.T + net.classifier.bias
    torch.testing.assert_close(net(x), hand, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("inside", "out", "stride"), [(2, 2, 1), (1, 2, 2)])
def test_the_gradient_of_a_block_is_right_though_it_works_in_place(inside: int, out: int, stride: int) -> None:
    with Seeds(1).scope("test"):
        block = Block(inside, out, stride).double()
    assert torch.autograd.gradcheck(block, images(2, inside, 4, 4, dtype=torch.float64).requires_grad_())


def test_the_large_stem_convolves_and_pools_with_stride_two() -> None:
    net = built(ResNet18(width=2, stem="large"), (3, 64, 64)).eval()
    assert net.core.conv.kernel_size == (7, 7) and net.core.conv.stride == (2, 2)
    assert final_map(net, images(2, 3, 64, 64)).shape == (2, 16, 2, 2)


def test_a_forward_leaves_its_images_alone() -> None:
    net, x = built(), images(2, 3, 16, 16)
    kept = x.clone()
    net(x).sum().backward()
    assert torch.equal(x, kept)


@pytest.mark.parametrize("width", [0, -4])
def test_a_network_without_channels_is_refused(width: int) -> None:
    with pytest.raises(Refused, match=f"width={width}"):
        ResNet18(width=width)


@pytest.mark.parametrize("decision", [{"stem": "Large"}, {"pool": "max"}])
def test_an_unknown_stem_or_pooling_is_refused(decision: Any) -> None:
    with pytest.raises(Refused, match="=".join(*decision.items())):
        ResNet18(**decision)


def test_windows_on_images_too_small_for_one_are_refused() -> None:
    """The final map of an 8x8 image has one cell, a window sixteen."""
    with pytest.raises(Refused, match="window"):
        built(ResNet18(width=2, pool="window"), (1, 8, 8))


# ---- first weights


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items() if not k.startswith("classifier")}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Projection:
    """A head's description."""

    def build(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 5), nn.ReLU(), nn.Linear(5, 3))


def test_the_backbone_begins_alike_whatever_stands_on_it() -> None:
    plain = weights(built().core)
    assert same(plain, weights(built(classifier=Cosine()).core))
    assert same(plain, weights(built(heads={"proj": Projection()}).core))
    assert same(plain, weights(built(classes=100).core))
    assert same(plain, weights(built(mean=(0.5,) * 3, std=(0.2,) * 3).core))
    assert not same(plain, weights(built(seed=1).core))


def test_the_classifier_begins_alike_whatever_heads_there_are() -> None:
    one, other = built().classifier, built(heads={"proj": Projection(), "pair": Linear()}).classifier
    assert same(dict(one.state_dict()), dict(other.state_dict()))
    assert not same(dict(one.state_dict()), dict(built(seed=1).classifier.state_dict()))


def test_a_head_begins_alike_whatever_other_heads_there_are() -> None:
    one = built(heads={"proj": Projection()}).heads["proj"]
    other = built(heads={"pair": Linear(), "proj": Projection()}).heads["proj"]
    twin = built(heads={"second": Projection()}).heads["second"]
    assert same(dict(one.state_dict()), dict(other.state_dict()))
    assert not same(dict(one.state_dict()), dict(twin.state_dict()))


def test_heads_are_built_for_the_features_and_are_no_part_of_the_logits() -> None:
    net, alone = built(heads={"proj": Projection()}).eval(), built().eval()
    x = images(2, 3, 16, 16)
    assert net.heads["proj"](net.features(x)).shape == (2, 3)
    assert torch.equal(net(x), alone(x))


def linear_core(classes: int, image: tuple[int, int, int]) -> nn.Module:
    return Flat(classes, image)


class Flat(nn.Module):
    """The least a user may bring: pixels as features, and a classifier."""

    def __init__(self, classes: int, image: tuple[int, int, int], classifier: nn.Module | None = None):
        super().__init__()
        width = image[0] * image[1] * image[2]
        self.norm = nn.BatchNorm1d(width)
        self.classifier = classifier or nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(x.flatten(1))


def cosine_core(classes: int, image: tuple[int, int, int]) -> nn.Module:
    return Flat(classes, image, Cosine().build(image[0] * image[1] * image[2], classes))


@pytest.mark.parametrize(
    ("network", "classifier"),
    [
        (ResNet18(width=2), Linear()),
        (ResNet18(2), Cosine()),
        (Custom(linear_core), Linear()),
        (Custom(cosine_core), Cosine()),
    ],
)
def test_building_a_network_moves_no_global_generator_and_no_statistics(network: Any, classifier: Any) -> None:
    state = torch.get_rng_state()
    net = built(network, (3, 4, 4), classifier=classifier, heads={"proj": Projection()})
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in net.modules())
    assert all(not b.any() for k, b in net.named_buffers() if "mean" in k or "tracked" in k)


def test_asking_for_the_width_puts_the_mode_back() -> None:
    core = built().core
    assert features_of(core.eval(), (3, 16, 16)) == 16 and not core.training and not core.norm.training
    assert features_of(core.train(), (3, 16, 16)) == 16 and core.training and core.norm.training


# ---- classifiers


def test_the_linear_classifier_has_a_bias_and_all_classes() -> None:
    classifier = Linear().build(16, 10)
    assert classifier.weight.shape == (10, 16) and classifier.bias.shape == (10,)


def test_the_cosine_classifier_equals_its_formula() -> None:
    classifier = Cosine(temperature=0.09).build(6, 4).double()
    h, w = images(5, 6, dtype=torch.float64) - 0.5, classifier.weight.detach()
    hand = [[float(a @ b / (a.norm() * b.norm())) / 0.09 for b in w] for a in h]
    torch.testing.assert_close(classifier(h), torch.tensor(hand, dtype=torch.float64), rtol=1e-4, atol=1e-4)


def test_cosine_logits_do_not_feel_the_length_of_features_or_proxies() -> None:
    classifier, h = Cosine(0.09).build(6, 4).double(), images(5, 6, dtype=torch.float64) - 0.5
    logits = classifier(h).detach()
    with torch.no_grad():
        classifier.weight.mul_(torch.tensor([[3.0], [10.0], [50.0], [2.0]]))
    torch.testing.assert_close(classifier(7 * h), logits, rtol=1e-4, atol=1e-4)
    assert logits.abs().max() <= 1 / 0.09


def test_a_feature_of_zeros_has_finite_cosine_logits_and_gradients() -> None:
    classifier, h = Cosine().build(6, 4), torch.zeros(1, 6, requires_grad=True)
    logits = classifier(h)
    logits.sum().backward()
    assert not logits.any() and h.grad is not None and h.grad.isfinite().all()


def test_the_cosine_classifier_has_no_bias_and_a_differentiable_weight() -> None:
    classifier = Cosine().build(6, 4).double()
    assert [k for k, _ in classifier.named_parameters()] == ["weight"]
    assert torch.autograd.gradcheck(classifier, (images(3, 6, dtype=torch.float64) - 0.5).requires_grad_())


def test_the_unit_classifier_scales_linear_logits_to_length_one() -> None:
    classifier, h = UnitLinear().build(6, 4).double(), images(5, 6, dtype=torch.float64) - 0.5
    z = h @ classifier.weight.T + classifier.bias
    torch.testing.assert_close(classifier(h), z / z.square().sum(1, keepdim=True).sqrt())
    assert set(classifier.state_dict()) == {"weight", "bias"}


def test_all_classifiers_begin_from_their_own_seed() -> None:
    linear, cosine, unit = (built(classifier=c).classifier.weight for c in (Linear(), Cosine(), UnitLinear()))
    assert torch.equal(linear, cosine) and torch.equal(linear, unit)


# ---- normalisation


def test_normalisation_comes_first() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    net, bare = built(mean=mean, std=std).eval(), built().eval()
    x = images(2, 3, 16, 16)
    normal = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    torch.testing.assert_close(net.features(x), bare.features(normal))
    torch.testing.assert_close(net(x), bare(normal))
    assert not torch.allclose(net(x), bare(x))


def test_normalisation_is_saved_and_not_trained() -> None:
    net = built(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    assert {"mean", "std"} <= set(net.state_dict()) and not {"mean", "std"} & {k for k, _ in net.named_parameters()}
    assert net.mean.shape == net.std.shape == (3, 1, 1)
    assert not {"mean", "std"} & set(built().state_dict())


# ---- networks of one's own

FILE = """
import torch


class Mine(torch.nn.Module):
    def __init__(self, classes, image):
        super().__init__()
        self.body = torch.nn.Conv2d(image[0], 5, 3)
        self.classifier = torch.nn.Linear(5, classes)

    def features(self, x):
        return self.body(x).mean((2, 3))


def build(classes, image):
    return Mine(classes, image)


wrong = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_net.py"
    path.write_text(FILE)
    return path


def test_a_network_can_be_a_function() -> None:
    net = built(Custom(linear_core), (3, 4, 4), 7, heads={"proj": Projection()})
    x = images(5, 3, 4, 4)
    assert isinstance(net.core, Flat) and net.features(x).shape == (5, 48) and net(x).shape == (5, 7)
    assert net.heads["proj"](net.features(x)).shape == (5, 3)


@pytest.mark.parametrize("name", ["build", "Mine"])
def test_a_network_can_be_a_name_in_a_file(file: Path, name: str) -> None:
    net = built(Custom(f"{file}:{name}"), (3, 8, 8), 4)
    assert type(net.core).__name__ == "Mine" and net(images(2, 3, 8, 8)).shape == (2, 4)


def test_a_file_can_be_named_relative_to_where_one_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert type(built(Custom("my_net.py:build"), (3, 8, 8)).core).__name__ == "Mine"


def test_a_network_of_ones_own_is_seeded(file: Path) -> None:
    one, again, other = (built(Custom(f"{file}:build"), (3, 8, 8), seed=s) for s in (0, 0, 1))
    assert same(dict(one.state_dict()), dict(again.state_dict()))
    assert not same(dict(one.state_dict()), dict(other.state_dict()))


def test_a_file_may_hold_dataclasses_with_postponed_annotations(file: Path) -> None:
    """Python looks such a class's module up by name."""
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    rule = "\n\n@dataclass(frozen=True)\nclass Rule:\n    width: int = 3\n"
    file.write_text(head + FILE + rule)
    assert load_object(f"{file}:Rule")().width == 3


def test_two_files_of_one_name_are_two_files(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "my_net.py"
    other.parent.mkdir()
    other.write_text("wrong = 4\n")
    assert load_object(f"{file}:wrong") == 3 and load_object(f"{other}:wrong") == 4 and load_object(f"{file}:wrong") == 3


def test_a_class_of_one_file_keeps_its_types_when_another_of_that_name_is_read(tmp_path: Path) -> None:
    """Configurations read types by name, in the module that Python finds under the class's."""
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    for folder, unit in (("one", "int"), ("two", "float")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rule.py").write_text(f"{head}Unit = {unit}\n\n\n@dataclass\nclass Rule:\n    width: Unit\n")
    one, two = (load_object(f"{tmp_path / folder}/rule.py:Rule") for folder in ("one", "two"))
    assert get_type_hints(one) == {"width": int} and get_type_hints(two) == {"width": float}


def test_a_core_of_cosines_serves_a_method_of_cosines() -> None:
    net = built(Custom(cosine_core), (3, 4, 4), 5, classifier=Cosine())
    assert net(images(2, 3, 4, 4)).shape == (2, 5)


class Maps(Flat):
    def features(self, x: Tensor) -> Tensor:
        return x


class NoClassifier(Flat):
    def __init__(self, classes: int, image: tuple[int, int, int]):
        super().__init__(classes, image)
        del self.classifier


def no_features(classes: int, image: tuple[int, int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, classes))


def no_module(classes: int, image: tuple[int, int, int]) -> Any:
    return {"classes": classes}


def too_wide(classes: int, image: tuple[int, int, int]) -> nn.Module:
    return Flat(classes + 3, image)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (no_features, "`Sequential` without `features` or `classifier`"),
        (NoClassifier, "`NoClassifier` without `features` or `classifier`"),
        (no_module, "`dict` without `features` or `classifier`"),
        (Maps, r"shape \(2, 3, 4, 4\) for 2 images"),
        (too_wide, r"logits of shape \(2, 8\).*not \(2, 5\)"),
    ],
)
def test_a_network_that_is_none_is_refused_with_what_it_lacks(make: Callable[..., Any], says: str) -> None:
    with pytest.raises(Refused, match=says):
        built(Custom(make), (3, 4, 4), 5)


def test_a_linear_core_is_refused_to_a_method_of_cosines_with_the_line_to_write() -> None:
    with pytest.raises(Refused, match=r"needs a `Cosine`.*has a `Linear`.*Cosine\(temperature=0.09\).build\("):
        built(Custom(linear_core), (3, 4, 4), 5, classifier=Cosine())


@pytest.mark.parametrize("where", ["my_net", "my_net.py", "my_net.py:", "my_net:build", ":build"])
def test_what_is_not_a_file_and_a_name_is_refused(where: str) -> None:
    with pytest.raises(Refused, match="file.py:name"):
        built(Custom(where))


def test_a_missing_file_or_name_is_refused(file: Path) -> None:
    with pytest.raises(Refused, match="no file .*nowhere.py"):
        built(Custom(f"{file.parent}/nowhere.py:build"))
    with pytest.raises(Refused, match="my_net.py` has no `biuld`"):
        built(Custom(f"{file}:biuld"))


def test_a_file_that_fails_is_refused_with_its_error(file: Path) -> None:
    file.write_text("import no_such_module\n")
    with pytest.raises(Refused, match="my_net.py.*ModuleNotFoundError.*no_such_module"):
        built(Custom(f"{file}:build"))


def test_a_name_that_cannot_be_called_is_refused(file: Path) -> None:
    with pytest.raises(Refused, match="wrong"):
        built(Custom(f"{file}:wrong"))


def test_descriptions_are_values() -> None:
    assert ResNet18() == ResNet18(width=64, stem="small", pool="global") != ResNet18(width=20)
    assert Cosine() == Cosine(0.09) and Linear() == Linear() and hash(Custom("a.py:b")) == hash(Custom("a.py:b"))


# ---- how a network runs


@pytest.mark.parametrize("fails", [False, True])
def test_predicting_is_in_evaluation_mode_and_puts_every_module_back(fails: bool) -> None:
    """Also one that its owner keeps in another mode than the rest."""
    net = built().train()
    net.core.norm.eval()
    modes = [m.training for m in net.modules()]
    try:
        with predicting(net) as same_net:
            assert same_net is net and not any(m.training for m in net.modules())
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert [m.training for m in net.modules()] == modes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_precision_that_is_named_is_taken(precision: str) -> None:
    assert resolve_precision(precision, CPU) == precision


def test_auto_is_a_precision_the_machine_has() -> None:
    assert resolve_precision("auto", CPU) in ("bf16", "fp32")
    assert resolve_precision("auto", torch.device("mps")) == "fp32"


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_network_multiplies_in_the_precision_and_keeps_its_weights(precision: str, dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 3)
    with low_precision(precision, CPU):
        out = layer(torch.ones(2, 4))
    assert out.dtype == dtype and layer.weight.dtype == torch.float32
    assert layer(torch.ones(2, 4)).dtype == torch.float32
    out.float().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_double_precision_is_the_networks_own() -> None:
    layer = nn.Linear(4, 3).double()
    with low_precision("fp64", CPU):
        assert layer(torch.ones(2, 4, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("inside", [4, 8, 12, 16, 20])
def test_a_shortcut_of_few_channels_has_the_right_gradient_in_channels_last(inside: int, stride: int) -> None:
    """Where oneDNN's own, of a strided convolution of one pixel and of fewer than 16 channels, writes past its buffer."""
    torch.manual_seed(0)
    conv = Across(inside, 2 * inside, 1, stride, bias=False)
    x = torch.randn(3, inside, 64, 64)
    slow = torch.einsum("oc,nchw->nohw", conv.weight[:, :, 0, 0].double(), x[:, :, ::stride, ::stride].double())
    expected = torch.autograd.grad(slow.square().mean(), conv.weight)[0]
    conv = conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    out = conv(x.to(memory_format=torch.channels_last))
    assert torch.allclose(out, slow.float(), atol=1e-5) and out.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(torch.autograd.grad(out.square().mean(), conv.weight)[0], expected, atol=1e-6)
