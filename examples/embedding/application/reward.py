"""The business rule as a hexpo reward: an object with two methods, no base class."""

from __future__ import annotations

from collections.abc import Sequence

from hexpo.domain.trajectory import Outcome, Scored, Trajectory

from domain.tone import brevity


class BrevityReward:
    """Grades in this process: the rule is a line of arithmetic and cannot hang."""

    def __init__(self) -> None:
        self.graded = 0

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        """One outcome a row, in order."""
        self.graded += len(rows)
        return [Scored(value=brevity(row.text)) for row in rows]

    async def close(self) -> None:
        """Holds nothing."""
