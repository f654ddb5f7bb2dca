"""A training engine that takes the time that its rows cost, and knows how long it was busy."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from hexpo.adapters.simulated.costs import TrainingCost
from hexpo.adapters.simulated.training import SimulatedTraining
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.training import StepResult
from hexpo.domain.batch import Sequences
from hexpo.domain.metrics import Metrics
from hexpo.domain.objective import Objective


class TimedTraining(SimulatedTraining):
    """Implements TrainingEngine. It remembers no rows, so that a plan may train millions."""

    def __init__(
        self, store: RowStore, cost: TrainingCost, *, grain: int = 1, prompt_tokens: int = 0
    ) -> None:
        """Args: grain: tokens that one id stands for. prompt_tokens: of each row, beside them."""
        super().__init__(store)
        self._cost, self._grain, self._prompt_tokens = cost, grain, prompt_tokens
        self.busy = 0.0
        """Seconds of scoring, learning and publishing since the beginning."""

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Every scored column repeats the behaviour's, after its time."""
        await self._spend(self._cost.score_seconds * self._tokens(rows) * len(columns))
        return await super().score(rows, columns)

    async def accumulate(self, rows: Sequences, objective: Objective) -> Metrics:
        """Forward and backward."""
        await self._spend(self._cost.token_seconds * self._tokens(rows))
        return {}

    async def step(self) -> StepResult:
        """The optimizer's."""
        await self._spend(self._cost.step_seconds)
        return StepResult(applied=True, metrics={})

    async def publish(self) -> int:
        """The next version."""
        await self._spend(self._cost.publish_seconds)
        return await super().publish()

    def _tokens(self, rows: Sequences) -> int:
        return int(rows["actions"].sum()) * self._grain + len(rows) * self._prompt_tokens

    async def _spend(self, seconds: float) -> None:
        self.busy += seconds
        await asyncio.sleep(seconds)
