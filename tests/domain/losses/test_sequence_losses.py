"""Losses with one ratio a row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hexpo.domain.errors import WrongValue
from hexpo.domain.losses.gspo import (
    geo_mean,
    geo_mean_measures,
    gspo,
    gspo_measures,
    gspo_token,
    luspo,
)
from hexpo.domain.losses.vespo import vespo

OWNER_T = torch.tensor([0, 0, 1, 1, 1])
LOG_RATIO_T = torch.tensor([0.2, 0.4, -0.1, -0.1, -0.1])
ADVANTAGE_S = torch.tensor([1.0, -1.0])
WIDE: dict[str, Any] = {"clip_low": 1.0, "clip_high": 100.0}


def columns() -> dict[str, Any]:
    return {
        "policy_T": LOG_RATIO_T.clone().requires_grad_(),
        "old_T": torch.zeros(5),
        "owner_T": OWNER_T,
        "advantage_S": ADVANTAGE_S,
    }


def test_the_sequence_ratio_is_one_number_a_row() -> None:
    """O01, A8: ratios e^0.3 and e^-0.1; loss and gradient of their mean."""
    given = columns()
    loss = gspo(**given, **WIDE).mean()
    loss.backward()
    assert loss.item() == pytest.approx(-0.222511, abs=1e-6)
    gradient = given["policy_T"].grad
    assert gradient is not None
    want = [-0.337465] * 2 + [0.150806] * 3  # e^0.3 / 2 / 2, e^-0.1 / 2 / 3
    assert gradient.tolist() == pytest.approx(want, abs=1e-6)


def test_length_times_ratio_is_another_loss_by_its_own_name() -> None:
    """O01: multiplying by length first gives +0.007397; luspo is that, as X7 says."""
    loss = luspo(**columns(), **WIDE).mean()
    assert loss.item() == pytest.approx((-2 * math.exp(0.3) + 3 * math.exp(-0.1)) / 2, abs=1e-6)
    assert loss.item() == pytest.approx(0.007397, abs=1e-6)


def test_per_token_gspo_has_the_gradient_of_gspo_when_advantages_are_the_rows() -> None:
    """GSPO's paper, section on GSPO-token."""
    by_row, by_token = columns(), columns()
    gspo(**by_row, clip_low=0.2, clip_high=0.28).sum().backward()
    advantage_S = by_token.pop("advantage_S")
    terms_T = gspo_token(
        **by_token,
        advantage_T=advantage_S[OWNER_T],
        length_S=torch.tensor([2, 3]),
        clip_low=0.2,
        clip_high=0.28,
    )
    (terms_T / torch.tensor([2, 3])[OWNER_T]).sum().backward()
    torch.testing.assert_close(by_row["policy_T"].grad, by_token["policy_T"].grad)


def test_a_row_without_a_token_disturbs_no_other() -> None:
    """A4: it has ratio 1 and weighs 0."""
    given = columns() | {"advantage_S": torch.tensor([1.0, -1.0, 5.0])}
    terms_S = gspo(**given, **WIDE)
    assert terms_S[:2].equal(gspo(**columns(), **WIDE))
    assert gspo_measures(**given, **WIDE)["ratio"][2].item() == 1.0


def test_geo_mean_clips_in_log_space_by_the_sign_of_the_advantage() -> None:
    """Y1: d' = s min(s d, s clip(d, -low, high)); a good row is held above, a bad one below."""
    given = columns() | {"old_T": torch.zeros(5)}
    terms_S = geo_mean(**given, clip_low=0.05, clip_high=0.3)
    assert terms_S.tolist() == pytest.approx([-math.exp((0.2 + 0.3) / 2), math.exp(-0.05)])


@pytest.mark.parametrize(
    ("advantage", "power", "decay"), [(1.0, 2.0, 3.0), (0.0, 2.0, 3.0), (-1.0, 3.0, 2.0)]
)
def test_vespo_weighs_the_product_of_a_rows_ratios(
    advantage: float, power: float, decay: float
) -> None:
    """algorithms.md: phi(w) = w^k exp(lam (1 - w)), a constant; phi(1) = 1."""
    policy_T = torch.tensor([-0.5, -0.4, -1.0], requires_grad=True)
    terms_T = vespo(
        policy_T=policy_T,
        old_T=torch.tensor([-0.7, -0.7, -1.0]),
        owner_T=torch.tensor([0, 0, 1]),
        advantage_T=torch.full((3,), advantage),
        length_S=torch.tensor([2, 1]),
    )
    terms_T.sum().backward()
    ratio = math.exp(0.5)
    weight = ratio**power * math.exp(decay * (1 - ratio))
    assert policy_T.grad is not None
    want = [-weight * advantage] * 2 + [-advantage]
    assert policy_T.grad.tolist() == pytest.approx(want, rel=1e-5)
    assert terms_T[0].item() == pytest.approx(0.5 * weight * advantage, rel=1e-5)


@pytest.mark.parametrize(("drift", "bounded"), [(-10.0, -10.0), (-399.0, math.log(1e-8))])
def test_vespo_bounds_the_product_from_below(drift: float, bounded: float) -> None:
    """algorithms.md: log w lies in [ln 1e-8, 20]."""
    terms_T = vespo(
        policy_T=torch.tensor([drift - 1.0], dtype=torch.float64),
        old_T=torch.tensor([-1.0], dtype=torch.float64),
        owner_T=torch.tensor([0]),
        advantage_T=torch.ones(1, dtype=torch.float64),
        length_S=torch.tensor([1]),
    )
    weight = math.exp(2 * bounded + 3 * (1 - math.exp(bounded)))
    assert terms_T.item() == pytest.approx(weight * (1.0 - drift), rel=1e-6, abs=0)


def test_vespo_stays_finite_for_any_product() -> None:
    """C9: log w lies in [ln 1e-8, 20]."""
    terms_T = vespo(
        policy_T=torch.tensor([-1.0, -400.0]),
        old_T=torch.tensor([-400.0, -1.0]),
        owner_T=torch.tensor([0, 1]),
        advantage_T=torch.tensor([1.0, -1.0]),
        length_S=torch.tensor([1, 1]),
    )
    assert terms_T.isfinite().all()


@pytest.mark.parametrize(
    ("bounds", "shares"),
    [((0.05, 0.3), [0.5, 1.0]), ((0.1, 0.1), [1.0, 0.0]), ((0.1, 0.4), [0, 0])],
)
def test_geo_mean_counts_the_tokens_that_it_holds(
    bounds: tuple[float, float], shares: list[float]
) -> None:
    """C7: strictly beyond the bound, and in the direction of the row's advantage only."""
    low, high = bounds
    measured = geo_mean_measures(**columns(), clip_low=low, clip_high=high)
    assert measured["clip_share"].tolist() == shares
    swapped = columns() | {"advantage_S": -ADVANTAGE_S}
    assert geo_mean_measures(**swapped, **WIDE)["clip_share"].tolist() == [0.0, 0.0]
    narrow = geo_mean_measures(**swapped, clip_low=0.0, clip_high=0.0)
    assert narrow["clip_share"].tolist() == [0.0, 0.0]
    assert measured["approximate_kl"].tolist() == pytest.approx([-0.3, 0.1])


@pytest.mark.parametrize("scale", [1e-3, 0.0, 7.0])
def test_only_the_sign_of_an_advantage_says_what_geo_mean_holds(scale: float) -> None:
    """C7: a small advantage is clipped like a large one; one of 0 pulls nowhere."""
    scaled = columns() | {"advantage_S": scale * ADVANTAGE_S}
    measured = geo_mean_measures(**scaled, clip_low=0.05, clip_high=0.3)
    assert measured["clip_share"].tolist() == ([0.5, 1.0] if scale else [0.0, 0.0])


@pytest.mark.parametrize("option", ["power_positive", "power_negative", "decay_positive"])
def test_vespo_takes_any_power_and_decay_from_0_on(option: str) -> None:
    """M4: at 0 the weight is 1 or less sharp; below it would grow without bound."""
    one_T = torch.ones(1)
    given: dict[str, Any] = {
        "policy_T": -one_T, "old_T": -one_T, "owner_T": torch.tensor([0]), "advantage_T": one_T,
        "length_S": torch.tensor([1]),
    }  # fmt: skip
    for accepted in (0.0, 0.5):
        assert vespo(**given, **{option: accepted}).tolist() == [1.0]
    with pytest.raises(WrongValue, match=option):
        vespo(**given, **{option: -0.1})
