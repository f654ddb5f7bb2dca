"""Divergences to a teacher, whole and on kept ids."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.domain.distillation.coarse import saturated, valid_topk, with_tail
from hexpo.domain.distillation.divergences import from_logits, jensen_shannon, kl
from hexpo.domain.distillation.losses import (
    forward_kl,
    jsd,
    reverse_kl,
    skew_kl,
    skew_reverse_kl,
    topk_measures,
)
from hexpo.domain.distillation.sampled import sampled
from hexpo.domain.errors import WrongColumn, WrongValue

TEACHER = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
STUDENTS = [
    ([0.25, 0.25, 0.25, 0.25], 0.401270, -0.183258, 0.218012, 0.244174),
    ([0.7, 0.25, 0.03, 0.02], -0.113540, 0.277259, 0.163719, 0.173691),
]
LOSSES = [forward_kl, reverse_kl, jsd, skew_kl, skew_reverse_kl]


def distribution(seed: int, *, size: int = 6, rows: int = 3, peak: float = 2.0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return (peak * torch.randn(rows, size, generator=noise, dtype=torch.float64)).log_softmax(-1)


@pytest.mark.parametrize(("student", "kept", "tail", "value", "full"), STUDENTS)
def test_the_tail_makes_a_true_lower_bound(
    student: list[float], kept: float, tail: float, value: float, full: float
) -> None:
    """O24: kept part, tail part, value and full KL."""
    p, q = TEACHER[:, :2], torch.tensor([student])[:, :2]
    parts = (p * (p / q).log()).sum().item(), 0.2 * math.log(0.2 / (1 - q.sum().item()))
    assert parts == pytest.approx((kept, tail), abs=1e-5)
    columns: dict[str, Any] = {"teacher_topk_T": p.log(), "policy_topk_T": q.log()}
    assert forward_kl(**columns).item() == pytest.approx(value, abs=1e-5)
    whole: dict[str, Any] = {
        "teacher_topk_T": TEACHER.log(),
        "policy_topk_T": torch.tensor([student]).log(),
    }
    assert forward_kl(**whole).item() == pytest.approx(full, abs=1e-5)
    assert forward_kl(**whole, tail=False).item() == pytest.approx(full, abs=1e-5)
    assert 0 < value < full


def test_the_gradient_reaches_the_tail() -> None:
    """O24: (+0.2, -0.05, -0.09, -0.06) to the student's logits."""
    logits = torch.tensor([STUDENTS[1][0]]).log().requires_grad_()
    terms_T = forward_kl(
        policy_topk_T=logits.log_softmax(-1)[:, :2], teacher_topk_T=TEACHER[:, :2].log()
    )
    terms_T.sum().backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([0.2, -0.05, -0.09, -0.06], abs=1e-5)


def test_a_student_whose_whole_mass_is_kept_gives_a_finite_counted_number() -> None:
    """O24: bounded, and its gradient too."""
    student = torch.tensor([[0.6, 0.4]]).log().requires_grad_()
    columns: dict[str, Any] = {"policy_topk_T": student, "teacher_topk_T": TEACHER[:, :2].log()}
    terms_T = forward_kl(**columns)
    terms_T.sum().backward()
    bound = 0.5 * math.log(0.5 / 0.6) + 0.3 * math.log(0.3 / 0.4) + 0.2 * math.log(0.2 / 1.2e-7)
    assert terms_T.item() == pytest.approx(bound, abs=1e-2)
    assert student.grad is not None
    assert student.grad.isfinite().all()
    assert saturated(student.detach()).tolist() == [True]
    assert topk_measures(**columns)["saturated_share"].tolist() == [1.0]


@pytest.mark.parametrize("loss", LOSSES)
@given(first=st.integers(0, 9999), second=st.integers(0, 9999), kept=st.integers(1, 6))
def test_a_coarse_divergence_lies_between_zero_and_the_full_one(
    loss: Any, first: int, second: int, kept: int
) -> None:
    """S1: without clamping; equal to the full one where every id is kept."""
    teacher_TV, student_TV = distribution(first), distribution(second)
    full_T = loss(policy_topk_T=student_TV, teacher_topk_T=teacher_TV, tail=False)
    coarse_T = loss(policy_topk_T=student_TV[:, :kept], teacher_topk_T=teacher_TV[:, :kept])
    assert (coarse_T >= -1e-12).all()
    assert (coarse_T <= full_T + 1e-9).all()
    if kept == 6:
        torch.testing.assert_close(coarse_T, full_T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_divergence_is_zero_only_between_equals(loss: Any) -> None:
    """S1: on the kept ids and the tail together."""
    same = distribution(3)[:, :2]
    equal_T = loss(policy_topk_T=same, teacher_topk_T=same)
    torch.testing.assert_close(equal_T, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-14)
    other = loss(policy_topk_T=distribution(4)[:, :2], teacher_topk_T=same)
    assert (other > 1e-4).all()


@given(st.integers(0, 9999))
def test_jensen_shannon_at_a_half_and_near_its_ends(seed: int) -> None:
    """S2: half of KL(T || M) and KL(S || M) at 0.5; over beta it tends to KL(T || S)."""
    teacher, student = distribution(seed, peak=1.0), distribution(seed + 1, peak=1.0)
    middle = (0.5 * teacher.exp() + 0.5 * student.exp()).log()
    half = 0.5 * kl(teacher, middle) + 0.5 * kl(student, middle)
    torch.testing.assert_close(jensen_shannon(teacher, student, beta=0.5), half)
    small = 1e-6
    for value, end in (
        (jensen_shannon(teacher, student, beta=small), kl(teacher, student)),
        (jensen_shannon(teacher, student, beta=1 - small), kl(student, teacher)),
    ):
        torch.testing.assert_close(value / small, end, rtol=1e-3, atol=1e-6)


def test_skewed_divergences_are_kls_to_a_mixture() -> None:
    """Y1: KL(T || aT + (1-a)S) and KL(S || (1-a)T + aS)."""
    teacher, student = distribution(1), distribution(2)
    columns: dict[str, Any] = {"policy_topk_T": student, "teacher_topk_T": teacher, "tail": False}
    for loss, first, mixed in (
        (skew_kl, teacher, 0.3 * teacher.exp() + 0.7 * student.exp()),
        (skew_reverse_kl, student, 0.7 * teacher.exp() + 0.3 * student.exp()),
    ):
        torch.testing.assert_close(loss(**columns, alpha=0.3), kl(first, mixed.log()))


@pytest.mark.parametrize(
    ("loss", "option"), [(jsd, "beta"), (skew_kl, "alpha"), (skew_reverse_kl, "alpha")]
)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.5])
def test_settings_that_make_the_loss_vanish_are_refused(
    loss: Any, option: str, value: float
) -> None:
    """S2, M4."""
    with pytest.raises(WrongValue, match=option):
        loss(policy_topk_T=torch.zeros(0, 2), teacher_topk_T=torch.zeros(0, 2), **{option: value})


def test_the_temperature_divides_the_logits_of_both() -> None:
    """S3: one meaning, and nothing is multiplied back."""
    logits = torch.tensor([[1.0, -1.0, 0.5]])
    torch.testing.assert_close(from_logits(logits, temperature=2.0), (logits / 2).log_softmax(-1))
    with pytest.raises(WrongValue, match="temperature"):
        from_logits(logits, temperature=0.0)


def test_outcomes_of_no_probability_add_nothing() -> None:
    """A filtered teacher has log-prob minus infinity outside its support."""
    teacher = torch.tensor([[0.5, 0.5, 0.0]]).log()
    student = torch.tensor([[0.4, 0.4, 0.2]]).log()
    value = forward_kl(policy_topk_T=student, teacher_topk_T=teacher, tail=False)
    assert value.item() == pytest.approx(math.log(0.5 / 0.4), abs=1e-6)


@pytest.mark.parametrize(
    ("row", "is_valid"),
    [
        ([-0.5, -1.5], True),
        ([0.0, -30.0], True),
        ([-0.1, -0.1], False),
        ([float("nan"), -1.0], False),
        ([-float("inf"), -1.0], False),
        ([0.2, -1.0], False),
    ],
)
def test_an_answer_that_is_no_distribution_trains_nothing(row: list[float], is_valid: bool) -> None:
    """A teacher with too few, too many or no log-probs: invalid, never a filled number."""
    assert valid_topk(torch.tensor([row])).tolist() == [is_valid]


def test_the_teacher_is_a_constant_and_its_columns_must_fit() -> None:
    """Only the student learns."""
    teacher = distribution(1)[:, :2].requires_grad_()
    assert not forward_kl(
        policy_topk_T=distribution(2)[:, :2], teacher_topk_T=teacher
    ).requires_grad
    with pytest.raises(WrongColumn, match="policy_topk"):
        forward_kl(policy_topk_T=distribution(2)[:, :3], teacher_topk_T=teacher)
    assert with_tail(torch.tensor([[0.5, 0.3]]).log()).exp().tolist() == [
        pytest.approx([0.5, 0.3, 0.2])
    ]


@pytest.mark.parametrize("estimator", ["k2", "k1+", "k3+"])
def test_sampled_estimates_have_the_gradient_of_the_reverse_kl(estimator: str) -> None:
    """C8: enumerated over three tokens, weighted by the student."""
    student = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    teacher = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    policy_T = student.log_softmax(-1)
    terms_T = sampled(policy_T=policy_T, teacher_T=teacher, estimator=estimator)
    (policy_T.detach().exp() * terms_T).sum().backward()
    assert student.grad is not None
    assert student.grad.tolist() == pytest.approx([0.320702, -0.082466, -0.238236], abs=1e-5)


def test_an_unknown_estimator_is_refused_with_the_nearest_names() -> None:
    """M1."""
    with pytest.raises(WrongValue, match="k3"):
        sampled(policy_T=torch.zeros(1), teacher_T=torch.zeros(1), estimator="k33")


def test_kept_masses_are_summed_over_the_kept_ids_of_each_token() -> None:
    """S1: per token, of teacher and student; a tail exactly at the precision has no gradient."""
    teacher_TK = torch.tensor([[0.5, 0.25], [0.125, 0.5], [0.25, 0.25]])
    policy_TK = torch.tensor([[0.25, 0.25], [0.5, 0.375], [0.5, 0.125]])
    found = topk_measures(policy_topk_T=policy_TK.log(), teacher_topk_T=teacher_TK.log())
    assert found["teacher_kept_mass"].tolist() == pytest.approx([0.75, 0.625, 0.5])
    assert found["policy_kept_mass"].tolist() == pytest.approx([0.5, 0.875, 0.625])
    at_floor = torch.full((1, 1), -(2.0**-52), dtype=torch.float64)
    assert saturated(at_floor).tolist() == [True]
    assert saturated(2 * at_floor).tolist() == [False]
