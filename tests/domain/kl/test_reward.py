"""KL in the reward."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.testing import assert_close

from hexpo.domain.advantages import estimator
from hexpo.domain.errors import WrongValue
from hexpo.domain.kl import kl_estimator, mean_kl, token_kl, with_kl_in_reward


def _columns(kl: list[float], action: list[int], reward: list[float]) -> dict[str, torch.Tensor]:
    action_T = torch.tensor(action).bool()
    return {
        "reward_T": torch.tensor(reward),
        "behaviour_T": torch.tensor(kl),
        "reference_T": torch.zeros(len(kl)),
        "action_T": action_T,
        "trained_T": action_T,
        "owner_T": torch.zeros(len(kl), dtype=torch.int64),
        "scored_S": torch.ones(1, dtype=torch.bool),
    }


def test_kl_comes_off_at_action_tokens_only() -> None:
    """O05: letting the tool tokens' KL in gives -9.3."""
    shaped = with_kl_in_reward(
        estimator("reinforce_plus_plus", {"whitened": False}), kl_estimator("k1"), coefficient=1.0
    )
    columns = _columns([0.1, 5.0, 5.0, 0.2], [1, 0, 0, 1], [0.0, 0.0, 0.0, 1.0])
    returns = shaped.function(**columns, **shaped.options)["return"]
    assert_close(returns, torch.tensor([0.7, 0.0, 0.0, 0.8]))
    columns["behaviour_T"][1:3] = torch.nan
    assert_close(shaped.function(**columns, **shaped.options)["return"], returns)


def test_an_action_with_an_invalid_log_prob_gives_no_kl() -> None:
    """C3: its stored 0.0 is no log-prob."""
    shaped = with_kl_in_reward(
        estimator("reinforce_plus_plus", {"whitened": False}), kl_estimator("k1"), coefficient=1.0
    )
    columns = _columns([0.1, 7.0, 0.2], [1, 1, 1], [0.0, 0.0, 1.0])
    columns["trained_T"] = torch.tensor([True, False, True])
    returns = shaped.function(**columns, **shaped.options)["return"]
    assert_close(returns, torch.tensor([0.7, 0.8, 0.8]))


def test_an_outcome_estimator_sees_the_outcome_less_the_rows_kl() -> None:
    """Rows 1 - 0.5 * 0.4 and 0 - 0.5 * 0.2: their deviations are spread over action tokens."""
    shaped = with_kl_in_reward(
        estimator("grpo", {"scale": "none"}), kl_estimator("k1"), coefficient=0.5
    )
    assert shaped.per_token
    assert shaped.min_samples == 2
    score_S = torch.tensor([1.0, 0.0]).double()
    columns = {
        "score_S": score_S,
        "scored_S": torch.ones(2, dtype=torch.bool),
        "group_S": torch.zeros(2, dtype=torch.int64),
        "behaviour_T": torch.tensor([0.3, 0.1, 9.0, 0.2]),
        "reference_T": torch.zeros(4),
        "action_T": torch.tensor([True, True, False, True]),
        "trained_T": torch.tensor([True, True, False, True]),
        "owner_T": torch.tensor([0, 0, 0, 1]),
    }
    advantage_T = shaped.function(**columns, **shaped.options)["advantage"]
    assert_close(advantage_T, torch.tensor([0.45, 0.45, 0.0, -0.45]))
    assert score_S.tolist() == [1.0, 0.0]


def test_needs_are_those_of_both() -> None:
    """The columns that a run must provide."""
    shaped = with_kl_in_reward(estimator("gae"), kl_estimator("k3"), coefficient=0.1, policy="old")
    assert set(shaped.needs.tokens) == {
        "reward",
        "value",
        "action",
        "trained",
        "owner",
        "old",
        "reference",
    }
    assert pickle.loads(pickle.dumps(shaped)).needs == shaped.needs


def test_what_has_no_form_in_the_reward_is_refused() -> None:
    """No weight, no distribution, and an estimator that reads a reward."""
    with pytest.raises(WrongValue, match="unbiased"):
        with_kl_in_reward(estimator("grpo"), kl_estimator("k3", unbiased=True), coefficient=0.1)
    with pytest.raises(WrongValue, match="full"):
        with_kl_in_reward(estimator("grpo"), kl_estimator("full"), coefficient=0.1)
    with pytest.raises(WrongValue, match="no reward"):
        with_kl_in_reward(estimator("distillation"), kl_estimator("k1"), coefficient=0.1)


def test_the_mean_for_a_controller_is_over_the_mask() -> None:
    """A2."""
    mask_T = torch.tensor([True, False, True])
    kl_T = token_kl(
        policy_T=torch.tensor([-1.0, torch.nan, -2.0]),
        reference_T=torch.tensor([-1.5, 0.0, -2.5]),
        mask_T=mask_T,
        estimator=kl_estimator("k1"),
    )
    assert kl_T.tolist() == [0.5, 0.0, 0.5]
    assert mean_kl(kl_T, mask_T=mask_T).value == 0.5
