"""GDPO: each reward component is normalised on its own before they are added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hexpo.domain.advantages.grpo import grpo
from hexpo.domain.advantages.whitening import whiten
from hexpo.domain.errors import WrongColumn, WrongValue


def gdpo(
    *,
    components_S: Tensor,
    scored_S: Tensor,
    group_S: Tensor,
    actions_S: Tensor,
    components: Sequence[str] = (),
    weights: Sequence[float] | None = None,
    epsilon: float = 1e-6,
) -> Tensor:
    """GRPO for each reward component, a weighted sum, whitened over the step's action tokens.

    A = whitened sum_c w_c (R_c - mu_c) / (sigma_c + epsilon); a row counts with its action tokens

    Args: components_S: (S, C) reward components; NaN where a row lacks one: it is then out of
            that component's statistics, and gets 0 from it.
        scored_S: (S,) bool. group_S: (S,) int64. actions_S: (S,) int64, action tokens of a row.
        components: their names, in the order of the columns: what the run lays there.
        weights: one number a component; all 1 by default.
    Returns: (S,) float32; 0 for rows without a score.
    Raises: WrongColumn: axes disagree. WrongValue: not one weight a component.
    Source: 2601.05242.
    """
    if components_S.dim() != 2 and components_S.numel():
        raise WrongColumn(f"components has the axes {tuple(components_S.shape)}, not (S, C)")
    columns = components_S.unbind(1) if components_S.dim() == 2 else ()
    if components and columns and len(components) != len(columns):
        raise WrongValue(f"gdpo has {len(components)} names for {len(columns)} reward components")
    shares = [1.0] * len(columns) if weights is None else list(weights)
    if len(shares) != len(columns) and components_S.numel():
        raise WrongValue(f"gdpo has {len(shares)} weights for {len(columns)} reward components")
    total_S = torch.zeros(scored_S.shape, dtype=torch.float64, device=scored_S.device)
    for share, column_S in zip(shares, columns, strict=False):
        known_S = scored_S & column_S.isfinite()
        total_S += share * grpo(
            score_S=column_S, scored_S=known_S, group_S=group_S, epsilon=epsilon
        )
    return whiten(total_S, counts=actions_S.masked_fill(~scored_S, 0)).float()
