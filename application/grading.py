"""Playing and grading one ticket: every failure becomes a value here, and is counted."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Sequence

import attrs
import torch

from hexpo.application.ports.agent import AgentLoop
from hexpo.application.ports.reward import RewardFunction
from hexpo.application.soundness import flaw_of
from hexpo.application.turns import Meter
from hexpo.domain.errors import EngineFailed, RewardUnavailable
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Graded,
    Group,
    Outcome,
    StopReason,
    Ticket,
    Trajectory,
)

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often and how long one rollout is tried."""

    retries: int = 1
    """Further tries after one that raised; a timeout is not tried again."""
    deadline_seconds: float = 600.0
    """Bound of one try; then the rollout is cancelled and has no reward."""


@attrs.frozen
class _Fault:
    """What failed, told apart by type and line."""

    where: str
    error: Exception

    @staticmethod
    def of(error: Exception) -> _Fault:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return _Fault(f"{type(error).__name__} {frame.filename}:{frame.lineno}", error)


class Player:
    """Plays all samples of a ticket at once and grades them together.

    A rollout that raises is tried again; one that passes its deadline is cancelled. Either way
    its peers go on. When *all* samples of `give_up_after` tickets in a row fail by the same
    exception from the same line, that is a fault of the program and not of the samples: it is
    raised, with its first traceback. Likewise for a grader that fails on all samples of so many
    tickets and has never graded one, and for a rollout engine that stands alone and gives no answer
    that can be one: no batch could ever be filled.
    """

    def __init__(
        self,
        agent: AgentLoop,
        rewards: RewardFunction,
        *,
        policy: RetryPolicy,
        give_up_after: int,
        greedy: AgentLoop | None = None,
        vocabulary: int | None = None,
        engine: str = "",
    ) -> None:
        """Args: greedy: plays one more answer of each ticket, as a baseline; it is graded, and
        neither judged nor trained. vocabulary: ids from there on are no answer; None: any may be.
        engine: the name of the only one that answers, which is given up when it talks nonsense;
            empty: there are several, and whoever sends them requests fences that one.
        """
        self._greedy, self._vocabulary, self._engine = greedy, vocabulary, engine
        self.meter = Meter()
        """Of all answers that are being played."""
        self._agent, self._rewards, self._policy = agent, rewards, policy
        self._give_up_after = give_up_after
        self._streak: list[_Fault] = []
        self._has_graded = False
        self._ungraded: list[Failed] = []

    async def play(self, ticket: Ticket) -> Group:
        """All samples of the ticket, graded. Raises EngineFailed, RewardUnavailable, or the
        program's own error."""
        async with asyncio.TaskGroup() as tasks:
            runs = [
                tasks.create_task(
                    self._one(self._agent, ticket, sample), name=f"{ticket.number}.{sample}"
                )
                for sample in range(ticket.samples)
            ]
            best = (
                tasks.create_task(
                    self._one(self._greedy, ticket, 0), name=f"{ticket.number}.greedy"
                )
                if self._greedy is not None
                else None
            )
        played = [run.result() for run in runs]
        self._judge([fault for _, fault in played])
        rows = [row for row, _ in played]
        finished = [row for row in rows if row.failure is None]
        graded, greedy = await self._grade(finished, best.result()[0] if best else None)
        self._judge_grades(graded)
        grades = iter(graded)
        return Group(
            ticket=ticket,
            rows=tuple(
                Graded(trajectory=row, outcome=next(grades) if row.failure is None else row.failure)
                for row in rows
            ),
            greedy=greedy,
        )

    async def _grade(
        self, rows: Sequence[Trajectory], greedy: Trajectory | None
    ) -> tuple[Sequence[Outcome], Graded | None]:
        """Outcomes of the rows, and the greedy answer with its own."""
        asked = [*rows, greedy] if greedy is not None and greedy.failure is None else rows
        outcomes = (
            [_finite(outcome) for outcome in await self._rewards.grade(asked)] if asked else []
        )
        if len(outcomes) != len(asked):
            raise RewardUnavailable(
                f"the grader gave {len(outcomes)} outcomes for {len(asked)} answers to prompt"
                f" {asked[0].prompt.id!r}; it must give one for each, in order"
            )
        if greedy is None:
            return outcomes, None
        own = outcomes[-1] if greedy.failure is None else greedy.failure
        return outcomes[: len(rows)], Graded(trajectory=greedy, outcome=own)

    async def _one(
        self, agent: AgentLoop, ticket: Ticket, sample: int
    ) -> tuple[Trajectory, _Fault | None]:
        name = f"sample {ticket.number}.{sample} (prompt {ticket.prompt.id})"
        fault = None
        for attempt in range(self._policy.retries + 1):
            bound = asyncio.timeout(self._policy.deadline_seconds)
            try:
                self.meter.begin()
                async with bound:
                    played = await agent.run(ticket, sample)
            except (EngineFailed, RewardUnavailable):
                raise
            except Exception as error:  # noqa: BLE001  the one place where a rollout's failure becomes a value
                if bound.expired():
                    return self._timed_out(ticket, sample, name), None
                fault = _Fault.of(error)
                failure = Failed(cause=Cause.RAISED, message=f"{type(error).__name__}: {error}")
                log.warning("%s failed (try %d): %s", name, attempt + 1, failure.message)
            else:
                return self._sound(played, ticket, sample, name)
            finally:
                self.meter.end()
        return _without_answer(ticket, sample, StopReason.FAILED, failure), fault

    def _sound(
        self, row: Trajectory, ticket: Ticket, sample: int, name: str
    ) -> tuple[Trajectory, _Fault | None]:
        """The row, or one that failed: what contradicts itself is not trained. A part that an
        update cut says nothing about its engine."""
        flaw = None if row.failure is not None else flaw_of(row, vocabulary=self._vocabulary)
        if flaw is None:
            return row, None
        log.warning("%s gave a bad answer: %s", name, flaw)
        failure = Failed(cause=Cause.BAD_RESULT, message=flaw)
        bad = _without_answer(ticket, sample, StopReason.FAILED, failure)
        if not self._engine or row.stop is StopReason.ABORTED:
            return bad, None
        return bad, _Fault("nonsense", EngineFailed(self._nonsense(name, flaw)))

    def _nonsense(self, name: str, flaw: str) -> str:
        return (
            f"rollout engine {self._engine} talks nonsense: none of its answers to"
            f" {self._give_up_after} prompts in a row can be one, at first {name}: {flaw}"
        )

    def _timed_out(self, ticket: Ticket, sample: int, name: str) -> Trajectory:
        message = f"no end within {self._policy.deadline_seconds} s"
        log.warning("%s was cancelled: %s", name, message)
        failure = Failed(cause=Cause.TIMED_OUT, message=message)
        return _without_answer(ticket, sample, StopReason.TIMEOUT, failure)

    def _judge(self, faults: list[_Fault | None]) -> None:
        kinds = {fault.where if fault else None for fault in faults}
        first = faults[0]
        if first is None or len(kinds) > 1:
            self._streak = []
            return
        if self._streak and self._streak[0].where != first.where:
            self._streak = []
        self._streak.append(first)
        if len(self._streak) >= self._give_up_after:
            raise self._streak[0].error

    def _judge_grades(self, outcomes: Sequence[Outcome]) -> None:
        broken = [
            outcome
            for outcome in outcomes
            if isinstance(outcome, Failed) and outcome.cause is not Cause.UNSUPPORTED
        ]
        self._has_graded = self._has_graded or len(broken) < len(outcomes)
        if self._has_graded or not broken:
            return
        self._ungraded.append(broken[0])
        if len(self._ungraded) >= self._give_up_after:
            first = self._ungraded[0]
            raise RewardUnavailable(
                f"the grader failed on every sample of the first {len(self._ungraded)} prompts and"
                f" has graded none, at first: {first.cause.value}: {first.message}. Correct the"
                " grader, or give it more time"
            )


def _finite(outcome: Outcome) -> Outcome:
    """A score that is no finite number is a failure of its sample: it would spoil its group."""
    if isinstance(outcome, Failed) or math.isfinite(outcome.value):
        return outcome
    return Failed(cause=Cause.BAD_RESULT, message=f"the score is {outcome.value}")


def _without_answer(ticket: Ticket, sample: int, stop: StopReason, failure: Failed) -> Trajectory:
    nothing = torch.zeros(1, dtype=torch.int64)  # one token that is no action: an ordinary row
    return Trajectory(
        id=ticket.number * ticket.samples + sample,
        group=ticket.number,
        prompt=ticket.prompt,
        tokens=nothing,
        prompt_length=1,
        action=torch.zeros(1, dtype=torch.bool),
        behaviour=torch.zeros(1),
        version=nothing,
        stop=stop,
        failure=failure,
    )
