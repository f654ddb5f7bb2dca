"""A reward that is graded in a pool of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hexpo.adapters.rewards.wire.pool import GraderPool
from hexpo.adapters.rewards.wire.process import GraderFile
from hexpo.domain.trajectory import Outcome, Trajectory


class PooledReward:
    """A `RewardFunction` whose graders run in processes of their own.

    A row whose rollout failed keeps that failure as its outcome, and is not graded.
    """

    def __init__(self, grader: GraderFile, *, workers: int, with_ids: bool = False) -> None:
        """Args: with_ids: whether samples carry the answer's ids, which few graders read."""
        self._pool = GraderPool(grader, workers=workers)
        self._with_ids = with_ids

    def start(self) -> None:
        """Start the processes now: the first grade then does not wait for their imports."""
        self._pool.start()

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        """One outcome a row, in order. Raises: RewardUnavailable: the grader can't be loaded."""
        alive = [row for row in rows if row.failure is None]
        graded = iter(await self._pool.grade([self._sample(row) for row in alive]))
        return tuple(next(graded) if row.failure is None else row.failure for row in rows)

    async def close(self) -> None:
        """End the processes. Safe to call twice."""
        await asyncio.to_thread(self._pool.close)

    def _sample(self, row: Trajectory) -> dict[str, Any]:
        prompt = row.prompt
        questions = [message.content for message in prompt.messages if message.role == "user"]
        sample = {
            "id": prompt.id,
            "prompt": questions[-1] if questions else prompt.messages[-1].content,
            "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
            "answer": row.text,
            "truth": prompt.truth,
            "source": prompt.source,
            "extra": dict(prompt.extra),
            "answer_tokens": int(row.action.sum()),
            "stop": row.stop.name.lower(),
        }
        if self._with_ids:
            sample["answer_ids"] = row.tokens[row.prompt_length :].tolist()
        return sample
