"""Admission: freshness is one number, and a slot is a credit.

A slot comes back when the version that its group helped to train is published, or at once when
the group is dropped: never at generation, and not at an optimizer step inside a publication,
where it would let age 1 through at bound 0.

A gate keeps what it decides on and nothing else. Groups are numbered in order of admission, so
the alive ones are a bit mask over the numbers from the oldest on, and their stamps are runs of
numbers: an event costs microseconds at any size, and earlier gates stay valid.
"""

from __future__ import annotations

from typing import assert_never

import attrs

from hexpo.domain.errors import IllegalTransition
from hexpo.domain.schedule.accounting import Ledger, Reason
from hexpo.domain.schedule.capacity import Plan


@attrs.frozen
class Admission:
    """One group may be issued."""

    number: int
    """Counts admissions from 0 without gaps."""
    version: int
    """The stamp: policy version at admission."""


@attrs.frozen
class Trained:
    """The group's gradients are in an optimizer step of the present version."""


@attrs.frozen
class Dropped:
    """The group will not be trained."""

    reason: Reason


@attrs.frozen
class Requeued:
    """The group is sent again and some of its tokens live on: it keeps slot and stamp."""


End = Trained | Dropped | Requeued


@attrs.frozen
class _Run:
    """Consecutive numbers that were admitted under one version."""

    version: int
    first: int


@attrs.frozen(kw_only=True)
class Gate:
    """State between two events. Build with `open_gate`."""

    plan: Plan
    version: int
    """The published policy version."""
    next_number: int
    oldest: int
    """Number of the oldest alive group; `next_number` where none is alive."""
    alive_mask: int = 0
    """Bit i: group `oldest + i` is alive. Bit 0 is set unless nothing is alive."""
    requeued_mask: int = 0
    """Bit i: group `oldest + i` is alive and was re-queued."""
    runs: tuple[_Run, ...] = ()
    """Stamps from the oldest alive group's on."""
    unpublished: int = 0
    """Groups trained since the last publication; their slots are still taken."""
    ledger: Ledger = attrs.field(factory=Ledger)

    @property
    def alive(self) -> int:
        """Groups that were issued and are neither trained nor dropped."""
        return self.ledger.in_flight + self.ledger.requeued

    @property
    def free(self) -> int:
        """Groups that may be admitted now."""
        return self.plan.capacity - self.alive - self.unpublished

    @property
    def wanted(self) -> int:
        """Groups that must still be trained before a full publication."""
        return max(0, self.plan.groups - self.unpublished)

    def is_alive(self, number: int) -> bool:
        """Whether the group was issued and has not ended."""
        return number >= self.oldest and bool(self.alive_mask >> (number - self.oldest) & 1)

    def stamp(self, number: int) -> int:
        """Version at which an alive group was admitted. Raises IllegalTransition: not alive."""
        _require_alive(self, number, "have its stamp read")
        return next(run.version for run in reversed(self.runs) if run.first <= number)

    def may_train(self, number: int) -> bool:
        """Whether order and age let this alive group be trained now."""
        in_order = self.plan.window is None or number < self.oldest + self.plan.window
        return (
            in_order
            and self.is_alive(number)
            and self.version - self.stamp(number) <= self.plan.max_age
        )


_NOTHING_YET = Ledger()


def open_gate(
    plan: Plan, *, version: int = 0, next_number: int = 0, ledger: Ledger = _NOTHING_YET
) -> Gate:
    """A gate with nothing alive, at a run's start or after a resume.

    Raises: IllegalTransition: the ledger still counts alive groups; settle them before a save.
    """
    if ledger.in_flight or ledger.requeued:
        raise IllegalTransition(
            f"the ledger counts {ledger.in_flight + ledger.requeued} alive groups, a gate opens"
            " with none: drop them as retried or cancelled first"
        )
    return Gate(
        plan=plan, version=version, next_number=next_number, oldest=next_number, ledger=ledger
    )


def admit(gate: Gate) -> tuple[Gate, Admission]:
    """Issue the next group. Raises IllegalTransition: no slot is free; ask `gate.free` first."""
    if gate.free < 1:
        raise IllegalTransition(
            f"no slot is free: {gate.alive} groups are alive and {gate.unpublished} trained but"
            f" not yet published, of {gate.plan.capacity}"
        )
    number, runs = gate.next_number, gate.runs
    if not runs or runs[-1].version != gate.version:
        runs = (*runs, _Run(gate.version, number))
    ledger = gate.ledger
    admitted = attrs.evolve(
        gate,
        next_number=number + 1,
        alive_mask=gate.alive_mask | 1 << (number - gate.oldest),
        runs=runs,
        ledger=attrs.evolve(ledger, issued=ledger.issued + 1, in_flight=ledger.in_flight + 1),
    )
    return admitted, Admission(number, gate.version)


def settle(gate: Gate, number: int, end: End) -> Gate:
    """What became of a group.

    Raises: IllegalTransition: it is not alive, or it is trained out of order or over age.
    """
    _require_alive(gate, number, "end")
    again = bool(gate.requeued_mask >> (number - gate.oldest) & 1)
    match end:
        case Trained():
            age = _age_at_use(gate, number)
            ledger = gate.ledger.trained_at(age, again=again)
            return _without(attrs.evolve(gate, unpublished=gate.unpublished + 1), number, ledger)
        case Dropped(reason=reason):
            return _without(gate, number, gate.ledger.dropped_for(reason, again=again))
        case Requeued():
            return _requeued(gate, number, again=again)
        case _:
            assert_never(end)


def publish(gate: Gate, version: int, *, short: bool = False) -> Gate:
    """`version` is confirmed by every replica that is not fenced; its groups' slots are free.

    Drop what `overdue` lists afterwards. In order of submission, or within a window, it lists
    nothing as long as publications are full; in order of completion it may.

    Args: short: fewer than a publication's groups were trained (the prompts ran out).
    Raises: IllegalTransition: not the next version, or an unannounced short publication.
    """
    if version != gate.version + 1:
        raise IllegalTransition(
            f"version {version} cannot be published after {gate.version}; one at a time"
        )
    if gate.wanted and not short:
        raise IllegalTransition(
            f"version {version} was trained on {gate.unpublished} groups of {gate.plan.groups};"
            " train the rest, or say that the publication is short"
        )
    ledger = attrs.evolve(gate.ledger, versions=gate.ledger.versions + 1)
    return attrs.evolve(gate, version=version, unpublished=0, ledger=ledger)


def overdue(gate: Gate) -> list[int]:
    """Alive groups that can never be trained again within the bound, oldest first."""
    limit = gate.version - gate.plan.max_age
    fresh = next((run.first for run in gate.runs if run.version >= limit), gate.next_number)
    return [number for number in range(gate.oldest, fresh) if gate.is_alive(number)]


def passed(gate: Gate, number: int) -> int:
    """Older groups that are alive: how many an alive group passes by when it is trained now."""
    older = gate.alive_mask & ((1 << (number - gate.oldest)) - 1)
    return older.bit_count()


def _age_at_use(gate: Gate, number: int) -> int:
    age = gate.version - gate.stamp(number)
    if gate.plan.window is not None and number >= gate.oldest + gate.plan.window:
        raise IllegalTransition(
            f"group {number} may not pass group {gate.oldest}, the oldest alive: the window is"
            f" {gate.plan.window}"
        )
    if age > gate.plan.max_age:
        raise IllegalTransition(
            f"group {number} is {age} versions old and {gate.plan.max_age} are allowed;"
            " drop it as stale"
        )
    return age


def _requeued(gate: Gate, number: int, *, again: bool) -> Gate:
    ledger = gate.ledger
    counted = attrs.evolve(
        ledger,
        requeues=ledger.requeues + 1,
        requeued=ledger.requeued + (not again),
        in_flight=ledger.in_flight - (not again),
    )
    mask = gate.requeued_mask | 1 << (number - gate.oldest)
    return attrs.evolve(gate, requeued_mask=mask, ledger=counted)


def _without(gate: Gate, number: int, ledger: Ledger) -> Gate:
    bit = 1 << (number - gate.oldest)
    alive, requeued = gate.alive_mask & ~bit, gate.requeued_mask & ~bit
    if not alive:
        oldest, shift = gate.next_number, 0
    else:
        shift = (alive & -alive).bit_length() - 1
        oldest = gate.oldest + shift
    runs = gate.runs
    while len(runs) > 1 and runs[1].first <= oldest:
        runs = runs[1:]
    return attrs.evolve(
        gate,
        oldest=oldest,
        alive_mask=alive >> shift,
        requeued_mask=requeued >> shift,
        runs=runs,
        ledger=ledger,
    )


def _require_alive(gate: Gate, number: int, what: str) -> None:
    if not gate.is_alive(number):
        raise IllegalTransition(
            f"group {number} cannot {what}: it is not alive (trained, dropped or never issued);"
            f" the oldest alive is {gate.oldest}, the next to be issued {gate.next_number}"
        )
