"""Which groups are worth training on, and how often their places are filled again."""

from __future__ import annotations

from enum import Enum

import attrs
from torch import Tensor

from hexpo.domain.advantages.groups import Groups
from hexpo.domain.catalogue import did_you_mean
from hexpo.domain.checks import require_at_least
from hexpo.domain.errors import WrongValue
from hexpo.domain.metrics import Measure, total


class Flat(Enum):
    """What becomes of a group whose outcomes are all equal."""

    KEEP = "keep"
    """It stays; its advantages are 0."""
    DROP = "drop"
    """It leaves; the step is smaller."""
    RESAMPLE = "resample"
    """It leaves and another prompt takes its place, within a budget (dynamic sampling)."""

    @classmethod
    def _missing_(cls, value: object) -> Flat:
        raise WrongValue(
            f"unknown treatment of flat groups {value!r}"
            f"{did_you_mean(str(value), [f.value for f in cls])}"
        )


def has_spread(*, score_S: Tensor, scored_S: Tensor, group_S: Tensor, least: float = 0.0) -> Tensor:
    """(S,) bool: rows of groups in which two scored outcomes differ by more than `least`.

    Args: score_S: (S,) outcomes as graded. scored_S: (S,) bool. group_S: (S,) int64.
    Raises: WrongColumn: axes disagree. WrongValue: least is below 0.
    Source: DAPO, Yu et al. 2025 (2503.14476), dynamic sampling.
    """
    require_at_least(0.0, least=least)
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    above_S = groups.above_least(score_S)
    highest_G = above_S.new_zeros(groups.groups)
    highest_G = highest_G.scatter_reduce(0, groups.place_S, above_S, "amax")
    return highest_G[groups.place_S] > least


@attrs.frozen(kw_only=True)
class Refill:
    """How many groups of a step have arrived, were filtered, and may still be asked for.

    The budget is of groups asked for beyond those wanted. When it is spent the step trains on
    what there is, and is counted as short by so many groups; it never waits for more.
    """

    wanted: int
    """Groups of a full step."""
    budget: int
    """Groups that may be asked for beyond them."""
    kept: int = 0
    filtered: int = 0
    asked: int = 0
    """Groups asked for so far, the wanted ones included."""

    def __attrs_post_init__(self) -> None:
        require_at_least(0, wanted=self.wanted, budget=self.budget)
        if self.kept + self.filtered > self.asked:
            raise WrongValue(
                f"{self.kept} groups kept and {self.filtered} filtered, of {self.asked} asked for"
            )

    @property
    def missing(self) -> int:
        """Groups to ask for now: what a full step lacks beyond those under way, in the budget."""
        under_way = self.asked - self.kept - self.filtered
        lacking = self.wanted - self.kept - under_way
        return max(0, min(lacking, self.wanted + self.budget - self.asked))

    @property
    def is_settled(self) -> bool:
        """The step is full, or nothing more will come."""
        under_way = self.asked - self.kept - self.filtered
        return self.kept >= self.wanted or (under_way == 0 and self.missing == 0)

    def ask(self) -> Refill:
        """After asking for the missing groups."""
        return attrs.evolve(self, asked=self.asked + self.missing)

    def after(self, *, kept: int = 0, filtered: int = 0) -> Refill:
        """After so many groups arrived."""
        return attrs.evolve(self, kept=self.kept + kept, filtered=self.filtered + filtered)

    @property
    def metrics(self) -> dict[str, Measure]:
        """`groups/filtered`, `groups/refilled` and `groups/short` of the step (K7)."""
        return {
            "groups/filtered": total(self.filtered),
            "groups/refilled": total(max(0, self.asked - self.wanted)),
            "groups/short": total(max(0, self.wanted - self.kept)),
        }
