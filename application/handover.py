"""Generation and training hand over to each other: who pauses, who gives way, what is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from hexpo.application.flow import Pauses
from hexpo.application.learning import Learner, Learnt, Lesson
from hexpo.application.ports.rollout import PauseMode, RolloutEngine
from hexpo.application.ports.transfer import WeightTransfer
from hexpo.application.residency import Residency
from hexpo.application.rollouts import Rollouts
from hexpo.application.timing import Stopwatch
from hexpo.application.turns import Rule, Turns
from hexpo.domain.metrics import Metrics, merge
from hexpo.domain.schedule.residency import Phase
from hexpo.domain.trajectory import Group


class Handover:
    """Between a batch that is complete and a rollout that has its version.

    Where devices are shared, generation stops before training; else only for the transfer.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        rollout: RolloutEngine,
        transfer: WeightTransfer,
        *,
        residency: Residency,
        mode: PauseMode,
        rule: Rule,
    ) -> None:
        """Args: mode: what an update does to running requests. rule: when shared devices stop
        generating, where they may generate ahead."""
        self._rollouts, self._rollout, self._transfer = rollouts, rollout, transfer
        self._residency, self._mode = residency, mode
        self._pauses, self._turns = Pauses(), Turns(rollouts.meter, rule)

    @property
    def takes_turns(self) -> bool:
        """Devices are shared."""
        return self._residency.takes_turns

    async def generated(self, stop: asyncio.Event) -> None:
        """Wait until shared devices should stop generating, or `stop` is set. Where nothing may
        run ahead, and on devices of one's own, there is nothing to choose."""
        numbers = self._rollouts.gate.plan
        if self.takes_turns and numbers.capacity > numbers.groups:
            await self._turns.over(self._rollouts.ready, stop)

    async def learn(
        self, learner: Learner, lesson: Lesson, groups: Sequence[Group], watch: Stopwatch
    ) -> tuple[Learnt, Metrics]:
        """Train on the last groups of a lesson and bring the new version to the rollout."""
        async with AsyncExitStack() as paused:
            pause = self._pauses.during(self._rollout, self._mode)
            if self.takes_turns:
                paused.enter_context(self._turns.away(watch.busy))
                with watch("switch"):
                    await paused.enter_async_context(pause)
            async with self._residency.phase(Phase.TRAIN) as turn:
                await learner.add(lesson, groups, watch)
                learnt = await learner.close(lesson)
                with watch("publish"):
                    if not self.takes_turns:
                        await paused.enter_async_context(pause)
                    await turn.become(Phase.TRANSFER)
                    sent = await self._transfer.transfer(learnt.version)
        return learnt, merge([sent, self._pauses.metrics()])

    async def bring(self, version: int) -> None:
        """Send the version of a resumed run. Generation's cache gives way first (I3)."""
        async with (
            self._pauses.during(self._rollout, self._mode),
            self._residency.phase(Phase.TRAIN) as turn,
        ):
            await turn.become(Phase.TRANSFER)
            await self._transfer.transfer(version)
        self._pauses.metrics()  # that pause is no step's
