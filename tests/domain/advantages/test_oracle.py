"""Agreement with an independent implementation, outside the project's own decisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from hexpo.domain.advantages import (
    Scale,
    gae,
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    opo,
    optimal_token_baseline,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
    tir_optimal_token_baseline,
)

OUTCOMES = {
    "grpo": (grpo, {}),
    "grpo_vectorized": (grpo, {}),
    "grpo(norm_std=False)": (grpo, {"scale": Scale.NONE}),
    "rloo": (rloo, {}),
    "rloo_vectorized": (rloo, {}),
    "opo": (opo, {}),
    "gpg": (gpg, {}),
    "grpo_passk": (grpo_passk, {}),
    "reinforce_plus_plus_baseline": (reinforce_plus_plus_baseline, {}),
    "remax(baselines .5 .5 .25 .25)": (remax, {}),
}
TOKENS = {
    "gae(gamma=.9,lam=.8)": (gae, {"gamma": 0.9, "lam": 0.8}),
    "reinforce_plus_plus(gamma=.9)": (reinforce_plus_plus, {"gamma": 0.9}),
    "optimal_token_baseline(sum_pi2=.5)": (optimal_token_baseline, {}),
    "tir_optimal_token_baseline(sum_pi2=.5)": (tir_optimal_token_baseline, {}),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_estimator_equals_the_oracle_at_action_tokens(golden: Any, name: str) -> None:
    """Y2: what the oracle leaves at masked positions is not followed."""
    function, options = OUTCOMES[name]
    advantage_S = golden.of(function, **options)
    assert advantage_S.dtype is torch.float32
    spread_T = advantage_S[golden.columns["owner_T"]]
    expected = golden.expected[name]
    expected = expected["adv"] if isinstance(expected, dict) else expected
    actions_T = golden.columns["action_T"]
    assert_close(spread_T[actions_T], golden.at_actions(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_estimator_equals_the_oracle_at_action_tokens(golden: Any, name: str) -> None:
    """Y2: what the oracle leaves at masked positions is not followed: exactly 0 here."""
    function, options = TOKENS[name]
    columns, expected = golden.of(function, **options), golden.expected[name]
    actions_T = golden.columns["action_T"]
    for ours, theirs in (("advantage", "adv"), ("return", "returns")):
        assert columns[ours].dtype is torch.float32
        wanted = golden.at_actions(expected[theirs])
        assert_close(columns[ours][actions_T], wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(columns[ours][~actions_T], torch.zeros(int((~actions_T).sum())))


@pytest.mark.parametrize("weights", [None, [1.0, 2.0]])
def test_gdpo_equals_the_oracle(golden: Any, weights: list[float] | None) -> None:
    """Whitening counts a row with its action tokens."""
    (table,) = (v for k, v in golden.expected.items() if k.startswith("gdpo"))
    expected = torch.tensor(table[f"weights={weights}"])[:, 0]
    advantage_S = gdpo(
        components_S=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0], [1.0, 1.0]]).double(),
        scored_S=torch.ones(4, dtype=torch.bool),
        group_S=torch.tensor([0, 0, 1, 1]),
        actions_S=torch.tensor([3, 2, 4, 3]),
        weights=weights,
    )
    assert_close(advantage_S, expected, rtol=1e-5, atol=1e-5)
