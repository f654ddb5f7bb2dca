"""Do trainer and rollout engine agree? A term without a gradient that measures it (C1)."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes
from hexpo.domain.objective import Loss, Term


def agreement(*, policy_T: Tensor, behaviour_T: Tensor) -> Tensor:
    """Nothing: (T,) zeros; only its measures matter.

    0

    Args: (T,) log-probs in nats, under the trainer's present weights and as the rollout reported
        them when it sampled the token.
    Raises: WrongColumn: axes disagree.
    """
    require_same_axes(policy=policy_T, behaviour=behaviour_T)
    return torch.zeros_like(policy_T)


def agreement_measures(*, policy_T: Tensor, behaviour_T: Tensor) -> dict[str, Tensor]:
    """(T,) each: |log-prob difference|, and the probability ratio policy / behaviour.

    With fresh tokens of an on-policy run the first is the numerical gap between the two engines,
    and the second is 1 on average; with aged tokens both grow with the policy's own change.
    """
    gap_T = policy_T - behaviour_T
    return {"gap": gap_T.abs(), "ratio": gap_T.clamp(-20, 20).exp()}


AGREEMENT = Term(
    name="agreement",
    loss=Loss(function=agreement, measures=agreement_measures),
    coefficient=0.0,
)
"""Added to every objective whose tokens a rollout engine sampled."""
