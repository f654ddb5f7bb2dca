"""Advantages from an outcome and a baseline without a scale: RLOO, OPO, ReMax, GPG."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.advantages.groups import Groups
from hexpo.domain.checks import require_above, require_same_axes


def rloo(*, score_S: Tensor, scored_S: Tensor, group_S: Tensor) -> Tensor:
    """The outcome less the mean of the group's other rows (leave one out).

    A = n / (n - 1) (R - mu), n the scored rows of the group

    Args: score_S: (S,) outcomes. scored_S: (S,) bool. group_S: (S,) int64, what is compared.
    Returns: (S,) float32; 0 where one scored row is alone, and for rows without a score.
    Raises: WrongColumn: axes disagree.
    Source: Ahmadian et al. 2024 (2402.14740).
    """
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    count_S = groups.count_S
    return (groups.centred(score_S) * count_S / (count_S - 1).clamp(min=1)).float()


def opo(*, score_S: Tensor, scored_S: Tensor, group_S: Tensor, actions_S: Tensor) -> Tensor:
    """The outcome less the group's mean outcome of a token.

    A = R - sum(L R) / sum(L), L the action tokens of a row, sums over the group

    Args: as for `rloo`; actions_S: (S,) int64, action tokens of each row.
    Returns: (S,) float32; 0 where one scored row is alone, and for rows without a score.
    Raises: WrongColumn: axes disagree.
    Source: Hao et al. 2025 (2505.23585).
    """
    require_same_axes(score=score_S, actions=actions_S)
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    above_S = groups.above_least(score_S)
    baseline_S = groups.sum(actions_S * above_S) / groups.sum(actions_S).clamp(min=1)
    return (above_S - baseline_S).masked_fill(~scored_S, 0.0).float()


def remax(*, score_S: Tensor, scored_S: Tensor, greedy_S: Tensor) -> Tensor:
    """The outcome less that of the greedy answer to the same prompt.

    A = R - R_greedy

    Args: score_S: (S,) outcomes. scored_S: (S,) bool.
        greedy_S: (S,) outcome of the prompt's greedy answer; NaN where it got no score.
    Returns: (S,) float32; 0 for rows where either has no score.
    Raises: WrongColumn: axes disagree.
    Source: Li et al. 2023 (2310.10505).
    """
    require_same_axes(score=score_S, scored=scored_S, greedy=greedy_S)
    known_S = scored_S & greedy_S.isfinite()
    return (score_S.double() - greedy_S.double()).masked_fill(~known_S, 0.0).float()


def gpg(*, score_S: Tensor, scored_S: Tensor, group_S: Tensor, norm: float = 1.0) -> Tensor:
    """The deviation from the group's mean, raised by how few rows of the step have an outcome.

    A = alpha (R - mu) / norm, alpha = N / max(1, rows with R != 0), N the scored rows of the step

    Args: as for `rloo`; norm: a constant above 0.
    Returns: (S,) float32; 0 where one scored row is alone, and for rows without a score.
    Raises: WrongColumn: axes disagree. WrongValue: norm is out of range.
    Source: Chu et al. 2025 (2504.02546).
    """
    require_above(0.0, norm=norm)
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    hits = torch.count_nonzero(score_S.masked_fill(~scored_S, 0.0)).clamp(min=1)
    alpha = scored_S.sum() / hits.double()
    return (alpha * groups.centred(score_S) / norm).float()
