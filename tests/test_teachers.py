"""The moving average against sums written out, its batch-norm in every mode, and MKD in a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.losses import mkd_loss
from onepass.teachers import EMA, Follower, HypoExponential, Snapshot, average

f64 = torch.float64
MODES = [("batch", "own"), ("batch", "student"), ("batch", "average"), ("running", "student"), ("running", "average")]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads on a busy machine are a thousand times slower than one on networks as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def small(seed: int = 0, classes: int = 4) -> nn.Sequential:
    """Convolution, batch-norm, dropout, classifier."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(24, classes),
        ).to(f64)


def images(seed: int = 0, n: int = 6) -> Tensor:
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=f64)


@torch.no_grad()
def move(net: nn.Module, seed: int) -> None:
    """As an optimiser's step and a forward would: other parameters, other running statistics."""
    generator = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    for b in net.buffers():
        b.copy_(torch.rand(b.shape, generator=generator, dtype=b.dtype) + 0.5 if b.is_floating_point() else b + 3)


def parameters(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def buffers(net: nn.Module) -> dict[str, Tensor]:
    return {k: b.clone() for k, b in net.named_buffers()}


def floating(net: nn.Module) -> dict[str, Tensor]:
    return {k: b for k, b in buffers(net).items() if b.is_floating_point()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def close(a: list[Tensor], b: list[Tensor]) -> None:
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


# ---- the average of the parameters


@pytest.mark.parametrize("alpha", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("start", ["copy", "zero", "alpha", "debiased"])
def test_the_average_has_its_closed_form_along_a_path(start: Any, alpha: float) -> None:
    """(1 - a)^t theta_T(0) + a sum_k (1 - a)^(t - k) theta_k; debiased: the sum alone, divided by its weights."""
    if start == "zero" and alpha == 1:
        alpha = 0.9
    student = small()
    path = [parameters(student)]
    teacher = EMA(alpha, start=start).follow(student)
    for t in range(1, 13):
        move(student, t)
        path.append(parameters(student))
        teacher.update(student)
        weights = [alpha * (1 - alpha) ** (t - k) for k in range(1, t + 1)]
        first = {"copy": 1.0, "alpha": alpha, "zero": alpha / (1 - alpha or 1), "debiased": 0.0}[start] * (1 - alpha) ** t
        if start == "debiased":
            weights = [w / sum(weights) for w in weights]
        hand = [
            first * thetas[0] + sum((w * theta for w, theta in zip(weights, thetas[1:], strict=True)))
            for thetas in zip(*path, strict=True)
        ]
        close(parameters(teacher.net), hand)


@pytest.mark.parametrize(("start", "factor"), [("copy", 1.0), ("zero", 0.01 / 0.99), ("alpha", 0.01), ("debiased", 1.0)])
def test_a_teacher_starts_where_it_says(start: Any, factor: float) -> None:
    student = small()
    teacher = EMA(0.01, start=start).follow(student)
    close(parameters(teacher.net), [factor * p for p in parameters(student)])
    assert same(buffers(teacher.net), buffers(student))


@pytest.mark.parametrize("start", ["copy", "debiased"])
def test_a_constant_student_has_a_constant_teacher(start: Any) -> None:
    student = small()
    teacher = EMA(0.01, start=start, buffers="average").follow(student)
    for _ in range(20):
        teacher.update(student)
        assert all(torch.equal(a, b) for a, b in zip(parameters(teacher.net), parameters(student), strict=True))
        assert same(buffers(teacher.net), buffers(student))


def test_a_debiased_teacher_forgets_the_first_student_at_once() -> None:
    student = small()
    teacher = EMA(0.01, start="debiased").follow(student)
    move(student, 1)
    teacher.update(student)
    close(parameters(teacher.net), parameters(student))


@pytest.mark.parametrize(("alpha", "n"), [(0.01, 10), (0.3, 1), (0.3, 3), (0.9, 10)])
def test_the_correction_is_the_authors(alpha: float, n: int) -> None:
    """theta_T <- (1 - a) theta_T + a / (1 - a^k) theta with k = max(1, updates // n)."""
    student = small()
    hand = [alpha / (1 - alpha) * p for p in parameters(student)]
    teacher = EMA(alpha, start="zero", correction=n).follow(student)
    for updates in range(1, 25):
        move(student, updates)
        teacher.update(student)
        k = max(1, updates // n)
        pairs = zip(hand, parameters(student), strict=True)
        hand = [(1 - alpha) * mine + alpha / (1 - alpha**k) * theirs for mine, theirs in pairs]
        close(parameters(teacher.net), hand)


AUTHORS_SCALE = {  # spec/authors-code.md, section 1.0: of the teacher over a constant student, by number of updates
    0.001: {0: 0.001, 10: 0.011, 30: 0.031, 50: 0.050, 100: 0.096, 200: 0.18, 300: 0.26, 500: 0.39, 1000: 0.63},
    0.01: {0: 0.010, 10: 0.106, 30: 0.269, 50: 0.402, 100: 0.638, 200: 0.868, 300: 0.952, 500: 0.994, 1000: 1.0},
    0.1: {0: 0.11, 10: 0.76, 30: 0.999, 50: 1.0, 100: 1.0},
    0.5: {0: 1.0, 10: 2.0, 30: 1.24, 50: 1.05, 100: 1.0},
    0.9: {0: 9.0, 10: 10.0, 30: 3.8, 50: 2.5, 100: 1.5, 200: 1.14, 300: 1.04},
}


@pytest.mark.parametrize("alpha", AUTHORS_SCALE)
def test_the_authors_teacher_grows_as_their_code_makes_it(alpha: float) -> None:
    student = nn.Linear(1, 1, bias=False, dtype=f64)
    nn.init.ones_(student.weight)
    teacher = EMA(alpha, start="zero", correction=10).follow(student)
    scale = {}
    for updates in range(max(AUTHORS_SCALE[alpha]) + 1):
        scale[updates] = teacher.net.weight.item()
        teacher.update(student)
    for updates, known in AUTHORS_SCALE[alpha].items():
        assert scale[updates] == pytest.approx(known, rel=0.035, abs=0.0011)  # as it was rounded


def test_the_teacher_follows_a_student_that_an_optimiser_moves() -> None:
    student = small()
    teacher = EMA(0.25).follow(student)
    hand = parameters(teacher.net)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for i in range(4):
        loss = student(images(i)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(student)
        hand = [0.75 * mine + 0.25 * theirs for mine, theirs in zip(hand, parameters(student), strict=True)]
    close(parameters(teacher.net), hand)


def test_an_update_leaves_the_student_alone() -> None:
    student = small()
    student(images()).sum().backward()
    teacher = EMA(0.5, buffers="average").follow(student)
    move(student, 1)
    before, gradients = parameters(student), [p.grad.clone() for p in student.parameters() if p.grad is not None]
    statistics, modes = buffers(student), [m.training for m in student.modules()]
    teacher.update(student)
    teacher(images())
    assert all(torch.equal(a, b) for a, b in zip(before, student.parameters(), strict=True))
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, student.parameters(), strict=True))
    assert same(buffers(student), statistics) and [m.training for m in student.modules()] == modes
    assert all(p.requires_grad for p in student.parameters())


# ---- its batch-norm


@pytest.mark.parametrize("buffers_", ["own", "student", "average"])
def test_a_teacher_of_batch_statistics_normalises_by_its_batch(buffers_: Any) -> None:
    student = small()
    teacher = EMA(0.5, buffers=buffers_).follow(student)
    move(student, 1)
    teacher.update(student)
    x = images()
    h = F.conv2d(x, teacher.net[0].weight, teacher.net[0].bias, padding=1)
    h = (h - h.mean((0, 2, 3), keepdim=True)) / (h.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    h = (h * teacher.net[1].weight[:, None, None] + teacher.net[1].bias[:, None, None]).relu()
    h = h.unflatten(2, (2, 3)).unflatten(4, (2, 3)).mean((3, 5)).flatten(1)
    torch.testing.assert_close(teacher(x), h @ teacher.net[6].weight.T + teacher.net[6].bias, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("buffers_", ["student", "average"])
def test_a_teacher_of_running_statistics_normalises_by_these(buffers_: Any) -> None:
    student = small()
    teacher = EMA(0.5, statistics="running", buffers=buffers_).follow(student)
    move(student, 1)
    teacher.update(student)
    x = images()
    alone = torch.cat([teacher(x[i : i + 1]) for i in range(len(x))])
    torch.testing.assert_close(teacher(x), alone, rtol=1e-10, atol=1e-12)
    with seeded(0):
        reference = small(9).eval()
    reference.load_state_dict(teacher.net.state_dict())
    assert torch.equal(teacher(x), reference(x))


def test_own_statistics_are_moved_by_the_teachers_own_forwards_alone() -> None:
    student = small()
    teacher = EMA(0.5, buffers="own").follow(student)
    hand_mean, hand_var = teacher.net[1].running_mean.clone(), teacher.net[1].running_var.clone()
    for i in range(3):
        move(student, i)
        kept = buffers(teacher.net)
        teacher.update(student)
        assert same(buffers(teacher.net), kept)
        teacher.eval()
        teacher(images(i))
        assert same(buffers(teacher.net), kept)
        teacher.train()
        x = images(10 + i)
        h = F.conv2d(x, teacher.net[0].weight, teacher.net[0].bias, padding=1)
        teacher(x)
        hand_mean = 0.9 * hand_mean + 0.1 * h.mean((0, 2, 3))
        hand_var = 0.9 * hand_var + 0.1 * h.var((0, 2, 3))
        close([teacher.net[1].running_mean, teacher.net[1].running_var], [hand_mean, hand_var])
        assert int(teacher.net[1].num_batches_tracked) == i + 1


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_student_buffers_are_copies_of_the_students(statistics: Any) -> None:
    student = small()
    teacher = EMA(0.01, statistics=statistics, buffers="student").follow(student)
    for i in range(3):
        move(student, i)
        student.train()(images(i))
        teacher.update(student)
        assert same(buffers(teacher.net), buffers(student))


@pytest.mark.parametrize("statistics", ["batch", "running"])
@pytest.mark.parametrize("start", ["copy", "zero"])
def test_average_buffers_are_the_moving_average_of_the_students(start: Any, statistics: Any) -> None:
    student = small()
    teacher = EMA(0.3, start=start, statistics=statistics, buffers="average").follow(student)
    hand = floating(student)
    for i in range(5):
        move(student, i)
        teacher.update(student)
        hand = {k: 0.7 * hand[k] + 0.3 * theirs for k, theirs in floating(student).items()}
        close(list(floating(teacher.net).values()), list(hand.values()))
        assert torch.equal(teacher.net[1].num_batches_tracked, student[1].num_batches_tracked)


def test_debiased_average_buffers_forget_the_first_statistics_at_once() -> None:
    student = small()
    teacher = EMA(0.01, start="debiased", buffers="average").follow(student)
    move(student, 1)
    teacher.update(student)
    close(list(floating(teacher.net).values()), list(floating(student).values()))


@pytest.mark.parametrize("correction", [1, 10])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_average_buffers_stay_between_those_they_average(alpha: float, correction: int) -> None:
    """Whatever the correction does to the parameters: a variance beyond would soon be negative."""
    student = small()
    teacher = EMA(alpha, start="zero", buffers="average", correction=correction).follow(student)
    seen = [floating(student)]
    for i in range(6):
        move(student, i)
        seen.append(floating(student))
        teacher.update(student)
        for k, mine in floating(teacher.net).items():
            history = torch.stack([s[k] for s in seen])
            assert (mine >= history.amin(0) - 1e-9).all() and (mine <= history.amax(0) + 1e-9).all()


@pytest.mark.parametrize(("statistics", "buffers_"), MODES[1:])
def test_running_statistics_that_are_the_students_are_not_moved_by_the_teachers_forwards(statistics: Any, buffers_: Any) -> None:
    student = small()
    teacher = EMA(0.5, statistics=statistics, buffers=buffers_).follow(student)
    kept = floating(teacher.net)
    for i in range(3):
        teacher(images(i))
    assert same(floating(teacher.net), kept)


@pytest.mark.parametrize("buffers_", ["student", "average"])
def test_nor_is_their_counter(buffers_: Any) -> None:
    teacher = EMA(0.5, buffers=buffers_).follow(small())
    kept = buffers(teacher.net)
    teacher(images())
    assert same(buffers(teacher.net), kept)


@pytest.mark.parametrize("buffers_", ["student", "average"])
def test_an_overflow_in_the_teachers_forward_does_not_reach_the_students_statistics(buffers_: Any) -> None:
    """As a forward in float16 may have; an average would keep the NaN for ever."""
    teacher = EMA(0.5, buffers=buffers_).follow(small())
    teacher(images().index_fill(0, torch.tensor([0]), torch.inf))
    assert all(b.isfinite().all() for b in floating(teacher.net).values())


def test_batch_norm_without_running_statistics_needs_none() -> None:
    student = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)).to(f64)
    x = torch.randn(5, 3, dtype=f64)
    for buffers_ in ("own", "student", "average"):
        teacher = EMA(0.5, buffers=buffers_).follow(student)
        teacher.update(student)
        torch.testing.assert_close(teacher(x), student(x))


# ---- refusals


def test_running_statistics_that_nothing_fills_are_refused() -> None:
    with pytest.raises(ValueError, match='statistics="running".*buffers="own"'):
        EMA(0.01, statistics="running")


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, float("nan")])
def test_what_is_no_rate_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha={alpha}"):
        EMA(alpha)


@pytest.mark.parametrize("decision", [{"start": "zero"}, {"correction": 10}])
def test_alpha_one_is_refused_where_it_would_divide_by_zero(decision: Any) -> None:
    with pytest.raises(ValueError, match="divides by zero"):
        EMA(1.0, **decision)


@pytest.mark.parametrize("decision", [{"start": "copied"}, {"statistics": "own"}, {"buffers": "batch"}])
def test_an_unknown_decision_is_refused_with_the_known_ones(decision: Any) -> None:
    ((name, value),) = decision.items()
    known = {"start": "copy, zero, .*debiased", "statistics": "batch, running", "buffers": "own, student, average"}[name]
    with pytest.raises(ValueError, match=f"{name}='{value}'.*{known}"):
        EMA(0.01, **decision)


def test_a_rule_is_a_value() -> None:
    assert EMA(0.01) == EMA(alpha=0.01, start="copy", statistics="batch", buffers="own", correction=0)
    assert hash(EMA(0.02)) == hash(EMA(0.02)) and EMA(0.02) != EMA(0.01)


# ---- a module like any other, without gradient or chance


def test_no_graph_goes_through_the_teacher() -> None:
    student = small()
    teacher = EMA(0.01).follow(student)
    out = teacher(images().requires_grad_())
    assert not out.requires_grad and out.grad_fn is None
    assert not any(p.requires_grad for p in teacher.parameters())
    student(images()).sum().backward()
    teacher.update(student)
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())


@pytest.mark.parametrize(("statistics", "buffers_"), MODES)
def test_a_teacher_drops_nothing_out_and_draws_nothing(statistics: Any, buffers_: Any) -> None:
    state = torch.get_rng_state()
    student = small()
    teacher = EMA(0.5, statistics=statistics, buffers=buffers_).follow(student)
    x = images()
    first = teacher(x)
    teacher.update(student)
    assert torch.equal(teacher(x), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_train_is_the_mode_of_teaching_and_eval_that_of_predicting() -> None:
    student = small()
    teacher = EMA(0.5, buffers="student").follow(student)
    assert teacher.training
    assert [m.training for m in teacher.net] == [False, True] + [False] * 5
    assert teacher.eval() is teacher and not any(m.training for m in teacher.modules())
    assert teacher.train() is teacher
    assert [m.training for m in teacher.net] == [False, True] + [False] * 5
    assert not any(m.training for m in EMA(0.5, statistics="running", buffers="student").follow(student).net.modules())


def test_a_teacher_within_another_module_keeps_its_mode() -> None:
    both = nn.ModuleDict({"student": small(), "teacher": EMA(0.5).follow(small())})
    both.eval()
    assert not both["teacher"].training and not both["teacher"].net[1].training
    both.train()
    assert both["teacher"].net[1].training and not both["teacher"].net[5].training and both["student"][5].training


def test_a_student_in_evaluation_mode_has_a_teacher_that_teaches() -> None:
    teacher = EMA(0.5).follow(small().eval())
    assert teacher.net[1].training and not teacher.net[5].training


def test_evaluation_by_the_teacher_moves_nothing() -> None:
    teacher = EMA(0.5, buffers="own").follow(small()).eval()
    kept = {k: v.clone() for k, v in teacher.state_dict().items()}
    teacher(images())
    assert same(dict(teacher.state_dict()), kept)


def test_a_teacher_is_ready_and_hears_of_boundaries_without_moving() -> None:
    student = small()
    teacher = EMA(0.5).follow(student)
    kept = {k: v.clone() for k, v in teacher.state_dict().items()}
    move(student, 1)
    teacher.boundary(student)
    assert teacher.ready and same(dict(teacher.state_dict()), kept)


def test_a_teacher_moves_to_another_type_with_its_network() -> None:
    teacher = EMA(0.5).follow(small()).to(torch.float32)
    assert teacher(images().float()).dtype == torch.float32


RULES = [
    EMA(0.1),
    EMA(0.1, start="debiased", buffers="average"),
    EMA(0.1, start="zero", correction=3),
    EMA(0.1, statistics="running", buffers="student"),
]


def through_nothing(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in state.items()}


def through_safetensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return safetensors.torch.load(safetensors.torch.save(state))


@pytest.mark.parametrize("through", [through_nothing, through_safetensors])
@pytest.mark.parametrize("rule", RULES)
def test_a_restored_teacher_continues_bit_for_bit(rule: EMA, through: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """The number of updates is restored too: the debiased rate and the correction depend on it."""
    student = small()
    one = rule.follow(student)
    for i in range(4):
        move(student, i)
        one(images(i))
        one.update(student)
    state = dict(one.state_dict())
    assert all(isinstance(v, Tensor) for v in state.values())
    two = rule.follow(small(5))
    two.load_state_dict(through(state))
    assert two.updates == 4
    for i in range(4, 12):
        move(student, i)
        for teacher in (one, two):
            teacher(images(i))
            teacher.update(student)
        assert torch.equal(one(images()), two(images()))
    assert same(dict(one.state_dict()), dict(two.state_dict()))


# ---- SDP's teacher


def test_its_rates_are_those_of_the_specification() -> None:
    assert HypoExponential(100, 0.75).rates == pytest.approx((0.011620, 0.071713), abs=1e-6)
    assert HypoExponential(10_000, 0.75).rates == pytest.approx((1.17148e-4, 6.83173e-4), rel=1e-5)


def ages(rule: HypoExponential, steps: int) -> Tensor:
    """The weight of the student k steps back, for each k."""
    a1, a2 = rule.rates
    k = torch.arange(steps, dtype=f64)
    return a1 * a2 / (a2 - a1) * ((1 - a1) ** k - (1 - a2) ** k)


@pytest.mark.parametrize(("mu", "c2"), [(100.0, 0.75), (100.0, 0.5), (10.0, 0.6), (1000.0, 0.9)])
def test_the_ages_of_its_students_have_the_mean_and_the_variance_asked_for(mu: float, c2: float) -> None:
    w, age = ages(HypoExponential(mu, c2), 200_000), torch.arange(1, 200_001, dtype=f64)
    assert w[0] == 0 and w.sum().item() == pytest.approx(1, abs=1e-6)
    assert (w * age).sum().item() == pytest.approx(mu, rel=1e-6)
    assert (w * (age - mu) ** 2).sum().item() == pytest.approx(c2 * mu**2, rel=1e-6)


@pytest.mark.parametrize("start", ["copy", "zero", "debiased"])
@pytest.mark.parametrize(("mu", "c2"), [(100.0, 0.75), (5.0, 0.45)])
def test_it_is_the_weighted_sum_of_the_students_so_far(mu: float, c2: float, start: Any) -> None:
    """And the first: with what is left of its weight as a copy, w_t when both averages start at their rate times it."""
    student = small()
    rule = HypoExponential(mu, c2, start=start)
    path, teacher = [parameters(student)], rule.follow(student)
    for t in range(1, 13):
        move(student, t)
        path.append(parameters(student))
        teacher.update(student)
        w = ages(rule, t + 1).tolist()
        weights = [{"copy": 1 - sum(w[:t]), "zero": w[t], "debiased": 0.0}[start], *reversed(w[:t])]
        if start == "debiased" and t == 1:
            assert not teacher.ready  # the one student so far has no weight
            continue
        if start == "debiased":
            weights = [v / sum(weights) for v in weights]
        assert teacher.ready
        hand = [sum((v * theta for v, theta in zip(weights, thetas, strict=True))) for thetas in zip(*path, strict=True)]
        torch.testing.assert_close(parameters(teacher.net), hand, rtol=1e-9, atol=1e-10)


def test_the_present_student_has_no_weight_in_it() -> None:
    student, other = small(), small()
    one, two = (HypoExponential(20, 0.6).follow(s) for s in (student, other))
    for i in range(5):
        for s, teacher in ((student, one), (other, two)):
            move(s, i if s is student or i < 4 else 99)
            teacher.update(s)
    torch.testing.assert_close(parameters(one.net), parameters(two.net), rtol=1e-10, atol=1e-12)
    for s, teacher in ((student, one), (other, two)):
        teacher.update(s)
    assert not torch.allclose(one.net[0].weight, two.net[0].weight)


@pytest.mark.parametrize("start", ["copy", "debiased"])
def test_a_constant_student_has_a_constant_teacher_of_this_kind_too(start: Any) -> None:
    student = small()
    teacher = HypoExponential(start=start, buffers="average").follow(student)
    for _ in range(20):
        teacher.update(student)
        torch.testing.assert_close(parameters(teacher.net), parameters(student), rtol=1e-9, atol=1e-10)
        close(list(floating(teacher.net).values()), list(floating(student).values()))


def test_from_zero_it_starts_as_nothing_and_frozen_stays_so() -> None:
    student = small()
    teacher = HypoExponential(start="zero", frozen=True).follow(student)
    for i in range(3):
        assert all(p.abs().max() < 1e-12 for p in parameters(teacher.net))
        move(student, i)
        teacher.update(student)
    assert not teacher(images()).abs().max() > 1e-10


def test_its_average_buffers_follow_at_one_over_mu() -> None:
    student = small()
    teacher, hand = HypoExponential(mu=20, c2=0.6, buffers="average").follow(student), floating(student)
    for i in range(4):
        move(student, i)
        teacher.update(student)
        hand = {k: 0.95 * hand[k] + 0.05 * theirs for k, theirs in floating(student).items()}
        close(list(floating(teacher.net).values()), list(hand.values()))


@pytest.mark.parametrize(("mu", "c2"), [(10, 0.75), (10, 0.9), (100, 0.99), (100, 0.49), (2, 0.1), (1, 0.5), (0, 0.5)])
def test_a_mean_and_a_variance_without_two_rates_are_refused(mu: float, c2: float) -> None:
    """mu = 10 with c2 = .75 would take a rate of 1.22, with c2 = .9 divide by zero: both are in the paper's grid."""
    with pytest.raises(ValueError, match=f"mu={mu}"):
        HypoExponential(mu, c2)


@pytest.mark.parametrize(("mu", "c2"), [(10, 0.72), (10, 0.41), (3, 0.2), (100, 0.97), (1000, 0.5)])
def test_what_is_accepted_has_two_different_rates_up_to_one(mu: float, c2: float) -> None:
    a1, a2 = HypoExponential(mu, c2).rates
    assert 0 < a1 < a2 <= 1 + 1e-12


@pytest.mark.parametrize("decision", [{"start": "alpha"}, {"start": "x"}, {"statistics": "own"}, {"statistics": "running"}])
def test_a_decision_that_is_not_this_teachers_is_refused(decision: Any) -> None:
    ((name, value),) = decision.items()
    with pytest.raises(ValueError, match=f"{name}=.{value}"):
        HypoExponential(**decision)


@pytest.mark.parametrize("rule", [HypoExponential(20, 0.6), HypoExponential(20, 0.6, start="debiased", buffers="average")])
def test_restored_it_continues_bit_for_bit(rule: HypoExponential) -> None:
    student, two = small(), rule.follow(small(5))
    one = rule.follow(student)
    for i in range(8):
        move(student, i)
        one(images(i))
        one.update(student)
        if i == 3:
            two.load_state_dict(through_safetensors(dict(one.state_dict())))
        elif i > 3:
            two(images(i))
            two.update(student)
    assert same(dict(one.state_dict()), dict(two.state_dict())) and one.ready == two.ready
    assert not any(p.requires_grad for p in one.parameters())


# ---- a teacher that stands still


def test_a_snapshot_is_the_student_at_the_last_boundary_and_not_ready_before_the_first() -> None:
    student = small()
    teacher = Snapshot().follow(student)
    for task in range(2):
        move(student, 10 * task)
        kept = {k: v.clone() for k, v in student.state_dict().items()}
        assert teacher.ready == (task > 0)
        teacher.boundary(student)
        for step in range(3):
            move(student, 10 * task + step + 1)
            teacher.update(student)
        assert teacher.ready and same(dict(teacher.net.state_dict()), kept)


def test_a_restored_snapshot_is_the_same_and_as_ready() -> None:
    student = small()
    one, two = Snapshot().follow(student), Snapshot().follow(small(5))
    move(student, 1)
    one.boundary(student)
    two.load_state_dict(through_safetensors(dict(one.state_dict())))
    assert two.ready and torch.equal(one(images()), two(images()))


def test_a_snapshot_of_running_statistics_predicts_as_the_student_did() -> None:
    student = small()
    teacher = Snapshot(statistics="running").follow(student)
    move(student, 1)
    teacher.boundary(student)
    torch.testing.assert_close(teacher(images()), student.eval()(images()))


def test_unknown_statistics_of_a_snapshot_are_refused() -> None:
    with pytest.raises(ValueError, match="statistics='own'"):
        Snapshot(statistics="own")  # pyright: ignore[reportArgumentType]


# ---- the average of two networks


def test_the_average_is_of_parameters_with_the_students_buffers() -> None:
    student = small()
    teacher = EMA(0.3, buffers="own").follow(student)
    move(student, 1)
    teacher.update(student)
    teacher(images())
    mean = average(student, teacher)
    pairs = zip(parameters(student), parameters(teacher.net), strict=True)
    close(parameters(mean), [(a + b) / 2 for a, b in pairs])
    assert same(buffers(mean), buffers(student)) and not same(buffers(mean), buffers(teacher.net))


def test_averaging_a_network_with_itself_is_the_identity() -> None:
    net = small()
    move(net, 1)
    mean = average(net, net)
    assert all(torch.equal(a, b) for a, b in zip(parameters(mean), parameters(net), strict=True))
    assert same(buffers(mean), buffers(net))
    assert torch.equal(mean(images()), net.eval()(images()))


def test_averaging_leaves_both_networks_untouched_and_shares_nothing_with_them() -> None:
    student = small()
    teacher = EMA(0.3).follow(student)
    move(student, 1)
    kept = [{k: v.clone() for k, v in m.state_dict().items()} for m in (student, teacher)]
    modes = [[m.training for m in net.modules()] for net in (student, teacher)]
    mean = average(student, teacher)
    move(mean, 2)
    mean(images())
    assert same(dict(student.state_dict()), kept[0]) and same(dict(teacher.state_dict()), kept[1])
    assert [[m.training for m in net.modules()] for net in (student, teacher)] == modes


def test_the_average_predicts_in_evaluation_mode() -> None:
    mean = average(small(), EMA(0.3).follow(small()))
    assert not any(m.training for m in mean.modules())
    assert torch.equal(mean(images()), mean(images()))


def test_any_two_networks_of_one_kind_can_be_averaged() -> None:
    a, b = small(0), small(1)
    close(parameters(average(a, b)), [(p + q) / 2 for p, q in zip(parameters(a), parameters(b), strict=True)])


# ---- MKD in a loop of one's own: the four lines of the design


def toy(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four classes of noisy patterns."""
    patterns = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(99), dtype=f64)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=generator)
    return patterns[y] + 0.5 * torch.randn(n, 1, 6, 6, generator=generator, dtype=f64), y


def own_loop(model: nn.Module, steps: int = 200) -> tuple[nn.Module, nn.Module, list[float]]:
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    noise = torch.Generator().manual_seed(7)
    teacher = EMA(alpha=0.1).follow(model)
    for step in range(steps):
        x, y = toy(16, step)
        xa = x + 0.1 * torch.randn(x.shape, generator=noise, dtype=f64)
        logits = model(xa)
        loss = F.cross_entropy(logits, y)
        loss = loss + mkd_loss([model(x), logits], teacher(xa), alpha=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher.update(model)
        losses.append(F.cross_entropy(logits, y).item())
    return average(model, teacher), teacher, losses


def test_four_lines_train_a_convolutional_network_with_batch_norm_and_dropout() -> None:
    model = small()
    with seeded(3):
        predictor, teacher, losses = own_loop(model)
    x, y = toy(400, 1000)
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert (predictor(x).argmax(1) == y).double().mean() > 0.95
    assert (teacher(x).argmax(1) == y).double().mean() > 0.95
    assert model.training and all(p.requires_grad for p in model.parameters())


class Tied(nn.Module):
    """One matrix used twice, a counter, a table that is not saved, and a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.again, self.out = nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, 4)
        self.again.weight = self.inside.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.ones(36), persistent=False)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls += 1
        return scale * self.out(self.again(self.inside(x.flatten(1)).relu() * self.table).relu())


ANY: list[Callable[[], nn.Module]] = [
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4)),
    lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 16), nn.GELU(), nn.Linear(16, 4)),
    lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 4)),
    lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4), nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 4))
    ),
    lambda: nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(36, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(36, 4)),
    Tied,
]


@pytest.mark.parametrize("make", ANY)
@pytest.mark.parametrize("buffers_", ["own", "student", "average"])
def test_any_module_can_be_followed(make: Callable[[], nn.Module], buffers_: Any) -> None:
    with seeded(0):
        model = make().to(f64)
    teacher = EMA(0.5, buffers=buffers_).follow(model)
    before = parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = toy(8, 0)
    (F.cross_entropy(model(x), y) + mkd_loss(model(x), teacher(x))).backward()
    optimizer.step()
    teacher.update(model)
    after = parameters(model)
    close(parameters(teacher.net), [(a + b) / 2 for a, b in zip(before, after, strict=True)])
    close(parameters(average(model, teacher)), [(a + 3 * b) / 4 for a, b in zip(before, after, strict=True)])
    assert teacher(x).shape == (8, 4)


def test_arguments_and_what_comes_back_are_the_networks_own() -> None:
    with seeded(0):
        teacher = EMA(0.5).follow(Tied().to(f64))
    x, _ = toy(3, 0)
    torch.testing.assert_close(teacher(x, scale=2.0), 2 * teacher(x))

    class Pair(nn.Linear):
        def forward(self, input: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return input, {"h": super().forward(input)}

    first, more = EMA(0.5).follow(Pair(3, 2))(torch.ones(1, 3))
    assert first.shape == (1, 3) and more["h"].shape == (1, 2)


def test_tied_weights_stay_tied() -> None:
    teacher = EMA(0.5).follow(Tied())
    teacher.update(Tied())
    assert teacher.net.again.weight is teacher.net.inside.weight


def test_what_follow_makes_is_a_follower() -> None:
    teacher = EMA(0.5).follow(small())
    assert isinstance(teacher, Follower) and isinstance(teacher, nn.Module)
    assert set(teacher.state_dict()) == {f"net.{k}" for k in small().state_dict()} | {"_extra_state"}
