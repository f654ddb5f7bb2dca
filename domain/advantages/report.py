"""What the groups of a step were like, as metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.advantages.groups import Groups
from hexpo.domain.metrics import Measure, mean_of, total


def group_report(*, score_S: Tensor, scored_S: Tensor, group_S: Tensor) -> dict[str, Measure]:
    """Counts of what gives no advantage (B2, B7).

    Args: score_S: (S,) outcomes. scored_S: (S,) bool. group_S: (S,) int64.
    Returns: `group/unscored` rows without a score; `group/alone` groups with one scored row,
        `group/empty` with none; `group/flat` the share of the others whose outcomes are equal.
    """
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    first_G = _one_row_each(groups)
    count_G = groups.count_S[first_G]
    spread_G = groups.sum(groups.above_least(score_S))[first_G] > 0
    compared_G = count_G > 1
    return {
        "group/unscored": total(float((~scored_S).sum())),
        "group/alone": total(float((count_G == 1).sum())),
        "group/empty": total(float((count_G == 0).sum())),
        "group/flat": mean_of(float((compared_G & ~spread_G).sum()), float(compared_G.sum())),
    }


def _one_row_each(groups: Groups) -> Tensor:
    rows = torch.arange(groups.place_S.shape[0], device=groups.place_S.device)
    return torch.zeros(groups.groups, dtype=torch.int64, device=rows.device).scatter_reduce(
        0, groups.place_S, rows, "amax"
    )
