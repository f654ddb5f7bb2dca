"""Importance weights that are made before an optimizer step, because their mean is 1 over it."""

from __future__ import annotations

import inspect

import attrs
from torch import Tensor

from hexpo.domain.correction.weights import Level, normalised, truncated

CORRECTION = "correction"
"""The column of such weights."""


@attrs.frozen(kw_only=True)
class Normalising:
    """Truncated weights over their mean in the whole optimizer step.

    Called with its (T,) columns; gives `correction`, 1 at tokens that train nothing.
    """

    level: Level = Level.TOKEN
    bound: float = 2.0
    where: str = "trained"
    """The mask of the tokens that are weighed."""

    @property
    def __signature__(self) -> inspect.Signature:
        keyword = inspect.Parameter.KEYWORD_ONLY
        names = ("old", "behaviour", "owner", self.where)
        return inspect.Signature([inspect.Parameter(f"{name}_T", keyword) for name in names])

    def __call__(self, **arguments: Tensor) -> dict[str, Tensor]:
        where_T, owner_T = arguments[f"{self.where}_T"], arguments["owner_T"]
        weights_N = truncated(
            old_T=arguments["old_T"][where_T],
            behaviour_T=arguments["behaviour_T"][where_T],
            owner_T=owner_T[where_T],
            level=self.level,
            bound=self.bound,
        )
        correction_T = arguments["old_T"].new_ones(where_T.shape)
        correction_T[where_T] = normalised(weights_N, owner_T[where_T], level=self.level)
        return {CORRECTION: correction_T}
