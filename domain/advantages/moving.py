"""Role-conditioned advantages: a baseline that moves from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs
import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes, require_within


@attrs.frozen
class Baselines:
    """The moving average of each role's outcomes: part of the checkpoint."""

    values: Mapping[int, float] = attrs.field(factory=dict)
    """By role; a role that was never scored has 0."""

    def of(self, role_S: Tensor) -> Tensor:
        """(S,) float64: the baseline of each row's role."""
        roles, place_S = torch.unique(role_S, return_inverse=True)
        known = [self.values.get(int(role), 0.0) for role in roles.tolist()]
        return torch.tensor(known, dtype=torch.float64, device=role_S.device)[place_S]

    def after(
        self, *, score_S: Tensor, scored_S: Tensor, role_S: Tensor, decay: float = 0.95
    ) -> Baselines:
        """The baselines for the next step; to be called once a step, after `rae`.

        b <- decay^n b + (1 - decay^n) mean R, n the scored rows of the role: what n updates by
        the mean outcome give, so that neither order nor split of the rows matters.
        """
        require_within(0.0, 1.0, decay=decay)
        values = dict(self.values)
        kept_S = score_S[scored_S].double()
        roles, place, counts = torch.unique(
            role_S[scored_S], return_inverse=True, return_counts=True
        )
        means = kept_S.new_zeros(roles.shape).index_add_(0, place, kept_S) / counts
        for role, mean, count in zip(roles.tolist(), means.tolist(), counts.tolist(), strict=True):
            keep = decay**count
            values[role] = keep * values.get(role, 0.0) + (1 - keep) * mean
        return Baselines(MappingProxyType(values))

    def __reduce__(self) -> tuple[object, ...]:  # mapping proxies do not pickle
        return (Baselines, (dict(self.values),))


NEW = Baselines(MappingProxyType({}))
"""No role was scored yet."""


def rae(*, score_S: Tensor, scored_S: Tensor, role_S: Tensor, baselines: Baselines = NEW) -> Tensor:
    """The outcome less a moving average of its role's outcomes.

    A = R - b; b <- decay b + (1 - decay) R after use (`Baselines.after`)

    Args: score_S: (S,) outcomes. scored_S: (S,) bool.
        role_S: (S,) int64, one number for each pair of environment and role.
        baselines: the state, given by the loop each step.
    Returns: (S,) float32; 0 for rows without a score.
    Raises: WrongColumn: axes disagree.
    Source: SPIRAL, 2025 (2506.24119).
    """
    require_same_axes(score=score_S, scored=scored_S, role=role_S)
    deviation_S = score_S.double() - baselines.of(role_S)
    return deviation_S.masked_fill(~scored_S, 0.0).float()
