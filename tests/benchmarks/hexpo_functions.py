"""This library's functions on a benchmark's inputs, packed (see `beside`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from beside import Calls, serve
from torch import Tensor

from hexpo.domain import balance
from hexpo.domain.advantages import gae, grpo, reinforce_plus_plus, rloo
from hexpo.domain.aggregate import Mode, aggregate, row_weights


def advantages(inputs: Mapping[str, Any]) -> Calls:
    """Estimators and aggregation. A group estimator gives a number a row; `a token each` spreads
    it over the row's action tokens, which is part of what verl's functions do."""
    lengths_S, action_T, group_S = (inputs[name] for name in ("lengths_S", "action_T", "group_S"))
    reward_T, value_T, score_S = (inputs[name] for name in ("reward_T", "value_T", "score_S"))
    gamma, lam = inputs["gamma"], inputs["lam"]
    owner_T = torch.repeat_interleave(lengths_S)
    scored_S = torch.ones(len(lengths_S), dtype=torch.bool)
    roles = {"action_T": action_T, "owner_T": owner_T, "scored_S": scored_S}
    outcome = {"score_S": score_S, "scored_S": scored_S, "group_S": group_S}
    term_M, owner_M = inputs["term_T"][action_T], owner_T[action_T]
    trained_S = torch.bincount(owner_M, minlength=len(lengths_S))

    def per_token(call: Callable[..., Tensor]) -> Tensor:
        return call(**outcome).index_select(0, owner_T).masked_fill_(~action_T, 0.0)

    def loss(mode: Mode) -> Tensor:
        weights_S = row_weights(trained_S=trained_S, group_S=group_S, mode=mode)
        return aggregate(term_M, weights=weights_S.to(term_M.dtype).index_select(0, owner_M))

    return {
        "gae": lambda: gae(reward_T=reward_T, value_T=value_T, **roles, gamma=gamma, lam=lam),
        "reinforce_plus_plus": lambda: reinforce_plus_plus(reward_T=reward_T, **roles, gamma=gamma),
        "grpo": lambda: grpo(**outcome),
        "grpo, a token each": lambda: per_token(grpo),
        "rloo": lambda: rloo(**outcome),
        "rloo, a token each": lambda: per_token(rloo),
        "token-mean": lambda: loss(Mode.TOKEN_MEAN),
        "seq-mean-token-mean": lambda: loss(Mode.SEQ_MEAN_TOKEN_MEAN),
    }


def partition(inputs: Mapping[str, Any]) -> Calls:
    """Equal counts."""
    cost_S, parts = inputs["cost_S"], inputs["parts"]
    return {"partition": lambda: balance.partition(cost_S, parts, equal_counts=True)}


if __name__ == "__main__":
    serve({"advantages": advantages, "partition": partition})
