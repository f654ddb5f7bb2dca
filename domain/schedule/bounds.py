"""What no schedule can beat: a floor of the step time for each side, and one for both together."""

from __future__ import annotations

import attrs

from hexpo.domain.errors import WrongValue


@attrs.frozen(kw_only=True)
class Floors:
    """Seconds that a step takes at least, by what would be busy all the time."""

    generation: float
    """All replicas generate at their best speed, nothing waits."""
    training: float
    """The trainer never waits for a group."""
    little: float
    """Little's law: the groups that may be alive, over the time that each stays."""

    @property
    def busy(self) -> float:
        """The larger of the two busy times."""
        return max(self.generation, self.training)

    @property
    def highest(self) -> float:
        """What the step time is to be compared with."""
        return max(self.busy, self.little)


def little(*, stay_seconds: float, capacity: int, groups: int) -> float:
    """Seconds a step that Little's law allows at best: stay / (B / P).

    A group takes one of B slots from its admission until the version that it helped to train is
    published; P of them come back a step. So step = P stay / alive >= P stay / B, with
    B = (S + 1) P: stay / (S + 1).

    Args: stay_seconds: mean time from admission to publication, over trained groups.
        capacity: B, groups that may be alive. groups: P, groups of a publication.
    """
    if capacity < groups or groups < 1:
        raise WrongValue(f"a capacity of {capacity} groups cannot hold publications of {groups}")
    return stay_seconds * groups / capacity


def bubble(*, step_seconds: float, busy_seconds: float) -> float:
    """The share of a step in which one side did nothing, in [0, 1]; 0 for a step of no time."""
    if step_seconds <= 0:
        return 0.0
    return min(1.0, max(0.0, 1 - busy_seconds / step_seconds))
