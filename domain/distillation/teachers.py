"""Several teachers: who teaches which row, what they said of it, and how much each one counts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs
import torch
from torch import Tensor

from hexpo.domain.distillation.coarse import valid_topk
from hexpo.domain.seeds import seed_for

NOBODY = -1
"""In the column `taught_by`: the row has no teacher."""

TAUGHT = "taught"
"""Tokens that a term with a teacher trains, and how many they are in each row."""

SPOKEN = frozenset({"teacher", "teacher_topk"})
"""Columns with what a teacher says of a token."""


@attrs.frozen(kw_only=True)
class Routing:
    """Which teacher each row is given to: one, by the data source of its prompt, or none (S4)."""

    sources: Mapping[str, int] = MappingProxyType({})
    """The place of the teacher of each named source."""
    otherwise: int = NOBODY
    """The teacher of every other row."""

    def of(self, role_S: Tensor) -> Tensor:
        """(S,) int64 places among the teachers, -1 for a row without one.

        Args: role_S: (S,) int64, the column `role`: it names the prompt's source.
        """
        taught_by_S = torch.full_like(role_S, self.otherwise)
        for source, place in self.sources.items():
            taught_by_S[role_S == role_of(source)] = place
        return taught_by_S


def role_of(source: str) -> int:
    """What stands in the column `role` for a prompt's source."""
    return seed_for("role", source)


@attrs.frozen(kw_only=True)
class Taught:
    """The tokens that a teacher spoke of: the others train nothing, and are counted (C3).

    Called with the (T,) columns of a whole optimizer step; gives `taught`. A token of a row
    without a teacher, and one whose answer is no log-prob, is stored as NaN.
    """

    reads: tuple[str, ...]
    """What has to be usable: columns of `SPOKEN`."""
    where: str = "trained"
    """The mask of the tokens that may be taught."""

    @property
    def __signature__(self) -> inspect.Signature:
        keyword = inspect.Parameter.KEYWORD_ONLY
        names = (self.where, *self.reads)
        return inspect.Signature([inspect.Parameter(f"{name}_T", keyword) for name in names])

    def __call__(self, **arguments: Tensor) -> dict[str, Tensor]:
        taught_T = arguments[f"{self.where}_T"].clone()
        for name in self.reads:
            column = arguments[f"{name}_T"]
            usable_T = valid_topk(column) if column.dim() > 1 else column.isfinite()
            taught_T &= usable_T
        return {TAUGHT: taught_T}


def teacher_weight(*, taught_by_T: Tensor, weights: Sequence[float]) -> Tensor:
    """How much the token's teacher counts; a factor of a term.

    Args: taught_by_T: (T,) int64, the place of each token's teacher. weights: of each teacher.
    Returns: (T,) float32; 0 where there is none.
    """
    table = torch.tensor([*weights, 0.0], dtype=torch.float32)  # -1 is the last
    return table[taught_by_T]
