"""Losses whose weight is a constant, and the gates in front of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hexpo.domain.losses.covariance import clip_cov, clip_cov_measures, kl_cov, kl_cov_measures
from hexpo.domain.losses.dppo import dppo_kl, dppo_tv
from hexpo.domain.losses.entropy import entropy
from hexpo.domain.losses.reinforce import aipo, aipo_measures, cispo, reinforce
from hexpo.domain.losses.sapo import sapo, sapo_measures
from hexpo.domain.losses.supervised import mtp, nll, observation_nll
from hexpo.domain.losses.value import value, value_measures

ONE = torch.ones(1)


def gradient_of(terms: torch.Tensor, leaf: torch.Tensor) -> list[float]:
    terms.sum().backward()
    assert leaf.grad is not None
    return leaf.grad.tolist()


@pytest.mark.parametrize(("cap", "gradient"), [(2.0, -1.648721), (1.5, -1.5)])
def test_an_importance_weight_carries_no_gradient(cap: float, gradient: float) -> None:
    """O08, C5: with gradient through w the derivative to the log-prob would be 0."""
    policy_T = torch.tensor([-1.0], requires_grad=True)
    columns: dict[str, Any] = {
        "policy_T": policy_T,
        "behaviour_T": torch.tensor([-1.5]),
        "advantage_T": torch.ones(1),
    }
    assert gradient_of(aipo(**columns, truncation=cap), policy_T) == pytest.approx(
        [gradient], abs=1e-6
    )
    measured = aipo_measures(**columns, truncation=cap)
    assert measured["clip_share"].item() == float(cap == 1.5)


def test_cispo_keeps_a_gradient_beyond_the_clip() -> None:
    """Y1: low is off by default, and the bound is 1 + high."""
    policy_T = torch.tensor([math.log(9.0), math.log(0.01)], requires_grad=True)
    terms_T = cispo(policy_T=policy_T, old_T=torch.zeros(2), advantage_T=torch.ones(2))
    assert gradient_of(terms_T, policy_T) == pytest.approx([-5.0, -0.01], rel=1e-5)


def test_reinforce_has_the_advantage_as_gradient() -> None:
    """algorithms.md: -A l."""
    policy_T = torch.tensor([-1.0, -2.0], requires_grad=True)
    terms_T = reinforce(policy_T=policy_T, advantage_T=torch.tensor([2.0, -3.0]))
    assert gradient_of(terms_T, policy_T) == [-2.0, 3.0]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_saposs_gradient_at_ratio_one_is_ppos(advantage: float) -> None:
    """SAPO: 4 / tau makes the slope of the gate 1 at r = 1."""
    policy_T = torch.tensor([-1.0], requires_grad=True)
    terms_T = sapo(
        policy_T=policy_T, old_T=torch.tensor([-1.0]), advantage_T=torch.tensor([advantage])
    )
    assert gradient_of(terms_T, policy_T) == pytest.approx([-advantage], rel=1e-6)


@pytest.mark.parametrize(
    ("p_old", "p", "advantage", "is_open"),
    [
        (0.3, 0.55, 1.0, True),
        (0.3, 0.65, 1.0, False),
        (0.3, 0.65, -1.0, True),
        (0.6, 0.45, -1.0, True),
        (0.6, 0.35, -1.0, False),
        (0.6, 0.35, 1.0, True),
    ],
)
def test_the_total_variation_gate_closes_in_the_direction_of_the_pull(
    p_old: float, p: float, advantage: float, is_open: bool
) -> None:
    """Y1: p - p_old <= high for A > 0, >= -low otherwise."""
    policy_T = torch.tensor([math.log(p)], requires_grad=True)
    terms_T = dppo_tv(
        policy_T=policy_T,
        old_T=torch.tensor([math.log(p_old)]),
        advantage_T=torch.tensor([advantage]),
        gate_low=0.2,
        gate_high=0.3,
    )
    want = -advantage * p / p_old if is_open else 0.0
    assert gradient_of(terms_T, policy_T) == pytest.approx([want], rel=1e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.9, 1.0])
def test_the_kl_gate_compares_two_outcomes(p: float, advantage: float) -> None:
    """Y1: k = p_old ln(p_old / p) + (1 - p_old) ln((1 - p_old) / (1 - p))."""
    p_old, bound = 0.4, 0.15
    policy_T = torch.tensor([math.log(p)], requires_grad=True)
    terms_T = dppo_kl(
        policy_T=policy_T,
        old_T=torch.tensor([math.log(p_old)]),
        advantage_T=torch.tensor([advantage]),
        gate_low=bound,
        gate_high=bound,
    )
    rest = max(1 - p, 1e-7)
    k = p_old * math.log(p_old / p) + (1 - p_old) * math.log((1 - p_old) / rest)
    away = p > p_old if advantage > 0 else p < p_old
    want = 0.0 if away and k > bound else -advantage * p / p_old
    assert gradient_of(terms_T, policy_T) == pytest.approx([want], rel=1e-5)


def test_dppo_truncates_the_weight() -> None:
    """Y1: c = 20."""
    policy_T = torch.tensor([math.log(0.1)], requires_grad=True)
    terms_T = dppo_tv(
        policy_T=policy_T, old_T=torch.tensor([math.log(0.001)]), advantage_T=torch.ones(1)
    )
    assert gradient_of(terms_T, policy_T) == pytest.approx([-20.0])


def test_clip_cov_zeroes_the_drawn_tokens_and_kl_cov_adds_a_penalty() -> None:
    """X6: the choice comes in as a column and is a constant."""
    chosen_T = torch.tensor([False, True])
    columns: dict[str, Any] = {
        "old_T": torch.zeros(2),
        "advantage_T": torch.ones(2),
        "covariant_T": chosen_T,
    }
    policy_T = torch.tensor([0.1, 0.1], requires_grad=True)
    ratio = math.exp(0.1)
    terms_T = clip_cov(policy_T=policy_T, **columns)
    assert terms_T.tolist() == pytest.approx([-ratio, 0.0])
    assert gradient_of(terms_T, policy_T) == pytest.approx([-ratio, 0.0])
    policy_T = torch.tensor([0.1, 0.1], requires_grad=True)
    terms_T = kl_cov(policy_T=policy_T, **columns, coefficient=0.5)
    assert terms_T.tolist() == pytest.approx([-ratio, -ratio + 0.05])
    assert gradient_of(terms_T, policy_T) == pytest.approx([-ratio, -ratio + 0.5])


def test_likelihood_terms_and_the_entropy_bonus_are_what_they_say() -> None:
    """algorithms.md: -l, weighted by role for observations; a positive coefficient is a bonus."""
    assert nll(policy_T=-ONE).item() == 1.0
    assert mtp(mtp_T=-2 * ONE).item() == 2.0
    assert observation_nll(policy_T=-2 * ONE, observation_weight_T=0.25 * ONE).item() == 0.5
    entropy_T = torch.tensor([1.5], requires_grad=True)
    assert gradient_of(entropy(entropy_T=entropy_T), entropy_T) == [-1.0]


def test_the_value_loss_takes_the_worse_of_clipped_and_unclipped() -> None:
    """algorithms.md: 1/2 max of the two squares; a prediction that left its clip has no pull."""
    prediction_T = torch.tensor([1.0, 2.0, 0.2], requires_grad=True)
    columns: dict[str, Any] = {
        "prediction_T": prediction_T,
        "value_T": torch.tensor([0.0, 1.9, 0.0]),
        "return_T": torch.tensor([1.0, 1.0, 1.0]),
    }
    terms_T = value(**columns, clip=0.5)
    assert terms_T.tolist() == pytest.approx([0.125, 0.5, 0.32])
    assert gradient_of(terms_T, prediction_T) == pytest.approx([0.0, 1.0, -0.8])
    assert value_measures(**columns, clip=0.5)["clip_share"].tolist() == [1.0, 0.0, 0.0]
    assert value(**columns, clip=None).tolist() == pytest.approx([0.0, 0.5, 0.32])


def test_a_weight_at_its_bound_is_not_truncated() -> None:
    """C7: the share counts what the bound changes."""
    columns: dict[str, Any] = {
        "policy_T": torch.zeros(2),
        "behaviour_T": torch.tensor([0.0, -0.5]),
        "advantage_T": torch.ones(2),
    }
    assert aipo_measures(**columns, truncation=1.0)["clip_share"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("measures", [clip_cov_measures, kl_cov_measures])
def test_covariance_losses_measure_ratio_kl_and_the_chosen(measures: Any) -> None:
    """E: KL(old || policy) by k1 is old - policy."""
    found = measures(
        policy_T=torch.tensor([-1.0, -3.0]),
        old_T=torch.tensor([-1.5, -2.75]),
        advantage_T=torch.ones(2),
        covariant_T=torch.tensor([False, True]),
    )
    assert found["approximate_kl"].tolist() == [-0.5, 0.25]
    assert found["ratio"].tolist() == pytest.approx([math.exp(0.5), math.exp(-0.25)])
    assert found["covariant_share"].tolist() == [0.0, 1.0]


def test_sapo_measures_the_ratio_and_how_far_the_policy_moved_away() -> None:
    """rho = exp(l - l_old); KL(old || policy) by k1 is l_old - l."""
    measured = sapo_measures(
        policy_T=torch.tensor([-1.0, -2.0]),
        old_T=torch.tensor([-1.5, -1.0]),
        advantage_T=torch.tensor([1.0, -1.0]),
    )
    torch.testing.assert_close(measured["ratio"], torch.tensor([0.5, -1.0]).exp())
    torch.testing.assert_close(measured["approximate_kl"], torch.tensor([-0.5, 1.0]))
