"""Where rewards lie: on action tokens, each on the last one of what earned it."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes
from hexpo.domain.ragged import row_sums


def place_rewards(
    *, reward_N: Tensor, end_N: Tensor, action_T: Tensor, owner_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Token rewards from those of steps: each moves back to the nearest action of its row.

    So a reward that would land on tool output goes, undiscounted, to the action before it; one
    with no action before it in its row is placed nowhere, and said to be.

    Args: reward_N: (N,) floating, one number a step. end_N: (N,) int64, place among the T tokens
            of the step's last token. action_T: (T,) bool. owner_T: (T,) int64, rows end to end.
    Returns: (T,) in the dtype of `reward_N`, 0 where nothing lies, steps on one token added; and
        (N,) bool, which were placed. The placed ones' sum is kept (B9).
    Raises: WrongColumn: axes disagree.
    """
    require_same_axes(reward=reward_N, end=end_N)
    require_same_axes(action=action_T, owner=owner_T)
    tokens = torch.arange(action_T.shape[0], device=action_T.device)
    latest_T = torch.where(action_T, tokens, -1).cummax(0).values if len(tokens) else tokens
    place_N = latest_T[end_N]
    placed_N = (place_N >= 0) & (owner_T[place_N.clamp(min=0)] == owner_T[end_N])
    out_T = reward_N.new_zeros(action_T.shape)
    out_T.index_add_(0, place_N[placed_N], reward_N[placed_N])
    return out_T, placed_N


def outcomes(*, reward_T: Tensor, action_T: Tensor, owner_T: Tensor, rows: int) -> Tensor:
    """(S,) float64: the sum of each row's token rewards, over its action tokens only.

    Args: reward_T: (T,), not read at other tokens. rows: S.
    Raises: WrongColumn: axes disagree.
    """
    require_same_axes(reward=reward_T, action=action_T, owner=owner_T)
    return row_sums(torch.where(action_T, reward_T, 0.0).double(), owner_T, rows=rows)
