"""The losses against the equations written out in Python floats, and against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from onepass.losses import contrast, distillation, lambda_for, mkd_loss, proxy_contrast

f64 = torch.float64


def logits(seed: int, n: int = 5, classes: int = 7, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed), dtype=f64)


def softmax(z: list[float], tau: float) -> list[float]:
    e = [math.exp(v / tau) for v in z]
    return [v / sum(e) for v in e]


def naive(student: Tensor, teacher: Tensor, tau: float) -> list[float]:
    """tau^2 sum_c p_c log(p_c / q_c), one example after the other; p is the teacher's."""
    values = []
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        q, p = softmax(s, tau), softmax(t, tau)
        values.append(tau**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return values


# ---- distillation


@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0, 20.0])
def test_distillation_equals_its_equation_for_each_example(tau: float) -> None:
    s, t = logits(0), logits(1)
    kl = distillation(s, t, tau)
    assert kl.shape == (5,)
    assert kl.tolist() == pytest.approx(naive(s, t, tau), rel=1e-10)


def test_the_temperature_is_four_unless_said() -> None:
    s, t = logits(0), logits(1)
    assert torch.equal(distillation(s, t), distillation(s, t, 4.0))


def test_distillation_has_the_values_of_the_specification() -> None:
    student, teacher = torch.zeros(1, 2, dtype=f64, requires_grad=True), torch.tensor([[4.0, 0.0]], dtype=f64)
    kl = distillation(student, teacher, 4.0)
    (gradient,) = torch.autograd.grad(kl.sum(), student)
    assert (kl / 16).item() == pytest.approx(0.110944, abs=1e-6)
    assert kl.item() == pytest.approx(1.775105, abs=1e-6)
    assert gradient[0].tolist() == pytest.approx([-0.924234, 0.924234], abs=1e-6)


def test_the_reverse_divergence_is_another_number() -> None:
    reverse = distillation(torch.tensor([[4.0, 0.0]], dtype=f64), torch.zeros(1, 2, dtype=f64), 4.0)
    assert reverse.item() == pytest.approx(1.921832, abs=1e-6)


def test_an_example_does_not_depend_on_the_others() -> None:
    s, t = logits(0), logits(1)
    alone = torch.cat([distillation(s[i : i + 1], t[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(distillation(s, t), alone, rtol=1e-14, atol=0)


def test_distillation_is_zero_for_equal_logits_and_positive_otherwise() -> None:
    s, t = logits(0), logits(1)
    assert distillation(s, s).tolist() == [0.0] * 5
    assert (distillation(s, t) > 0).all()


def test_a_constant_added_to_all_logits_of_an_example_changes_nothing() -> None:
    s, t = logits(0), logits(1)
    shift = 10 * torch.arange(5, dtype=f64)[:, None]
    torch.testing.assert_close(distillation(s + shift, t - shift), distillation(s, t), rtol=1e-10, atol=1e-12)


def test_at_a_high_temperature_the_gradient_is_the_difference_of_centred_logits() -> None:
    """Hinton's limit, ((s - mean s) - (t - mean t)) / C: what the factor tau^2 is for."""
    s, t = logits(0).requires_grad_(), logits(1)
    (gradient,) = torch.autograd.grad(distillation(s, t, 1e5).sum(), s)
    limit = ((s - s.mean(1, keepdim=True)) - (t - t.mean(1, keepdim=True))) / 7
    torch.testing.assert_close(gradient, limit.detach(), rtol=1e-3, atol=1e-4)


def test_the_gradient_of_distillation_is_right() -> None:
    t = logits(1, 3, 4)
    assert torch.autograd.gradcheck(lambda s: distillation(s, t, 4.0), logits(0, 3, 4).requires_grad_())


def test_the_gradient_is_tau_times_the_difference_of_the_softmaxes() -> None:
    s, t, tau = logits(0).requires_grad_(), logits(1), 4.0
    (gradient,) = torch.autograd.grad(distillation(s, t, tau).sum(), s)
    hand = [
        [tau * (q - p) for q, p in zip(softmax(a, tau), softmax(b, tau), strict=True)]
        for a, b in zip(s.tolist(), t.tolist(), strict=True)
    ]
    torch.testing.assert_close(gradient, torch.tensor(hand, dtype=f64), rtol=1e-10, atol=1e-12)


def test_the_teacher_gets_no_gradient() -> None:
    s, t = logits(0).requires_grad_(), logits(1).requires_grad_()
    distillation(s, t).sum().backward()
    assert t.grad is None
    assert s.grad is not None and s.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_logits_give_a_finite_loss_and_gradient(dtype: torch.dtype) -> None:
    """p = (1, 0) against log q = (-2 * 1e4 / 4, 0): 16 * 5000, where the log of a softmax would be infinite."""
    student = torch.tensor([[-1e4, 1e4]], dtype=dtype, requires_grad=True)
    kl = distillation(student, torch.tensor([[1e4, -1e4]], dtype=dtype))
    kl.sum().backward()
    assert kl.item() == pytest.approx(80_000, rel=1e-2)
    assert student.grad is not None and student.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_float32(dtype: torch.dtype) -> None:
    s, t = logits(0).to(dtype), logits(1).to(dtype)
    kl = distillation(s, t)
    assert kl.dtype == torch.float32
    assert torch.equal(kl, distillation(s.float(), t.float()))


def test_double_precision_is_kept() -> None:
    assert distillation(logits(0), logits(1)).dtype == f64
    assert mkd_loss(logits(0), logits(1)).dtype == f64


@pytest.mark.parametrize("other", [(5, 6), (4, 7), (1, 7), (7,)])
def test_logits_of_other_shapes_are_refused_by_name(other: tuple[int, ...]) -> None:
    """Also those that would broadcast."""
    with pytest.raises(ValueError, match=r"\(5, 7\).*teacher's \(" + ", ".join(map(str, other))):
        distillation(logits(0), torch.zeros(other, dtype=f64))


# ---- the law of lambda


@pytest.mark.parametrize(("alpha", "weight"), [(0.01, 5.5), (0.1, 10.0), (0.001, 1.0), (1.0, 14.5)])
def test_lambda_has_the_values_of_the_paper(alpha: float, weight: float) -> None:
    assert lambda_for(alpha) == pytest.approx(weight, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.000599, 0.0005, 1e-4, 1e-300])
def test_an_alpha_without_positive_weight_is_refused_with_the_limit(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"above 0\.0006"):
        lambda_for(alpha)


def test_just_above_the_limit_the_weight_is_small_and_positive() -> None:
    assert 0 < lambda_for(0.00061) < 0.05


@pytest.mark.parametrize("alpha", [0.0, -0.01, 1.01, math.nan, math.inf])
def test_what_is_no_rate_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha={alpha}"):
        lambda_for(alpha)


# ---- the MKD loss


def mean(student: Tensor, teacher: Tensor, tau: float = 4.0) -> float:
    values = naive(student, teacher, tau)
    return sum(values) / len(values)


def test_one_view_of_each_is_lambda_times_the_mean_distillation() -> None:
    loss = mkd_loss(logits(0), logits(1))
    assert loss.shape == ()
    assert loss.item() == pytest.approx(5.5 * mean(logits(0), logits(1)), rel=1e-10)


def test_algorithm_1_is_two_student_views_against_one_teacher_view() -> None:
    raw, aug, target = logits(0), logits(1), logits(2)
    hand = 5.5 * 0.5 * (mean(raw, target) + mean(aug, target))
    assert mkd_loss([raw, aug], target).item() == pytest.approx(hand, rel=1e-10)
    assert mkd_loss((raw, aug), [target]).item() == pytest.approx(hand, rel=1e-10)


def test_equation_3_is_one_student_view_against_two_teacher_views() -> None:
    aug, t_raw, t_aug = logits(0), logits(1), logits(2)
    hand = 5.5 * 0.5 * (mean(aug, t_raw) + mean(aug, t_aug))
    assert mkd_loss(aug, [t_raw, t_aug]).item() == pytest.approx(hand, rel=1e-10)
    assert mkd_loss([aug], (t_raw, t_aug)).item() == pytest.approx(hand, rel=1e-10)


def test_as_many_views_of_each_are_paired_in_order() -> None:
    s, t = [logits(i) for i in range(3)], [logits(i) for i in range(3, 6)]
    hand = 5.5 * sum(mean(a, b) for a, b in zip(s, t, strict=True)) / 3
    assert mkd_loss(s, t).item() == pytest.approx(hand, rel=1e-10)


def test_three_student_views_share_one_teacher_view() -> None:
    s, t = [logits(i) for i in range(3)], logits(3)
    assert mkd_loss(s, t).item() == pytest.approx(5.5 * sum(mean(a, t) for a in s) / 3, rel=1e-10)


def test_each_pair_counts_the_same_whatever_its_number_of_examples() -> None:
    s, t = [logits(0, 2), logits(1, 8)], [logits(2, 2), logits(3, 8)]
    hand = 5.5 * 0.5 * (mean(s[0], t[0]) + mean(s[1], t[1]))
    assert mkd_loss(s, t).item() == pytest.approx(hand, rel=1e-10)


def test_equal_views_give_the_single_view_loss() -> None:
    s, t = logits(0), logits(1)
    torch.testing.assert_close(mkd_loss([s, s], t), mkd_loss(s, t), rtol=1e-14, atol=0)


def test_the_weight_follows_alpha_unless_it_is_given() -> None:
    s, t = logits(0), logits(1)
    kl = mean(s, t)
    assert mkd_loss(s, t, alpha=0.1).item() == pytest.approx(10 * kl, rel=1e-10)
    assert mkd_loss(s, t, alpha=0.1, weight=8.0).item() == pytest.approx(8 * kl, rel=1e-10)
    assert mkd_loss(s, t, alpha=1e-5, weight=0.01).item() == pytest.approx(0.01 * kl, rel=1e-10)
    with pytest.raises(ValueError, match="alpha=1e-05"):
        mkd_loss(s, t, alpha=1e-5)


def test_weight_zero_is_a_loss_of_zero_without_gradient() -> None:
    s = logits(0).requires_grad_()
    loss = mkd_loss(s, logits(1), weight=0.0)
    loss.backward()
    assert loss.item() == 0
    assert s.grad is not None and not s.grad.any()


def test_the_temperature_of_the_mkd_loss_is_that_of_its_terms() -> None:
    assert mkd_loss(logits(0), logits(1), weight=1.0, temperature=2.0).item() == pytest.approx(
        mean(logits(0), logits(1), 2.0), rel=1e-10
    )


def test_no_teacher_of_a_sequence_gets_a_gradient() -> None:
    s, t = [logits(0).requires_grad_(), logits(1).requires_grad_()], [logits(2).requires_grad_() for _ in range(2)]
    mkd_loss(s, t).backward()
    assert [x.grad for x in t] == [None, None]
    assert all(x.grad is not None and x.grad.any() for x in s)


def test_the_gradient_of_the_mkd_loss_is_right() -> None:
    t = logits(2, 2, 3)
    views = logits(0, 2, 3).requires_grad_(), logits(1, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda raw, aug: mkd_loss([raw, aug], t), views)


@pytest.mark.parametrize(("students", "teachers"), [(2, 3), (3, 2), (0, 1), (1, 0), (0, 0)])
def test_numbers_of_views_that_do_not_pair_are_refused(students: int, teachers: int) -> None:
    with pytest.raises(ValueError, match=f"{students} views of the student.*{teachers} of the teacher"):
        mkd_loss([logits(0)] * students, [logits(1)] * teachers)


def test_one_wrong_shape_among_the_views_is_refused() -> None:
    with pytest.raises(ValueError, match="entry by entry"):
        mkd_loss([logits(0), logits(1, 4)], logits(2))


# ---- PCR's loss


def naive_proxy_contrast(scores: Tensor, y: Tensor) -> list[float]:
    """-1/|P(i)| sum_{j in P(i)} ln [exp(s(i, y_j)) / sum_k exp(s(i, y_k))], i itself included."""
    labels, values = y.tolist(), []
    for s, own in zip(scores.tolist(), labels, strict=True):
        denominator = sum(math.exp(s[k]) for k in labels)
        positives = [math.log(math.exp(s[j]) / denominator) for j in labels if j == own]
        values.append(-sum(positives) / len(positives))
    return values


LABELS = torch.tensor([0, 3, 3, 5, 0, 3])


def test_proxy_contrast_equals_its_equation_for_each_example() -> None:
    loss = proxy_contrast(logits(0, 6), LABELS)
    assert loss.shape == (6,) and loss.tolist() == pytest.approx(naive_proxy_contrast(logits(0, 6), LABELS), rel=1e-10)


def test_proxy_contrast_has_the_value_of_the_specification() -> None:
    """Cosines of (1,0), (0,1), (0,2) to the proxies (3,0), (0,5); labels 0, 0, 1."""
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=f64)
    assert proxy_contrast(scores, torch.tensor([0, 0, 1])).mean().item() == pytest.approx(0.988295, abs=1e-6)


def test_its_gradient_is_that_of_the_cross_entropy_over_the_classes_present_and_their_counts() -> None:
    s, present = logits(0, 6).requires_grad_(), [0, 3, 5]
    shifted = s[:, present] + torch.tensor([2.0, 3.0, 1.0], dtype=f64).log()
    target = torch.tensor([present.index(int(y)) for y in LABELS])
    reference = torch.nn.functional.cross_entropy(shifted, target, reduction="none")
    loss = proxy_contrast(s, LABELS)
    (ours,), (theirs,) = (torch.autograd.grad(x.mean(), s, retain_graph=True) for x in (loss, reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)
    assert not ours[:, [1, 2, 4, 6]].any() and ours[:, present].all()
    log_n = torch.tensor([2.0, 3.0, 3.0, 1.0, 2.0, 3.0], dtype=f64).log()
    torch.testing.assert_close(loss - reference, log_n, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_proxy_contrast_is_right() -> None:
    assert torch.autograd.gradcheck(lambda s: proxy_contrast(s, LABELS), logits(0, 6).requires_grad_())


def test_every_example_twice_raises_proxy_contrast_by_ln_2() -> None:
    s = logits(0, 6)
    once, twice = proxy_contrast(s, LABELS), proxy_contrast(torch.cat([s, s]), torch.cat([LABELS, LABELS]))
    torch.testing.assert_close(twice, torch.cat([once, once]) + math.log(2), rtol=1e-10, atol=1e-12)


def test_one_class_alone_is_contrasted_with_nothing_but_its_number() -> None:
    loss = proxy_contrast(logits(0, 4), torch.tensor([2, 2, 2, 2]))
    assert loss.tolist() == pytest.approx([math.log(4)] * 4, rel=1e-10)


# ---- OCM's loss


def naive_contrast(similarity: Tensor, y: Tensor, tau: float, pairs: bool) -> list[float]:
    labels, n, values = y.tolist(), len(y), []
    for i, row in enumerate(similarity.tolist()):
        e = [math.exp((s - max(row)) / tau) for s in row]
        if pairs:
            e[i] = 0.0
        ln = [-math.log(v / (sum(e) + 1e-8) + 1e-8) for v in e]
        own = [ln[j] for j in range(n) if labels[j] == labels[i]]
        mean = sum(own) / len(own)
        values.append(ln[(i + n // 2) % n] + 2 * mean if pairs else mean)
    return values


@pytest.mark.parametrize("tau", [0.07, 1.0])
@pytest.mark.parametrize("pairs", [False, True])
def test_contrast_equals_its_equation_for_each_example(tau: float, pairs: bool) -> None:
    """Of unit vectors against others, so that the similarity is not symmetric; two views of four images."""
    u, v = (torch.nn.functional.normalize(logits(i, 8, 5), dim=1) for i in range(2))
    y = torch.tensor([0, 1, 0, 2] * 2)
    loss = contrast(u @ v.T, y, tau, pairs=pairs)
    assert loss.shape == (8,) and loss.tolist() == pytest.approx(naive_contrast(u @ v.T, y, tau, pairs), rel=1e-9)


def test_contrast_has_the_values_of_the_specification() -> None:
    s, y = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=f64, requires_grad=True), torch.zeros(2, dtype=torch.int64)
    assert contrast(s, y, 1.0).mean().item() == pytest.approx(0.72408, abs=1e-5)
    loss = contrast(s, y, 1.0, pairs=True).mean()
    (gradient,) = torch.autograd.grad(loss, s)
    assert loss.item() == pytest.approx(18.4207, abs=1e-4) and gradient.abs().max() < 1e-6


def test_an_image_is_no_rival_of_itself_among_pairs() -> None:
    s = logits(0, 8, 8, scale=0.5).requires_grad_()
    (gradient,) = torch.autograd.grad(contrast(s, torch.tensor([0, 1, 2, 3] * 2), 1.0, pairs=True).sum(), s)
    assert not gradient.diagonal().any() and gradient.sum(1).abs().max() < 1e-6


@pytest.mark.parametrize("pairs", [False, True])
def test_contrast_of_large_similarities_is_finite(pairs: bool) -> None:
    s = (100 * logits(0, 8, 8)).float().requires_grad_()
    loss = contrast(s, torch.tensor([0, 1, 0, 2] * 2), 0.07, pairs=pairs)
    loss.sum().backward()
    assert loss.isfinite().all() and s.grad is not None and s.grad.isfinite().all()
