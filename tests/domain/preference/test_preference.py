"""Preference losses on numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hexpo.domain.errors import WrongColumn, WrongValue
from hexpo.domain.preference.catalogue import PREFERENCES
from hexpo.domain.preference.kto import kto, kto_measures, reference_point
from hexpo.domain.preference.losses import (
    bradley_terry,
    dpo,
    ipo,
    orpo,
    pair_measures,
    score_measures,
    simpo,
)
from hexpo.domain.preference.pairs import split_pairs

# Rows: chosen of pair 7, chosen of pair 4, rejected of pair 7, rejected of pair 4.
OWNER_T = torch.tensor([0, 0, 1, 2, 2, 2, 3])
POLICY_T = torch.tensor([-0.5, -0.7, -1.0, -0.9, -1.1, -1.3, -0.2])
REFERENCE_T = torch.tensor([-0.6, -0.9, -1.2, -0.8, -1.0, -1.2, -0.4])
ROWS: dict[str, Any] = {
    "group_S": torch.tensor([7, 4, 7, 4]),
    "chosen_S": torch.tensor([True, True, False, False]),
}
TOKENS: dict[str, Any] = {"policy_T": POLICY_T, "owner_T": OWNER_T}
BOTH: dict[str, Any] = {**TOKENS, "reference_T": REFERENCE_T}


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_dpo_compares_sums_of_log_ratios() -> None:
    """Y1: pair 4 first: h = 0.2 - 0.2; pair 7: h = 0.3 + 0.3."""
    terms_P = dpo(**BOTH, **ROWS, beta=2.0)
    assert terms_P.tolist() == pytest.approx([-log_sigmoid(0.0), -log_sigmoid(1.2)], abs=1e-6)


def test_a_smoothed_label_is_a_mixture_of_both_orders() -> None:
    """cDPO."""
    terms_P = dpo(**BOTH, **ROWS, beta=2.0, label_smoothing=0.25)
    want = -0.75 * log_sigmoid(1.2) - 0.25 * log_sigmoid(-1.2)
    assert terms_P[1].item() == pytest.approx(want, abs=1e-6)


def test_ipo_pulls_means_to_its_margin() -> None:
    """Y1: (h' - 1 / (2 beta))^2; pair 7: means 0.15 and -0.1."""
    terms_P = ipo(**BOTH, **ROWS, beta=0.5)
    assert terms_P.tolist() == pytest.approx([1.0, (0.25 - 1) ** 2], abs=1e-6)


def test_simpo_needs_no_reference() -> None:
    """Y1: -logsigmoid(beta (mean c - mean r) - gamma)."""
    terms_P = simpo(**TOKENS, **ROWS, beta=2.0, gamma=0.5)
    want = [-log_sigmoid(2 * (-1.0 + 0.2) - 0.5), -log_sigmoid(2 * (-0.6 + 1.1) - 0.5)]
    assert terms_P.tolist() == pytest.approx(want, abs=1e-6)


def test_orpo_adds_odds_to_the_likelihood() -> None:
    """Y1: NLL of the chosen - lam logsigmoid(log-odds)."""

    def odds(mean: float) -> float:
        return mean - math.log(1 - math.exp(mean))

    terms_P = orpo(**TOKENS, **ROWS, weight=0.5)
    want = [
        1.0 - 0.5 * log_sigmoid(odds(-1.0) - odds(-0.2)),
        0.6 - 0.5 * log_sigmoid(odds(-0.6) - odds(-1.1)),
    ]
    assert terms_P.tolist() == pytest.approx(want, abs=1e-6)


def test_orpo_stays_finite_for_a_certain_answer() -> None:
    """C9: the odds of probability 1 are held."""
    certain = {**TOKENS, "policy_T": torch.zeros(7, requires_grad=True)}
    terms_P = orpo(**certain, **ROWS)
    terms_P.sum().backward()
    assert terms_P.isfinite().all()
    assert certain["policy_T"].grad is not None
    assert certain["policy_T"].grad.isfinite().all()


def test_a_reward_model_is_read_at_the_last_token_of_each_row() -> None:
    """Y1: -logsigmoid(s_c - s_r - margin); earlier predictions get no gradient."""
    prediction_T = torch.tensor([9.0, 1.0, 0.5, 9.0, 9.0, -1.0, 2.0], requires_grad=True)
    terms_P = bradley_terry(prediction_T=prediction_T, owner_T=OWNER_T, **ROWS, margin=0.25)
    want = [-log_sigmoid(0.5 - 2.0 - 0.25), -log_sigmoid(1.0 + 1.0 - 0.25)]
    assert terms_P.tolist() == pytest.approx(want, abs=1e-6)
    terms_P.sum().backward()
    assert prediction_T.grad is not None
    assert prediction_T.grad.nonzero().flatten().tolist() == [1, 2, 5, 6]


def test_kto_judges_rows_one_by_one_against_a_constant() -> None:
    """Y1: lam_D (1 - sigmoid(beta (x - z))), lam_U (1 - sigmoid(beta (z - x)))."""
    point_S = torch.full((4,), 0.1, requires_grad=True)
    policy_T = POLICY_T.clone().requires_grad_()
    terms_S = kto(
        policy_T=policy_T,
        owner_T=OWNER_T,
        reference_T=REFERENCE_T,
        chosen_S=ROWS["chosen_S"],
        reference_point_S=point_S,
        beta=2.0,
        undesirable=0.5,
    )

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    want = [
        1 - sigmoid(2 * (0.3 - 0.1)),
        1 - sigmoid(2 * (0.2 - 0.1)),
        0.5 * (1 - sigmoid(2 * (0.1 + 0.3))),
        0.5 * (1 - sigmoid(2 * (0.1 - 0.2))),
    ]
    assert terms_S.tolist() == pytest.approx(want, abs=1e-6)
    terms_S.sum().backward()
    assert point_S.grad is None
    assert reference_point(torch.tensor([-1.0, 3.0])) == 1.0
    assert reference_point(torch.tensor([-1.0, -3.0])) == 0.0
    assert reference_point(torch.zeros(0)) == 0.0


@pytest.mark.parametrize("name", ["dpo", "ipo", "simpo", "orpo", "bradley_terry"])
def test_the_order_of_rows_changes_nothing(name: str) -> None:
    """B8: pairs are known by their group."""
    entry = PREFERENCES[name]
    order = torch.tensor([3, 0, 2, 1])
    columns: dict[str, Tensor] = {**BOTH, "prediction_T": POLICY_T}
    kept = {f"{each}_T" for each in entry.columns.tokens}
    tokens = {key: value for key, value in columns.items() if key in kept}
    index = torch.cat([(OWNER_T == row).nonzero().flatten() for row in order])
    moved = {key: value[index] for key, value in tokens.items()}
    moved["owner_T"] = torch.repeat_interleave(torch.bincount(OWNER_T)[order])
    rows = {key: value[order] for key, value in ROWS.items()}
    torch.testing.assert_close(entry.function(**moved, **rows), entry.function(**tokens, **ROWS))


def test_measures_say_how_often_the_chosen_row_wins() -> None:
    """TRL's accuracy, from log-ratios, or from log-probs without a reference."""
    assert pair_measures(**BOTH, **ROWS, beta=2.0)["rejected"].tolist() == pytest.approx(
        [0.2, -0.3]
    )
    assert pair_measures(**TOKENS, **ROWS)["accuracy"].tolist() == [0.0, 1.0]
    assert pair_measures(**TOKENS, **ROWS)["chosen"].tolist() == pytest.approx([-1.0, -1.2])


@pytest.mark.parametrize(
    ("group", "chosen", "message"),
    [
        ([7, 7, 4], [True, False, True], "group 4 has 1 row"),
        ([7, 7, 7, 4], [True, False, True, False], "group 4 has 1 row"),
        ([7, 7], [True, True], "group 7 must have one chosen"),
        ([7, 7], [False, False], "group 7 must have one chosen"),
    ],
)
def test_rows_that_are_no_pairs_are_refused(
    group: list[int], chosen: list[bool], message: str
) -> None:
    """X7: the partition never separates rows of one unit."""
    with pytest.raises(WrongColumn, match=message):
        split_pairs(torch.zeros(len(group)), torch.tensor(group), torch.tensor(chosen))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dpo", {"beta": 0.0}),
        ("dpo", {"label_smoothing": 0.6}),
        ("ipo", {"beta": -1.0}),
        ("simpo", {"gamma": -0.1}),
        ("orpo", {"weight": -1.0}),
        ("kto", {"beta": 0.0}),
        ("kto", {"undesirable": -1.0}),
    ],
)
def test_meaningless_options_are_refused(name: str, options: dict[str, Any]) -> None:
    """M4."""
    with pytest.raises(WrongValue, match=next(iter(options))):
        PREFERENCES[name].check(options)


def test_ipos_margin_shrinks_as_beta_grows() -> None:
    """Y1: 1 / (2 beta) is 5 at 0.1 and 0.25 at 2; at 0.5 a product would give the same."""
    for beta, margin in ((0.1, 5.0), (2.0, 0.25)):
        terms_P = ipo(**BOTH, **ROWS, beta=beta)
        assert terms_P.tolist() == pytest.approx([margin**2, (0.25 - margin) ** 2], rel=1e-5)


def test_a_reward_models_accuracy_counts_a_tie_half() -> None:
    """A fresh head gives 0 everywhere: it is right by chance."""
    scores_T = torch.tensor([9.0, 1.0, 2.0, 9.0, 9.0, 0.5, 2.0])
    measured = score_measures(prediction_T=scores_T, owner_T=OWNER_T, **ROWS)
    assert measured["chosen"].tolist() == [2.0, 1.0]
    assert measured["rejected"].tolist() == [2.0, 0.5]
    assert measured["accuracy"].tolist() == [0.5, 1.0]


def test_a_gain_is_in_the_direction_that_was_wished() -> None:
    """KTO: a bad row gains as its log-ratio falls."""
    measured = kto_measures(**BOTH, chosen_S=ROWS["chosen_S"])
    assert measured["gain"].tolist() == pytest.approx([0.3, 0.2, 0.3, -0.2], abs=1e-6)
