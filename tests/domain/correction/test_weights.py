"""Importance weights against the sampler."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.correction.metrics import off_policy
from hexpo.domain.correction.validity import of_sampled, valid_logprobs
from hexpo.domain.correction.weights import (
    Level,
    effective_share,
    importance,
    normalised,
    stored,
    truncated,
    two_sided,
)
from hexpo.domain.errors import WrongValue
from hexpo.domain.metrics import merge, values

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden-vectors.json").read_text())[
    "rollout_correction"
]
MASK = torch.tensor(GOLDEN["mask"]).bool()
COLUMNS: dict[str, Any] = {
    "old_T": torch.tensor(GOLDEN["train"])[MASK],
    "behaviour_T": torch.tensor(GOLDEN["rollout"])[MASK],
    "owner_T": torch.tensor([[0] * 3, [1] * 3])[MASK],
}


@pytest.mark.parametrize(
    ("name", "function", "options", "level"),
    [
        ("token_TIS2", truncated, {"bound": 2.0}, None),
        ("seq_TIS2", truncated, {"level": "sequence", "bound": 2.0}, None),
        ("token_TIS1.5_norm", truncated, {"bound": 1.5}, Level.TOKEN),
        ("seq_TIS2_norm", truncated, {"level": "sequence", "bound": 2.0}, Level.SEQUENCE),
        ("token_icepop_.5_2", two_sided, {"low": 0.5, "high": 2.0}, None),
    ],
)
def test_weights_agree_with_the_oracle(
    name: str, function: Any, options: dict[str, Any], level: Level | None
) -> None:
    """Golden vectors: weights and effective sample size."""
    weights_T = function(**COLUMNS, **options)
    share = effective_share(weights_T)
    if level is not None:
        weights_T = normalised(weights_T, COLUMNS["owner_T"], level=level)
    want_T = torch.tensor(GOLDEN[name]["w"])[MASK]
    torch.testing.assert_close(weights_T, want_T, rtol=0, atol=1e-5)
    assert share == pytest.approx(effective_share(weights_T), abs=1e-6)
    assert share == pytest.approx(GOLDEN[name]["ess"], abs=1e-5)


def test_the_effective_size_of_all_zero_weights_is_zero() -> None:
    """C6: the oracle divides by zero here; a sequence band may zero every token."""
    weights_T = two_sided(**COLUMNS, level="sequence", low=0.5, high=2.0)
    assert weights_T.eq(0).all()
    assert effective_share(weights_T) == 0.0
    assert effective_share(torch.zeros(0)) == 0.0
    assert normalised(weights_T, COLUMNS["owner_T"], level=Level.TOKEN).eq(0).all()


def test_product_and_geometric_mean_are_two_options() -> None:
    """C11: row 2 has log-ratios 0 and 1."""
    rho = {level: importance(*COLUMNS.values(), level=level)[-1].item() for level in Level}
    assert rho[Level.TOKEN] == pytest.approx(math.e)
    assert rho[Level.SEQUENCE] == pytest.approx(math.e)
    assert rho[Level.GEOMETRIC] == pytest.approx(math.exp(0.5))


@pytest.mark.parametrize("function", [truncated, two_sided])
@pytest.mark.parametrize("level", Level)
def test_weights_carry_no_gradient(function: Any, level: Level) -> None:
    """C5: whatever the columns carry."""
    old_T = COLUMNS["old_T"].clone().requires_grad_()
    weights_T = function(**{**COLUMNS, "old_T": old_T}, level=level)
    assert not weights_T.requires_grad
    assert not stored(correction_T=old_T).requires_grad


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=8), st.sampled_from(Level))
def test_weights_are_finite_and_bounded(drifts: list[float], level: Level) -> None:
    """C9: the exponent is bounded before the truncation."""
    behaviour_T = torch.tensor(drifts)
    weights_T = truncated(
        old_T=torch.zeros(len(drifts)),
        behaviour_T=behaviour_T,
        owner_T=torch.arange(len(drifts)) // 3,
        level=level,
        bound=3.0,
    )
    assert ((weights_T > 0) & (weights_T <= 3.0)).all()


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (truncated, {"bound": 0.0}),
        (truncated, {"level": "batch"}),
        (two_sided, {"low": 1.5}),
        (two_sided, {"low": 0.0}),
        (two_sided, {"high": 0.5}),
    ],
)
def test_meaningless_bounds_are_refused(function: Any, options: dict[str, Any]) -> None:
    """M4."""
    with pytest.raises(WrongValue, match=next(iter(options))):
        function(**COLUMNS, **options)


def test_off_policy_metrics_agree_with_the_oracle() -> None:
    """Golden vectors."""
    want = GOLDEN["offpolicy_metrics"]
    have = values(off_policy(*COLUMNS.values()))
    names = {
        "training_perplexity": "training_ppl",
        "training_log_perplexity": "training_log_ppl",
        "rollout_perplexity": "rollout_ppl",
        "rollout_log_perplexity": "rollout_log_ppl",
        "log_perplexity_gap": "log_ppl_diff",
        "log_perplexity_gap_size": "log_ppl_abs_diff",
        "log_perplexity_gap_largest": "log_ppl_diff_max",
        "log_perplexity_gap_smallest": "log_ppl_diff_min",
        "perplexity_ratio": "ppl_ratio",
        "kl": "kl",
        "k3_kl": "k3_kl",
        "chi2_token": "chi2_token",
        "chi2_sequence": "chi2_seq",
    }
    assert set(names) == set(have)
    for ours, theirs in names.items():
        assert have[ours] == pytest.approx(want[theirs], abs=1e-5), ours


def test_off_policy_metrics_do_not_depend_on_the_split() -> None:
    """N1: over any parts of whole rows; a part without a token weighs nothing."""
    first = {name: column[:3] for name, column in COLUMNS.items()}
    second = {name: column[3:] for name, column in COLUMNS.items()}
    second["owner_T"] = second["owner_T"] - 1
    empty = {name: column[:0] for name, column in COLUMNS.items()}
    parts = merge(off_policy(*part.values()) for part in (first, empty, second))
    assert values(parts) == pytest.approx(values(off_policy(*COLUMNS.values())))


def test_the_behaviour_logprob_is_that_of_the_sampled_id_or_invalid() -> None:
    """O08, C3: missing, None, NaN and positive ones are invalid; a true 0.0 is valid."""
    answers: list[dict[int, float] | None] = [
        {17: -0.2, 42: -1.7},
        {17: -0.2},
        None,
        {42: float("nan")},
        {42: 0.3},
        {42: 0.0},
        {42: -0.4},
    ]
    logprobs_T = of_sampled(answers, [42] * 7)
    valid_T = valid_logprobs(logprobs_T)
    assert valid_T.tolist() == [True, False, False, False, False, True, True]
    assert logprobs_T[valid_T].tolist() == pytest.approx([-1.7, 0.0, -0.4])
    assert int((~valid_T).sum()) == 4
    assert logprobs_T[~valid_T].ne(0).all()


def test_a_row_of_one_token_counts_as_a_row_in_the_mean() -> None:
    """A8: rows of weights 3, 2 and none, of one, two and no token: the mean is 2.5."""
    given_T, owner_T = torch.tensor([3.0, 2.0, 2.0]), torch.tensor([0, 2, 2])
    got = normalised(given_T, owner_T, level=Level.SEQUENCE)
    assert got.tolist() == pytest.approx([1.2, 0.8, 0.8])
    got = normalised(given_T, owner_T, level=Level.TOKEN)
    assert got.tolist() == pytest.approx([9 / 7, 6 / 7, 6 / 7])
