"""The objects of a scenario: the library's own loop around simulated engines that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hexpo.adapters.simulated.training import SimulatedTraining
from hexpo.application.learning import POLICY, Learner, Learnt, Lesson
from hexpo.application.ports.checkpoints import Checkpoint
from hexpo.application.rollouts import Rollouts
from hexpo.application.timing import Stopwatch
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.metrics import Metrics
from hexpo.domain.objective import Objective
from hexpo.domain.schedule import Order, overdue
from hexpo.domain.trajectory import Cause, Failed, Group, Outcome, Scored, Trajectory
from hexpo.entrypoints.testing.broken import require
from hexpo.entrypoints.testing.scenarios import Scenario


class Folders:
    """Checkpoints as plain folders, complete when their block ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._complete: dict[int, Path] = {}
        self._count = 0

    @asynccontextmanager
    async def write(self, step: int) -> AsyncIterator[Path]:
        """A folder of its own each time; the step counts once it is whole."""
        self._count += 1
        folder = self._folder / f"{step}-{self._count}"
        await asyncio.to_thread(folder.mkdir)
        yield folder
        await asyncio.sleep(0.05)
        self._complete[step] = folder

    async def steps(self) -> list[int]:
        """Whole ones."""
        return sorted(self._complete)

    async def latest(self) -> Checkpoint | None:
        """The newest whole one."""
        last = max(self._complete, default=None)
        return None if last is None else Checkpoint(last, self._complete[last])


class ScenarioReward:
    """Scores, missing scores and equal scores as the scenario says."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.is_gone = False

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        """One outcome a row. Raises RewardUnavailable: it is gone."""
        await asyncio.sleep(self._scenario.grade_seconds)
        if self.is_gone:
            raise RewardUnavailable("the grader hung up")
        return [self._outcome(row) for row in rows]

    def _outcome(self, row: Trajectory) -> Outcome:
        scenario = self._scenario
        if scenario.happens(scenario.ungraded, "grade", row.id):
            return Failed(cause=Cause.RAISED, message="no such truth")
        flat = scenario.happens(scenario.flat, "flat", row.group)
        return Scored(value=1.0 if flat else float(row.id % 2))

    async def close(self) -> None:
        """Holds nothing."""


class Witness(SimulatedTraining):
    """Remembers the rows from which each publication learnt something."""

    async def accumulate(self, rows: Sequences, objective: Objective) -> Metrics:
        """Only what is trained counts."""
        self.note(rows.ids[rows["trained"] > 0].tolist())
        return {}

    def note(self, ids: Sequence[int]) -> None:
        """These rows are in the next optimizer step."""
        self._part += ids


class LightLearner(Learner):
    """What the loop sees of learning: an optimizer step that takes its time, and a version."""

    async def add(self, lesson: Lesson, groups: Sequence[Group], watch: Stopwatch) -> None:
        """No table is made."""
        engine = self.engines[POLICY]
        if isinstance(engine, Witness):
            scored = (
                row for group in groups for row in group.rows if isinstance(row.outcome, Scored)
            )
            engine.note([row.trajectory.id for row in scored])
        with watch("train"):
            await engine.step()

    async def close(self, lesson: Lesson) -> Learnt:
        """Only the version moves."""
        return Learnt(version=await self.engines[POLICY].publish(), metrics={})


class WatchedRollouts(Rollouts):
    """The library's own, with a look at its accounts wherever they may change."""

    order = Order.SUBMISSION

    async def take(
        self, stop: asyncio.Event | None, *, most: int | None = None
    ) -> list[Group] | None:
        """The batch, if it is in order and within the bound."""
        batch = await super().take(stop, most=most)
        self.look()
        if batch is None:
            return None
        numbers = [group.ticket.number for group in batch]
        window, oldest = self.gate.plan.window, self.gate.oldest
        if window is not None:
            require(
                max(numbers) < oldest + window,
                f"O26: groups {numbers} passed group {oldest} by a window of {window}",
            )
        if self.order is Order.SUBMISSION:
            require(numbers == sorted(numbers), f"O15.3: {numbers} are not in order of submission")
        return batch

    def published(self, version: int) -> None:
        """As the library's."""
        super().published(version)
        self.look()
        stale = overdue(self.gate)
        require(not stale, f"F1: groups {stale} hold slots and can never be trained")

    async def _change(self, stop: asyncio.Event | None) -> bool:
        # a group that a filter left out after the budget was spent leaves its slot free
        may_be_free = self._tasks is None or self._filter_budget > 0
        require(
            self.gate.free == 0 or may_be_free,
            f"progress: {self.gate.free} slots are free while the trainer waits for a group",
        )
        return await super()._change(stop)

    def look(self) -> None:
        """The accounts add up."""
        gate, ledger = self.gate, self.gate.ledger
        require(ledger.balanced, f"F2: the ledger does not add up: {ledger}")
        require(ledger.issued == gate.next_number, "F2: numbers have gaps")
        require(0 <= gate.free, "F2: more groups are alive than slots")
        numbers = {one.number for one in self.in_flight}
        alive = {n for n in range(gate.oldest, gate.next_number) if gate.is_alive(n)}
        require(numbers == alive, f"F2: in flight are {numbers}, alive {alive}")
