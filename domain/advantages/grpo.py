"""Advantages from the deviation to a group's mean: GRPO, Dr.GRPO, and its best-of-group form."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from hexpo.domain.advantages.groups import Groups
from hexpo.domain.catalogue import did_you_mean
from hexpo.domain.errors import WrongValue


class Scale(Enum):
    """What a deviation is divided by."""

    GROUP = "group"
    """The standard deviation of its group (GRPO)."""
    BATCH = "batch"
    """The standard deviation of all scored rows of the step."""
    NONE = "none"
    """Nothing (Dr.GRPO)."""

    @classmethod
    def _missing_(cls, value: object) -> Scale:
        raise WrongValue(
            f"unknown scale {value!r}{did_you_mean(str(value), [s.value for s in cls])}"
        )


def grpo(
    *,
    score_S: Tensor,
    scored_S: Tensor,
    group_S: Tensor,
    scale: Scale = Scale.GROUP,
    epsilon: float = 1e-6,
) -> Tensor:
    """The deviation from the group's mean, in standard deviations.

    A = (R - mu) / (sigma + epsilon), sigma the unbiased deviation of the group, of all scored
    rows of the step (scale batch), or nothing (scale none: Dr.GRPO)

    Args: score_S: (S,) outcomes. scored_S: (S,) bool. group_S: (S,) int64, what is compared.
    Returns: (S,) float32; exactly 0 for a group without spread or with one scored row, and for
        rows without a score, which are in no statistic.
    Raises: WrongColumn: axes disagree. WrongValue: an unknown scale.
    Source: Shao et al. 2024 (2402.03300); Liu et al. 2025 (2503.20783).
    """
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    centred_S = groups.centred(score_S)
    match Scale(scale):
        case Scale.GROUP:
            return (centred_S / (groups.deviation(centred_S) + epsilon)).float()
        case Scale.BATCH:
            return (centred_S / (_deviation(score_S[scored_S]) + epsilon)).float()
        case Scale.NONE:
            return centred_S.float()


def grpo_passk(
    *, score_S: Tensor, scored_S: Tensor, group_S: Tensor, epsilon: float = 1e-6
) -> Tensor:
    """Only the best sample of a group learns, by its lead over the second.

    A = (R1 - R2) / (sigma + epsilon) for the best row of a group, 0 for all others

    Args: as for `grpo`.
    Returns: (S,) float32; 0 where the two best are equal or one scored row is alone.
    Raises: WrongColumn: axes disagree.
    Source: Tang et al. 2025 (2503.19595).
    """
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    above_S = groups.above_least(score_S)
    sigma_S = groups.deviation(groups.centred(score_S))
    ranked_S = above_S.masked_fill(~scored_S, -1.0)  # behind every scored row
    order_S = ranked_S.argsort(descending=True, stable=True)
    order_S = order_S[groups.place_S[order_S].argsort(stable=True)]
    starts_G = torch.searchsorted(groups.place_S[order_S], torch.arange(groups.groups).to(group_S))
    best_G = order_S[starts_G]
    seconds_G = order_S[(starts_G + 1).clamp(max=max(0, order_S.numel() - 1))]
    lead_G = above_S[best_G] - above_S[seconds_G]
    lead_G = lead_G.masked_fill(groups.count_S[best_G] < 2, 0.0)
    advantage_S = torch.zeros_like(above_S).index_copy_(0, best_G, lead_G)
    return (advantage_S / (sigma_S + epsilon)).float()


def maxrl(*, score_S: Tensor, scored_S: Tensor, group_S: Tensor) -> Tensor:
    """The deviation from the group's mean, in means: hard prompts weigh more.

    A = (R - mu) / mu; a group with mu <= 0 gives 0

    Args: score_S: (S,) outcomes, not negative. scored_S: (S,) bool. group_S: (S,) int64.
    Returns: (S,) float32; 0 for rows without a score.
    Raises: WrongColumn: axes disagree. WrongValue: a negative outcome.
    Source: 2602.02710.
    """
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    if bool((score_S < 0).logical_and(scored_S).any()):
        least = float(score_S[scored_S].min())
        raise WrongValue(
            f"maxrl divides by a group's mean outcome, so none may be negative; one is {least:g}."
            " Shift the rewards, or use grpo"
        )
    mean_S = groups.mean(score_S)
    return torch.where(mean_S > 0, groups.centred(score_S) / mean_S, 0.0).float()


def _deviation(values: Tensor) -> Tensor:
    """Unbiased standard deviation, float64; 0 below two values."""
    if values.numel() < 2:
        return torch.zeros((), dtype=torch.float64, device=values.device)
    return values.double().std(correction=1)
