"""KTO: rows that were judged one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_at_least, require_same_axes
from hexpo.domain.ragged import row_sums


def kto(
    *,
    policy_T: Tensor,
    reference_T: Tensor,
    owner_T: Tensor,
    chosen_S: Tensor,
    reference_point_S: Tensor,
    beta: float = 0.1,
    desirable: float = 1.0,
    undesirable: float = 1.0,
) -> Tensor:
    """Kahneman-Tversky optimisation, a term a row.

    desirable (1 - sigmoid(beta (x - z))) for a good row, undesirable (1 - sigmoid(beta (z - x)))
    for a bad one, x = sum(policy - reference), z the optimizer step's reference point

    Args: (T,) answer tokens, log-probs in nats, `policy_T` carries gradient; `owner_T` int64, the
            place of each token's row; chosen_S: (S,) bool, good rows. reference_point_S: (S,) z,
            the same for all rows of the optimizer step, from `reference_point`.
        beta: larger than 0. desirable, undesirable: weights of the two kinds, not negative.
    Returns: (S,). Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Ethayarajh et al. 2024 (2402.01306), eq. 8.
    """
    require_same_axes(policy=policy_T, reference=reference_T, owner=owner_T)
    require_same_axes(chosen=chosen_S, reference_point=reference_point_S)
    require_above(0.0, beta=beta)
    require_at_least(0.0, desirable=desirable, undesirable=undesirable)
    gained_S = row_sums(policy_T - reference_T, owner_T, rows=chosen_S.shape[0])
    over_S = beta * (gained_S - reference_point_S.detach())
    return torch.where(
        chosen_S, desirable * (1 - over_S.sigmoid()), undesirable * (1 - (-over_S).sigmoid())
    )


def kto_measures(
    *,
    policy_T: Tensor,
    reference_T: Tensor,
    owner_T: Tensor,
    chosen_S: Tensor,
    **_: Tensor | float,
) -> dict[str, Tensor]:
    """(S,) how far each row's log-ratio went in the wished direction, in nats."""
    gained_S = row_sums(policy_T - reference_T, owner_T, rows=chosen_S.shape[0])
    return {"gain": torch.where(chosen_S, gained_S, -gained_S)}


def reference_point(mismatched_S: Tensor) -> float:
    """z = max(0, mean of sum(old - reference) over prompts with another prompt's answer).

    Args: mismatched_S: (S,) nats, over the whole optimizer step, of stored columns.
    Returns: 0 where there is none.
    """
    if not mismatched_S.numel():
        return 0.0
    return max(0.0, float(mismatched_S.detach().double().mean()))
