"""OCM against a slow rewriting of its equations, the values worked out by hand, and the properties asked of it.

Where `spec/methods.md` (section 6) says otherwise, these were decided (`design.md`, section 16):
- (a) 64 rows are drawn, not min(64, 7 x the classes seen); the augmentation is the data's full set, not flip, gray and crop.
- (a) both sides of the MSE see one augmentation, and two in `published`: (h) 3 then needs no "same augmentation" proviso.
- (c) blurry: the old classes are those seen and not new since the last boundary, not those before the last new class.
- (g) the label of copy k is 16 y + k rather than y + k offset: the same partition, without a bound on the classes.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onepass.boundaries import NewClass, Oracle
from onepass.data import source
from onepass.distill import MKD
from onepass.errors import Refused
from onepass.learner import Learner
from onepass.losses import contrast
from onepass.methods.ocm import OCM, rotations, twice
from onepass.nets import Custom, ResNet18
from onepass.recipes import recipe
from onepass.step import Step
from onepass.stream import Batch, Spec

f64 = torch.float64
SPEC = Spec(4, (3, 8, 8), tasks=((0, 1), (2, 3)))
LN_EPS = -math.log(1e-8)


class Core(nn.Module):
    def __init__(self, classes: int, image: tuple[int, int, int], width: int):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(image[0], width, 3, padding=1), nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu().mean((2, 3))


def core(width: int) -> Custom:
    return Custom(lambda classes, image: Core(classes, image, width))


def images(seed: int, labels: list[int], side: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (len(labels), 3, side, side), dtype=torch.uint8, generator=generator)
    return Batch(x, torch.tensor(labels), name="stream")


def make(method: OCM | None = None, width: int = 6, **more: Any) -> Learner:
    more = {"memory": 20, "replay_size": 3, "precision": "fp64", "boundaries": Oracle()} | more
    return Learner(SPEC, method or OCM(), net=core(width), **more)


def later(learner: Learner) -> Learner:
    """Two batches of the first task and one of the second have been learnt."""
    for i, labels in enumerate(([0, 1, 0], [1, 0, 1], [2, 3])):
        learner.observe(images(i, labels))
    assert learner.task == 1
    return learner


def begin(learner: Learner, labels: list[int], seed: int = 50) -> Step:
    rows = images(seed, labels)
    return learner.step(rows, learner.meet(rows))


# ---- the equations, slowly


def slow_contrast(S: list[list[float]], y: list[int], tau: float, pairs: bool) -> float:
    rows, total = len(S), 0.0
    for i in range(rows):
        top = max(S[i])
        e = [0.0 if pairs and j == i else math.exp((S[i][j] - top) / tau) for j in range(rows)]
        ln = [-math.log(e[j] / (sum(e) + 1e-8) + 1e-8) for j in range(rows)]
        positives = [j for j in range(rows) if y[j] == y[i]]
        mean = sum(ln[j] for j in positives) / len(positives)
        total += ln[(i + rows // 2) % rows] + 2 * mean if pairs else mean
    return total / rows


def slow_similarity(u: list[list[float]], f: list[list[float]], start: int, scale: float) -> list[list[float]]:
    def dot(a: list[float], b: list[float]) -> float:
        return sum(p * q for p, q in zip(a, b, strict=True))

    width = len(u[0])
    return [[scale * dot(a, f[j][start : start + width]) + scale * dot(a, b) for j, b in enumerate(u)] for a in u]


def unit(rows: Tensor) -> list[list[float]]:
    return [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in rows.tolist()]


def slow_ce(logits: list[list[float]], y: list[int]) -> float:
    return sum(math.log(sum(map(math.exp, z))) - z[c] for z, c in zip(logits, y, strict=True)) / len(y)


def groups(net: Any, *views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features, projections and logits of the views as one batch."""
    h = net.features(torch.cat(views))
    return h, net.heads["projection"](h), net.classifier(h)


SIZES = {"narrow": 5, "wide": 130}  # of the features: the projection is as wide, or 128 of them


@pytest.mark.parametrize("size", SIZES)
def test_the_loss_of_the_first_task_is_its_equation(size: str) -> None:
    learner = make(width=SIZES[size])
    step = begin(learner, [0, 1])
    net = deepcopy(learner.student)
    loss = learner.method.loss(step)
    assert loss is not None
    turned = step.view(step.stream, rotations)
    h, u, _ = groups(net, turned.x, step.aug(turned).x)
    _, _, z = groups(net, step.aug(step.stream).x)
    ce = slow_ce(z.tolist(), [0, 1])
    y = turned.y.tolist() * 2
    possible = [
        slow_contrast(slow_similarity(unit(u), unit(h), start, 1.0), y, 0.07, True) + ce
        for start in range(h.shape[1] - u.shape[1] + 1)
    ]
    assert min(abs(loss.item() - p) for p in possible) < 1e-9, (loss.item(), possible)


@pytest.mark.parametrize(("size", "two_views"), [("narrow", False), ("narrow", True), ("wide", False)])
def test_the_loss_of_later_tasks_is_its_equation(size: str, two_views: bool) -> None:
    learner = later(make(OCM(two_views=two_views), width=SIZES[size]))
    learner.replay_size = 2
    step = begin(learner, [3] if size == "wide" else [3, 2])
    net, previous = deepcopy(learner.student), deepcopy(learner.followers["previous"])
    loss = learner.method.loss(step)
    assert loss is not None and len(step.replay) == 2
    new, kept = step.view(step.stream, rotations), step.view(step.replay, rotations)
    h, u, _ = groups(net, new.x, step.aug(new).x, kept.x, step.aug(kept).x)
    n = 2 * len(new)
    starts = range(h.shape[1] - u.shape[1] + 1)
    terms_n = [slow_contrast(slow_similarity(unit(u[:n]), unit(h[:n]), s, 0.5), new.y.tolist() * 2, 0.07, True) for s in starts]
    terms_uni = [slow_contrast(slow_similarity(unit(u[n:]), unit(h[n:]), s, 0.5), kept.y.tolist() * 2, 0.07, False) for s in starts]
    with torch.no_grad():
        _, u_previous, _ = groups(previous.net, kept.x)
        mine, theirs = unit(u[n : n + len(kept)]), unit(u_previous)
        past = [[sum(p * q for p, q in zip(a, b, strict=True)) for b in theirs] for a in mine]
        pre = slow_contrast(past, kept.y.tolist(), 0.07, False)
        _, _, z = groups(net, step.aug(step.replay).x)
        _, _, z_previous = groups(previous.net, step.aug(step.replay, "previous" if two_views else "main").x)
    ce = slow_ce(z.tolist(), step.replay.y.tolist())
    gaps = [(float(z[i, c]) - float(z_previous[i, c])) ** 2 for i in range(len(z)) for c in (0, 1)]  # the old classes
    rest = pre + ce + sum(gaps) / len(gaps)
    possible = [a + b + rest for a in terms_n for b in terms_uni]
    assert min(abs(loss.item() - p) for p in possible) < 1e-9, (loss.item(), possible)


# ---- (h) 1: rotations


def slow_copies(image: list[list[int]]) -> dict[tuple[int, bool, bool], list[list[int]]]:
    """By quarter turns of the whole, and whether its left and its right half were turned before, pixel by pixel."""
    side = len(image)
    half = side // 2
    copies = {}
    for left in (False, True):
        for right in (False, True):
            inner = [row[:] for row in image]
            for i in range(side):
                for j in range(side):
                    first = j < half
                    if left if first else right:
                        inner[i][j] = image[side - 1 - i][half - 1 - j if first else side - 1 - (j - half)]
            for quarters in range(4):
                copies[quarters, left, right] = inner
                inner = [[inner[j][side - 1 - i] for j in range(side)] for i in range(side)]
    return copies


@pytest.mark.parametrize("side", [4, 8])
def test_h1_sixteen_distinct_rotations_with_aligned_labels(side: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.stack([torch.randperm(side * side, generator=generator) for _ in range(3)]).view(3, 1, side, side).double()
    y = torch.tensor([2, 0, 2])
    turned, labels = rotations(x, y)
    assert turned.shape == (48, 1, side, side) and labels.shape == (48,)
    found: dict[int, tuple[int, bool, bool]] = {}
    for n in range(48):
        source_row = n % 3
        copies = slow_copies(x[source_row, 0].long().tolist())
        (transform,) = (t for t, image in copies.items() if image == turned[n, 0].long().tolist())
        k = int(labels[n]) - 16 * int(y[source_row])
        assert 0 <= k < 16 and found.setdefault(k, transform) == transform, "one label is one transform"
        assert turned[n].flatten().sort().values.equal(x[source_row].flatten().sort().values)
    assert len(found) == len(set(found.values())) == 16
    assert len({tuple(v.flatten().tolist()) for v in turned[::3]}) == 16


def test_h1_no_two_classes_share_a_label() -> None:
    _, labels = rotations(torch.zeros(200, 1, 2, 2), torch.arange(200))
    assert len(labels.unique()) == 16 * 200


def test_all_channels_are_turned_alike() -> None:
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    whole, _ = rotations(x, torch.tensor([0, 1]))
    for c in range(3):
        assert torch.equal(whole[:, c : c + 1], rotations(x[:, c : c + 1], torch.tensor([0, 1]))[0])


def test_images_that_are_not_square_are_refused() -> None:
    with pytest.raises(Refused, match="8x6"):
        Learner(Spec(4, (3, 8, 6), tasks=((0, 1), (2, 3))), OCM(), net=core(4), boundaries=Oracle())


# ---- (h) 2 and 5: values by hand


def test_h2_the_values_of_the_specification() -> None:
    S, y = torch.tensor([[1, 0.5], [0.5, 1]], dtype=f64, requires_grad=True), torch.tensor([0, 0])
    assert contrast(S, y, 1.0).mean().item() == pytest.approx(0.72408, abs=5e-6)
    loss = contrast(S, y, 1.0, pairs=True).mean()
    assert loss.item() == pytest.approx(18.4207, abs=5e-5)
    (slope,) = torch.autograd.grad(loss, S)
    assert slope.abs().max() < 1e-7, "but for the 1e-8 beside the logarithm"


def some_similarities(rows: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(rows, rows, dtype=f64, generator=generator).requires_grad_(), torch.tensor([0, 0, 1] * (rows // 3))


def test_h5_an_image_itself_has_no_gradient_in_l_n() -> None:
    S, y = some_similarities()
    (slope,) = torch.autograd.grad(contrast(S, y, 0.07, pairs=True).mean(), S)
    assert slope.diagonal().abs().max() == 0 and slope.abs().max() > 1e-3


def test_h5_l_n_without_its_constant_is_supcon_with_the_image_itself_in_the_divisor() -> None:
    S, y = some_similarities()
    s, rows, tau = S.tolist(), len(y), 0.5
    constant = expected = 0.0
    for i in range(rows):
        positives = [j for j in range(rows) if y[j] == y[i]]
        others = sum(math.exp(s[i][k] / tau) for k in range(rows) if k != i)
        ln = {j: -math.log(math.exp(s[i][j] / tau) / others) for j in range(rows) if j != i}
        constant += 2 * LN_EPS / len(positives) / rows
        expected += (ln[(i + rows // 2) % rows] + 2 * sum(ln[j] for j in positives if j != i) / len(positives)) / rows
    assert contrast(S, y, tau, pairs=True).mean().item() - constant == pytest.approx(expected, rel=1e-6)


# ---- (h) 3: the previous model


def test_h3_nothing_reaches_the_previous_model() -> None:
    learner = later(make())
    step = begin(learner, [3, 2])
    loss = learner.method.loss(step)
    assert loss is not None
    previous = step.net("previous")
    outs = [previous(step.view(step.replay, rotations)).head("projection"), previous(step.aug(step.replay)).logits]
    assert not any(o.requires_grad for o in outs), "it has no graph"
    loss.backward()
    assert all(p.grad is None and not p.requires_grad for p in learner.followers["previous"].parameters())
    assert all(p.grad is not None for p in learner.student.parameters())


def just_after_a_boundary(method: OCM) -> tuple[Step, Tensor, float]:
    learner = make(method)
    learner.observe(images(0, [0, 1, 0]))
    learner.observe(images(1, [1, 1, 0]))
    step = begin(learner, [2, 3])
    assert step.task == 1
    terms = learner.method.replay_terms(step)  # type: ignore[attr-defined]
    z = step.student(step.aug(step.replay)).logits
    return step, terms, slow_ce(z.tolist(), step.replay.y.tolist())


def test_h3_where_previous_and_current_are_the_same_the_mse_is_zero() -> None:
    _, terms, ce = just_after_a_boundary(OCM())
    assert terms.item() == pytest.approx(ce, abs=1e-12)


def test_h3_with_two_augmentations_it_is_not() -> None:
    _, terms, ce = just_after_a_boundary(OCM(two_views=True))
    assert terms.item() > ce + 1e-6


def test_both_sides_of_the_mse_see_one_augmentation_and_two_in_published() -> None:
    for method, name in (OCM(), "aug(replay)"), (OCM(two_views=True), "previous:aug(replay)"):
        step, _, _ = just_after_a_boundary(method)
        assert step.student.calls == [("aug(replay)",)] and step.net("previous").calls == [(name,)]
    assert not torch.equal(step.aug(step.replay).x, step.aug(step.replay, "previous").x)
    cifar = source("cifar10")
    assert recipe("ocm", cifar).method == OCM(two_views=False)
    assert recipe("ocm", cifar, family="published").method == OCM(two_views=True)
    assert recipe("ocm+mkd", cifar, family="published").method == OCM(two_views=False), "as the authors' OCM with MKD"


def test_the_previous_model_is_the_student_at_the_last_boundary_by_batch_statistics() -> None:
    learner = make()
    for i in range(3):
        learner.observe(images(i, [0, 1, 0]))
    before = deepcopy(learner.student)
    for i in range(3, 6):
        learner.observe(images(i, [2, 3]))
    previous = learner.followers["previous"]
    for mine, theirs in zip(previous.net.parameters(), before.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(learner.student.classifier.weight, before.classifier.weight), "the student went on"
    step = begin(learner, [3, 2])
    view = step.aug(step.replay)
    before.train()
    torch.testing.assert_close(step.net("previous")(view).logits, before(view.x).detach())
    before.eval()
    assert not torch.allclose(step.net("previous")(view).logits, before(view.x).detach())


# ---- (h) 4: what the stream's labels and images are for


def l_n(method: OCM, step: Step) -> Tensor:
    turned = step.view(step.stream, rotations)
    kept = step.view(step.replay, rotations)
    outs = step.student.joint(turned, step.aug(turned), kept, step.aug(kept))
    new = method.similarity(step, "stream", *outs[:2], scale=0.5)
    return contrast(new, twice(turned.y), 0.07, pairs=True).mean()


def test_h4_the_labels_of_the_stream_change_l_n_alone() -> None:
    learner = later(make())
    found = []
    for labels in ([2, 2, 3, 3], [2, 3, 2, 3]):
        again = deepcopy(learner)
        step = begin(again, labels)
        loss = again.method.loss(step)
        assert loss is not None
        found.append((loss.item(), l_n(OCM(), step).item()))
    (loss, term), (other_loss, other_term) = found
    assert abs(term - other_term) > 1e-3
    assert loss - term == pytest.approx(other_loss - other_term, abs=1e-10)


def test_h4_no_image_of_the_stream_touches_cross_entropy_and_mse() -> None:
    learner = later(make())
    found = []
    for seed in (50, 51):
        again = deepcopy(learner)
        step = begin(again, [2, 3], seed)
        again.method.loss(step)
        found.append(again.method.replay_terms(step).item())  # type: ignore[attr-defined]
    assert found[0] == found[1]


# ---- (h) 6: the window


def offsets(width: int, updates: int) -> list[tuple[int, int]]:
    """Where the windows begin, for the stream and for the replay, read off the similarities."""
    learner = make(width=4)
    rows = images(0, [0, 1])
    present = learner.meet(rows)
    generator = torch.Generator().manual_seed(4)
    u = torch.eye(128, dtype=f64)[:2]  # picks the first two numbers of a window
    f = torch.rand(2, width, dtype=f64, generator=generator)
    part = [SimpleNamespace(head=lambda _, i=i: u[i : i + 1], features=f[i : i + 1]) for i in (0, 1)]
    normal = f / f.norm(dim=1, keepdim=True)
    found = []
    for update in range(updates):
        learner.clock.updates = update
        step = learner.step(rows, present)
        pair = []
        for name in ("stream", "replay"):
            S = OCM().similarity(step, name, part[0], part[1], scale=1.0)  # type: ignore[arg-type]
            first = (S - u @ u.T)[0, 1]
            pair.append(int((normal[1] - first).abs().argmin()))
            assert first == pytest.approx(normal[1, pair[-1]].item(), abs=1e-12)
        found.append((pair[0], pair[1]))
    return found


def test_h6_windows_are_drawn_anew_and_independently_for_stream_and_memory() -> None:
    found = offsets(512, 400)
    stream, replay = torch.tensor(found, dtype=f64).T
    assert len(set(found)) > 380
    assert abs(torch.corrcoef(torch.stack([stream, replay]))[0, 1]) < 0.15
    assert abs(torch.corrcoef(torch.stack([stream[1:], stream[:-1]]))[0, 1]) < 0.15
    for one in stream, replay:
        assert one.min() >= 0 and one.max() <= 512 - 128 and abs(one.mean() - 192) < 25
        assert one.min() < 20 and one.max() > 364


def test_h6_a_window_begins_at_0_to_the_features_less_129() -> None:
    """0 to 383 of 512 in the specification; here 0 and 1 of 130, so that the end is met."""
    found = {start for pair in offsets(130, 60) for start in pair}
    assert found == {0, 1}


def test_h6_features_no_wider_than_the_projection_have_one_window() -> None:
    assert set(offsets(128, 10)) == {(0, 0)}


# ---- what is forwarded

STREAM, STREAM_AUG = "rotations(stream)", "aug(rotations(stream))"
REPLAY, REPLAY_AUG = "rotations(replay)", "aug(rotations(replay))"


def test_in_the_first_task_nothing_is_replayed_and_mkd_sees_the_stream_alone() -> None:
    for word in "ocm", "ocm+mkd":
        learner = paper(word)
        step, _ = step_of(learner, [0, 1] * 5)
        assert len(step.replay) == 0 and step.both is step.stream
        own = [("mkd:raw(stream)",), ("mkd:aug(stream)",)] if "mkd" in word else []
        assert step.student.calls == [(STREAM, STREAM_AUG), ("aug(stream)",), *own]
        assert step.student.images == [320, 10] + [10] * len(own)
        assert step.net("previous").calls == []
        if own:
            assert step.teacher.calls == [("mkd:aug(stream)",)]


def test_later_tasks_have_one_large_group_and_the_replay_by_itself() -> None:
    step, _ = step_of(paper("ocm", later=True), [2, 3] * 5)
    assert step.student.calls == [(STREAM, STREAM_AUG, REPLAY, REPLAY_AUG), ("aug(replay)",)]
    assert step.net("previous").calls == [(REPLAY,), ("aug(replay)",)]


def paper(word: str, *, family: Any = "default", later: bool = False, **more: Any) -> Learner:
    """The recipe's learner on small images, with 80 of them in its memory; `later`: before the first batch of a new task."""
    config = recipe(word, source("cifar10"), family=family)
    config = replace(config, **({"net": ResNet18(width=2), "memory": 80, "precision": "fp32"} | more))
    learner = config.learner(SPEC, sharp=True)
    rows = images(0, [0, 1] * 50)
    learner.memory.add(rows.x, rows.y, rng=torch.Generator())
    if later:
        learner.seen[:2] = learner.new[:2] = True
        learner.clock.batches = learner.since = 1
    return learner


def step_of(learner: Learner, labels: list[int]) -> tuple[Step, Tensor]:
    step = begin(learner, labels)
    loss = learner.method.loss(step)
    assert loss is not None
    if learner.distill is not None:
        loss = learner.distill.loss(step, loss)
    return step, loss


BUDGETS = {  # word, family, whether in a later task: images of the student, of its teacher, of the previous model, units
    ("ocm", "default", False): ([320, 10], [], [], 990),
    ("ocm", "default", True): ([2368, 64], [], [1024, 64], 8384),
    ("ocm", "published", True): ([2368, 64], [], [1024, 64], 8384),
    ("ocm+mkd", "default", False): ([320, 10, 10, 10], [10], [], 1060),
    ("ocm+mkd", "default", True): ([2368, 64, 74, 74], [74], [1024, 64], 8902),
    ("ocm+mkd", "published", True): ([2368, 64, 74, 74], [74], [1024, 64], 8902),
    ("ocm+sdp", "default", False): ([320, 10, 10], [10], [], 1030),
    ("ocm+sdp", "default", True): ([2368, 64, 74], [74], [1024, 64], 8680),
}


@pytest.mark.parametrize("key", BUDGETS, ids=str)
def test_a_step_costs_what_the_table_says(key: tuple[str, Any, bool]) -> None:
    word, family, is_later = key
    student, teacher, previous, units = BUDGETS[key]
    learner = paper(word, family=family, later=is_later)
    step, _ = step_of(learner, ([2, 3] if is_later else [0, 1]) * 5)
    assert step.task == int(is_later)
    given = step.teacher.images if learner.followers.keys() > {"previous"} else []
    assert (step.student.images, given, step.net("previous").images) == (student, teacher, previous)
    assert 3 * sum(student) + sum(teacher) + sum(previous) == units
    assert step.student.peeks == ([] if "sdp" not in word else [(step.student.peeks[0][0], sum(teacher))])


# ---- with MKD


def inputs(learner: Learner, batches: list[Batch]) -> list[list[Tensor]]:
    """Whatever the student's first convolution is given, batch by batch."""
    given: list[Tensor] = []
    conv = next(m for m in learner.student.modules() if isinstance(m, nn.Conv2d))
    conv.register_forward_pre_hook(lambda _, args: given.append(args[0].detach().clone()))
    found = []
    for batch in batches:
        given.clear()
        learner.observe(batch)
        found.append(list(given))
    return found


def test_mkd_changes_no_draw_of_ocm() -> None:
    batches = [images(i, [0, 1]) for i in range(2)] + [images(i, [2, 3]) for i in range(2, 4)]
    small: dict[str, Any] = {"replay_size": 4, "memory": 6}
    learners = [paper(word, **small) for word in ("ocm", "ocm+mkd")]
    plain, with_mkd = (inputs(learner, batches) for learner in learners)
    for ours, theirs in zip(plain, with_mkd, strict=True):
        assert (len(ours), len(theirs)) == (2, 4)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs[:2], strict=True))
    first, second = (learner.memory.state_dict() for learner in learners)
    assert all(torch.equal(first[k], second[k]) for k in first)
    a, b = (learner.student.classifier.weight for learner in learners)
    assert not torch.equal(a, b), "though it learnt something else"


def test_mkds_raw_images_are_augmented_once_more_in_published_after_the_first_task() -> None:
    for is_later in False, True:
        learner = paper("ocm+mkd", family="published", later=is_later)
        assert isinstance(learner.distill, MKD) and learner.distill.raw_until == 1
        step = begin(learner, ([2, 3] if is_later else [0, 1]) * 2)
        base = learner.method.loss(step)
        assert base is not None
        given: list[Tensor] = []
        conv = learner.student.core.conv  # type: ignore[union-attr]
        conv.register_forward_pre_hook(lambda _, args, given=given: given.append(args[0].detach().clone()))
        learner.distill.loss(step, base)
        first, second = given
        pixels = torch.cat([part.x for part in step.both.atoms]).float() / 255
        mean = torch.tensor(source("cifar10").habits.mean or (0.0,) * 3).view(3, 1, 1)
        std = torch.tensor(source("cifar10").habits.std or (1.0,) * 3).view(3, 1, 1)
        assert torch.allclose(first, (pixels - mean) / std) != is_later
        assert torch.equal(first, second) == is_later, "which is the augmented images again, forwarded twice"


def test_mkds_raw_images_stay_raw_by_default() -> None:
    step, _ = step_of(paper("ocm+mkd", later=True), [2, 3] * 2)
    assert step.student.calls[2] == ("mkd:raw(replay)", "mkd:raw(stream)")


# ---- blurry streams


def test_on_a_blurry_stream_the_recipe_switches_at_the_inferred_boundary() -> None:
    config = recipe("ocm", source("cifar10"), stream="blurry")
    assert config.boundaries == NewClass(lag=100)
    config = replace(config, net=core(2), memory=4, replay_size=2, precision="fp32")
    learner = config.learner(SPEC, sharp=False)
    grown = []
    for i in range(104):
        label = 0 if i < 3 else 1 if i < 102 else 2
        grown.append(inputs(learner, [images(i, [label])])[0])
        if i == 101:
            assert learner.task == 0 and learner.seen.tolist() == [True, True, False, False], "class 1 came within the lag"
            before = deepcopy(learner.student)
        assert learner.task == int(i > 101)
    assert [len(g[0]) for g in grown[100:]] == [32, 32, 96, 96], "the replay is in the group from then on"
    previous = learner.followers["previous"].net
    assert all(torch.equal(a, b) for a, b in zip(previous.parameters(), before.parameters(), strict=True))
    assert (learner.seen & ~learner.new).tolist() == [True, True, False, False]


def test_a_blurry_stream_without_a_rule_is_refused() -> None:
    config = replace(recipe("ocm", source("cifar10"), stream="blurry"), boundaries=None)
    with pytest.raises(Refused, match=r"keeps the model of the task before.*NewClass\(lag=100\)"):
        config.learner(SPEC, sharp=False)
