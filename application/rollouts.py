"""Keeps finished groups coming: admission, play, order.

Every decision is the pure gate's (`domain/schedule`). Between two awaits a decision and its change
are atomic, since only this object's coroutines touch the state: there is no lock to hold, and none
is held while waiting for a rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import attrs

from hexpo.application.bias import Bias
from hexpo.application.curriculum import Curriculum
from hexpo.application.grading import Player
from hexpo.application.occupancy import Occupancy
from hexpo.application.ports.prompts import Position, PromptSource
from hexpo.application.turns import Meter
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.metrics import Metrics, latest, merge
from hexpo.domain.schedule import (
    Dropped,
    End,
    Gate,
    Reason,
    Trained,
    admit,
    next_group,
    overdue,
    passed,
    publish,
    settle,
)
from hexpo.domain.schedule.accounting import measures
from hexpo.domain.shaping.groups import Refill
from hexpo.domain.trajectory import Group, Scored, Ticket


@attrs.frozen
class InFlight:
    """A ticket that was admitted and is not settled: enough to issue it again after a crash."""

    number: int
    version: int
    position: Position
    """Where the prompt source stood before it drew the prompt."""


def unscored(group: Group) -> Reason | None:
    """The mildest judge: drops a group only if none of its rows has a score."""
    has_score = any(isinstance(row.outcome, Scored) for row in group.rows)
    return None if has_score else Reason.UNSCORED


@attrs.frozen(kw_only=True)
class FlatJudge:
    """Drops a group, too, if no two of its scores differ by more than `least`."""

    least: float = 0.0

    def __call__(self, group: Group) -> Reason | None:
        """Why the group should be dropped, if it should."""
        scores = [row.outcome.value for row in group.rows if isinstance(row.outcome, Scored)]
        if not scores:
            return Reason.UNSCORED
        return None if max(scores) - min(scores) > self.least else Reason.FILTERED


REFILLS = 64
"""Groups that one batch may drop and replace, unless told otherwise; a run allows as many as its
batch has, where that is more."""


class Rollouts:
    """Admits prompts while the gate allows, plays them, and hands finished groups over."""

    def __init__(
        self,
        source: PromptSource,
        player: Player,
        gate: Gate,
        *,
        samples: int,
        judge: Callable[[Group], Reason | None] = unscored,
        refill_budget: int = REFILLS,
        filter_budget: int = 0,
        curriculum: Curriculum | None = None,
    ) -> None:
        """Args: judge: why a finished group should be dropped and replaced, if it should.
        refill_budget: groups that one batch may drop; more is an error that says so.
        filter_budget: groups that one batch may ask for in place of filtered ones; when it is
            spent the batch stays smaller (K7). Where it would be empty, further rounds are asked
            for, within the refill budget.
        curriculum: passes over some of `source`'s rows; it learns from every finished group."""
        self.source, self.gate = source if curriculum is None else curriculum, gate
        self.curriculum = curriculum
        self._player, self._samples = player, samples
        self._judge, self._refill_budget = judge, refill_budget
        self._filter_budget = filter_budget
        self._refills: list[Refill] = []
        self._finished: dict[int, Group] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._plays: dict[int, asyncio.Task[None]] = {}
        self._again: list[InFlight] = []
        self._bias = Bias()
        self._tasks: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        self._occupancy = Occupancy()
        self._reported = gate.ledger

    @property
    def in_flight(self) -> tuple[InFlight, ...]:
        """Admitted and not settled, oldest first: part of a checkpoint."""
        return tuple(self._in_flight[number] for number in sorted(self._in_flight))

    @property
    def meter(self) -> Meter:
        """Answers that are being played."""
        return self._player.meter

    def ready(self) -> tuple[int, int]:
        """Finished groups that the order lets through now, one after the other, and how many a
        batch still needs."""
        window, finished = self.gate.plan.window, self._finished
        if window is None:
            return len(finished), self.gate.wanted
        first = min((n for n in self._in_flight if n not in finished), default=None)
        if first is None:
            return len(finished), self.gate.wanted
        return sum(number < first + window for number in finished), self.gate.wanted

    def restore(self, gate: Gate, in_flight: Iterable[InFlight]) -> None:
        """Go on from a checkpoint: what was in flight is issued again, under its old number and
        stamp, as soon as `run` starts."""
        self.gate, self._reported = gate, gate.ledger
        self._again = list(in_flight)
        self._in_flight = {wanted.number: wanted for wanted in self._again}

    async def run(self) -> None:
        """Play until cancelled. Ends by itself only through an error of the engine, the grader,
        the prompt source or the program."""
        async with asyncio.TaskGroup() as self._tasks:
            try:
                self.fill()
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None  # nothing can be issued any more, while the last plays end too

    def fill(self) -> None:
        """Issue what the gate admits now."""
        if self._tasks is None:
            return
        again, self._again = self._again, []
        here = self.source.position
        for wanted in again:
            self.source.seek(wanted.position)
            self._issue(wanted, self._tasks)
        if again:
            self.source.seek(here)
        while self.gate.free > 0:
            self.gate, admission = admit(self.gate)
            position = self.source.position
            self._issue(InFlight(admission.number, admission.version, position), self._tasks)

    async def take(
        self, stop: asyncio.Event | None, *, most: int | None = None
    ) -> list[Group] | None:
        """The next batch, in the gate's order; None if `stop` was set first.

        Args: most: take no more groups than so many, and leave the rest of the batch for later;
            the budgets count for each call.
        Raises: RewardUnavailable: more groups than the refill budget had to be dropped, or a
            filter left none at all.
        """
        taken: list[Group] = []
        dropped = 0
        wanted = self.gate.wanted if most is None else min(most, self.gate.wanted)
        refill = Refill(wanted=wanted, budget=self._filter_budget).ask()
        while not (taken and refill.is_settled):
            if refill.is_settled:
                refill = self._another_round(refill)
            number = next_group(self.gate, self._finished)
            if number is None:
                if not await self._change(stop):
                    return None
                continue
            group = self._finished.pop(number)
            if self.curriculum is not None:
                self.curriculum.learn(group)
            reason = self._judge(group)
            if reason is None:
                self._settle(number, Trained())
                taken.append(group)
                refill = refill.after(kept=1)
                continue
            self._settle(number, Dropped(reason))
            if reason is Reason.FILTERED:
                refill = refill.after(filtered=1)
                if refill.missing:
                    refill = refill.ask()
                    self.fill()
                continue
            dropped += 1
            if dropped > self._refill_budget:
                raise RewardUnavailable(self._exhausted(group, reason, dropped))
            self.fill()
        self._refills.append(refill)
        return taken

    def _another_round(self, refill: Refill) -> Refill:
        """After a round that left nothing to train on. Raises RewardUnavailable: too many."""
        if refill.filtered >= refill.wanted + self._filter_budget + self._refill_budget:
            raise RewardUnavailable(_all_flat(refill))
        refill = attrs.evolve(refill, budget=refill.budget + refill.wanted).ask()
        self.fill()
        return refill

    def published(self, version: int) -> None:
        """A version is confirmed: its groups' slots are free, and groups that could only train
        over age are dropped. Nothing new is issued until `fill`."""
        self.gate = publish(self.gate, version, short=self.gate.wanted > 0)
        for number in overdue(self.gate):
            self._settle(number, Dropped(Reason.STALE))
            self._finished.pop(number, None)
            if number in self._plays:  # its requests would take slots and train nothing
                self._plays.pop(number).cancel()

    def close(self) -> None:
        """Nothing more is wanted: end what is in flight. What was admitted stays listed."""
        for play in self._plays.values():
            play.cancel()
        self._plays.clear()

    def metrics(self) -> Metrics:
        """Admissions, ages and drops since the last call, and how the last batch was filled.

        `bias/...`: whom the order favours (F3). `busy/rollouts`: share of the time in which a
        group was being played. `queue/groups`: whole ones that wait to be trained.
        """
        earlier, self._reported = self._reported, self.gate.ledger
        refills, self._refills = self._refills, []
        return {
            **measures(self.gate.ledger, earlier),
            **merge(refill.metrics for refill in refills),
            **self._bias.metrics(),
            **(self.curriculum.metrics() if self.curriculum is not None else {}),
            "busy/rollouts": self._occupancy.share(),
            "queue/groups": latest(float(len(self._finished))),
        }

    def _issue(self, wanted: InFlight, tasks: asyncio.TaskGroup) -> None:
        ticket = Ticket(
            number=wanted.number,
            prompt=self.source.draw(),
            version=wanted.version,
            samples=self._samples,
        )
        self._in_flight[wanted.number] = wanted
        self._bias.begins(wanted.number)
        play = tasks.create_task(self._play(ticket), name=f"ticket {ticket.number}")
        self._plays[ticket.number] = play

    async def _play(self, ticket: Ticket) -> None:
        try:
            with self._occupancy.work():
                group = await self._player.play(ticket)
        except Exception:
            self._tasks = None  # this ends all the others: nothing can be issued any more
            raise
        self._plays.pop(ticket.number, None)
        if self.gate.is_alive(ticket.number):  # else it was dropped as stale meanwhile
            self._bias.ends(ticket.number)
            self._finished[ticket.number] = group
            self._changed.set()
            self.meter.changed.set()

    def _settle(self, number: int, end: End) -> None:
        """What became of a group that was admitted."""
        self._bias.settles(number, end, passed=passed(self.gate, number))
        self.gate = settle(self.gate, number, end)
        self._in_flight.pop(number, None)

    async def _change(self, stop: asyncio.Event | None) -> bool:
        """Wait until a group is finished or `stop` is set; False for the latter."""
        self._changed.clear()
        if stop is None:
            return await self._changed.wait()
        waits = [asyncio.ensure_future(event.wait()) for event in (self._changed, stop)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not stop.is_set()

    def _exhausted(self, group: Group, reason: Reason, dropped: int) -> str:
        failures = [row.outcome for row in group.rows if not isinstance(row.outcome, Scored)]
        example = f"; the last failure: {failures[0].message}" if failures else ""
        return (
            f"{dropped} groups of one batch were dropped ({reason.value}) and the refill budget is"
            f" {self._refill_budget}: the batch cannot be filled{example}"
        )


def _all_flat(refill: Refill) -> str:
    return (
        f"all {refill.filtered} groups that were asked for one batch were left out, because the"
        " scores in each are equal: there is nothing to train on. Ask for more samples a prompt,"
        " take easier or harder prompts, or set algorithm.zero_variance.treatment=keep"
    )
