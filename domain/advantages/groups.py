"""Statistics of groups of rows, in float64 and over scored rows only."""

from __future__ import annotations

from functools import cached_property

import attrs
import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes


@attrs.frozen(eq=False)
class Groups:
    """Which rows are compared with which."""

    place_S: Tensor
    """int64 in 0 to the number of groups."""
    scored_S: Tensor
    """bool."""
    groups: int

    @staticmethod
    def of(*, group_S: Tensor, scored_S: Tensor) -> Groups:
        """Rows of equal `group_S` (any integers, any order) are one group.

        Raises: WrongColumn: the axes differ.
        """
        require_same_axes(group=group_S, scored=scored_S)
        names, place_S = torch.unique(group_S, return_inverse=True)
        return Groups(place_S, scored_S, int(names.numel()))

    @cached_property
    def count_S(self) -> Tensor:
        """(S,) float64: scored rows in each row's group."""
        return self.sum(torch.ones_like(self.scored_S, dtype=torch.float64))

    def sum(self, values_S: Tensor) -> Tensor:
        """(S,) float64: the sum over the scored rows of each row's group."""
        kept_S = self._kept(values_S)
        sums_G = kept_S.new_zeros(self.groups).index_add_(0, self.place_S, kept_S)
        return sums_G[self.place_S]

    def mean(self, values_S: Tensor) -> Tensor:
        """(S,) float64: the mean over the scored rows of each row's group; 0 where none is."""
        return self.sum(values_S) / self.count_S.clamp(min=1)

    def above_least(self, values_S: Tensor) -> Tensor:
        """(S,) float64: how far each scored row is above its group's least; 0 for other rows.

        Statistics of these are exact where all values are equal, and lose nothing to an offset.
        """
        kept_S = self._kept(values_S)
        high_S = kept_S.masked_fill(~self.scored_S, torch.inf)
        least_G = high_S.new_full((self.groups,), torch.inf)
        least_G = least_G.scatter_reduce(0, self.place_S, high_S, "amin")
        return (kept_S - least_G[self.place_S]).masked_fill(~self.scored_S, 0.0)

    def centred(self, values_S: Tensor) -> Tensor:
        """(S,) float64: the deviation from the group's mean; exactly 0 where all are equal, where
        one row is alone, and for rows without a score."""
        above_S = self.above_least(values_S)
        return (above_S - self.mean(above_S)).masked_fill(~self.scored_S, 0.0)

    def deviation(self, centred_S: Tensor) -> Tensor:
        """(S,) float64: the unbiased standard deviation of each row's group; 0 below two rows.

        Args: centred_S: what `centred` gave.
        """
        squares_S = self.sum(centred_S.square())
        return (squares_S / (self.count_S - 1).clamp(min=1)).sqrt()

    def _kept(self, values_S: Tensor) -> Tensor:
        require_same_axes(group=self.place_S, values=values_S)
        return values_S.double().masked_fill(~self.scored_S, 0.0)
