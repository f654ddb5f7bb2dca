"""Port: what an answer is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hexpo.domain.trajectory import Outcome, Trajectory


class RewardFunction(Protocol):
    """Grades finished trajectories of one prompt.

    Promises: one outcome a row, in order, each within the adapter's own time bound, from any
    thread's event loop. One hanging or raising row changes no other row's outcome.
    Failures: a row that can't be graded is `Failed` with a cause: a value, never 0.0.
    Raises: RewardUnavailable: the grader itself is gone; no sample is blamed.
    Cancellation: safe at every await; leaves no process, thread or slot behind.
    """

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        """Outcomes of rows that answer the same prompt."""
        ...

    async def close(self) -> None:
        """End worker processes. Safe to call twice."""
        ...
