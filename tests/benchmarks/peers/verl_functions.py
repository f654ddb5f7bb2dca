"""verl's own functions on a benchmark's inputs; runs in the peers' environment (see `beside`).

Its layout is made before the clock runs: matrices (rows, longest row) with zeros behind, a float
mask, and a row's group as a text, which is what its trainer hands over.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from beside import Calls, serve
from torch import Tensor
from verl.trainer.ppo import core_algos as verl  # type: ignore[import-not-found]
from verl.utils.seqlen_balancing import (  # type: ignore[import-not-found]
    get_seqlen_balanced_partitions,
)


def advantages(inputs: Mapping[str, Any]) -> Calls:
    """Estimators and aggregation; results are packed again, a number a token."""
    lengths_S, gamma, lam = inputs["lengths_S"], inputs["gamma"], inputs["lam"]
    inside = torch.arange(int(lengths_S.max())) < lengths_S[:, None]

    def padded(column_T: Tensor) -> Tensor:
        return torch.zeros(inside.shape).masked_scatter(inside, column_T.float())

    columns = ("reward_T", "value_T", "action_T", "term_T")
    reward, value, mask, term = (padded(inputs[name]) for name in columns)
    index = numpy.array([f"prompt-{group}" for group in inputs["group_S"].tolist()], dtype=object)
    config = SimpleNamespace(gamma=gamma)
    return {
        "gae": lambda: verl.compute_gae_advantage_return(reward, value, mask, gamma, lam),
        "reinforce_plus_plus": lambda: verl.compute_reinforce_plus_plus_outcome_advantage(
            reward, mask, config=config
        ),
        "grpo": lambda: verl.compute_grpo_outcome_advantage(reward, mask, index)[:1],
        "grpo, vectorised": lambda: verl.compute_grpo_vectorized_outcome_advantage(
            reward, mask, index
        )[:1],
        "rloo": lambda: verl.compute_rloo_outcome_advantage(reward, mask, index)[:1],
        "rloo, vectorised": lambda: verl.compute_rloo_vectorized_outcome_advantage(
            reward, mask, index
        )[:1],
        "token-mean": lambda: verl.agg_loss(term, mask, "token-mean"),
        "seq-mean-token-mean": lambda: verl.agg_loss(term, mask, "seq-mean-token-mean"),
    }


def partition(inputs: Mapping[str, Any]) -> Calls:
    """Equal counts, by costs in whole numbers."""
    costs, parts = inputs["cost_S"].long().tolist(), inputs["parts"]
    return {"partition": lambda: get_seqlen_balanced_partitions(costs, parts, equal_size=True)}


if __name__ == "__main__":
    serve({"advantages": advantages, "partition": partition})
