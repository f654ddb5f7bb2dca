"""Where every issued group ended: the counts add up at every moment (F2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

from hexpo.domain.metrics import Measure, largest, latest, mean_of, total


class Reason(Enum):
    """Why a group was dropped; nothing is lost without one."""

    STALE = "stale"
    """Its next use would pass `max_staleness`."""
    FAILED = "failed"
    """Too many of its rollouts failed or ran out of time."""
    UNSCORED = "unscored"
    """No answer of it has a score."""
    FILTERED = "filtered"
    """A filter found no signal in it (equal scores, for example)."""
    RETRIED = "retried"
    """It starts afresh under a new number; nothing that it generated lives on."""
    CANCELLED = "cancelled"
    """The run ended first."""


@attrs.frozen(kw_only=True)
class Ledger:
    """Counts of groups since a run began, and the ages at which they were trained."""

    issued: int = 0
    in_flight: int = 0
    """Alive and never re-queued: being generated, graded or waiting to be trained."""
    requeued: int = 0
    """Alive and sent again at least once; they keep slot and stamp."""
    ages: tuple[int, ...] = ()
    """How many groups were trained at age 0, 1, 2, ... versions."""
    dropped: Mapping[Reason, int] = attrs.field(factory=dict)
    requeues: int = 0
    """How often any group was re-queued."""
    versions: int = 0
    """Publications."""

    @property
    def trained(self) -> int:
        """Groups that were trained."""
        return sum(self.ages)

    @property
    def lost(self) -> int:
        """Groups that were dropped, for any reason."""
        return sum(self.dropped.values())

    @property
    def balanced(self) -> bool:
        """issued = trained + dropped + re-queued and alive + in flight."""
        return self.issued == self.trained + self.lost + self.requeued + self.in_flight

    def since(self, earlier: Ledger) -> Ledger:
        """What happened between two moments; `in_flight` and `requeued` become changes."""
        before = earlier.ages + (0,) * (len(self.ages) - len(earlier.ages))
        return Ledger(
            issued=self.issued - earlier.issued,
            in_flight=self.in_flight - earlier.in_flight,
            requeued=self.requeued - earlier.requeued,
            ages=tuple(now - then for now, then in zip(self.ages, before, strict=True)),
            dropped={why: n - earlier.dropped.get(why, 0) for why, n in self.dropped.items()},
            requeues=self.requeues - earlier.requeues,
            versions=self.versions - earlier.versions,
        )

    def trained_at(self, age: int, *, again: bool) -> Ledger:
        """One alive group was trained at this age; `again`: it had been re-queued."""
        ages = self.ages + (0,) * (age + 1 - len(self.ages))
        ages = (*ages[:age], ages[age] + 1, *ages[age + 1 :])
        return attrs.evolve(self._left(again=again), ages=ages)

    def dropped_for(self, reason: Reason, *, again: bool) -> Ledger:
        """One alive group was dropped; `again`: it had been re-queued."""
        dropped = {**self.dropped, reason: self.dropped.get(reason, 0) + 1}
        return attrs.evolve(self._left(again=again), dropped=dropped)

    def _left(self, *, again: bool) -> Ledger:
        if again:
            return attrs.evolve(self, requeued=self.requeued - 1)
        return attrs.evolve(self, in_flight=self.in_flight - 1)


def measures(now: Ledger, earlier: Ledger) -> dict[str, Measure]:
    """Metrics of a step: what was trained at which age, dropped and re-queued since `earlier`."""
    step = now.since(earlier)
    ages = [(age, n) for age, n in enumerate(step.ages) if n]
    metrics = {
        "schedule/issued": total(step.issued),
        "schedule/trained": total(step.trained),
        "schedule/requeued": total(step.requeues),
        "schedule/dropped": total(step.lost),
        "schedule/alive": latest(now.in_flight + now.requeued),
        "schedule/age": mean_of(sum(age * n for age, n in ages), step.trained),
    }
    if ages:
        metrics["schedule/age_max"] = largest(ages[-1][0])
    for reason in Reason:
        metrics[f"schedule/dropped/{reason.value}"] = total(step.dropped.get(reason, 0))
    return metrics


def selection_bias(trained: Sequence[float], stale: Sequence[float]) -> dict[str, Measure]:
    """How much dropping favours the fast: the share of groups that were dropped, and how long
    those were played beside the trained ones (F3).

    Seconds, since a group that is dropped while it runs has no length yet: its own is a lower
    bound of what it would have taken.

    Args: seconds of play, of each trained group and of each that was dropped as stale.
    """
    return {
        "bias/dropped_share": mean_of(len(stale), len(trained) + len(stale)),
        "bias/trained_seconds": mean_of(sum(trained), len(trained)),
        "bias/dropped_seconds": mean_of(sum(stale), len(stale)),
    }
