"""Closing what was opened."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hexpo.infrastructure.opened import Opened


class Part:
    """Remembers that it was closed; may fail then."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.closed = failure, 0

    async def close(self) -> None:
        """Counts."""
        self.closed += 1
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize(
    "failure", [OSError("gone"), KeyError("x"), ExceptionGroup("all", [OSError()])]
)
def test_a_part_that_cannot_be_closed_keeps_no_other_open(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: whatever it raises; it is logged, and the first failure of the run stays the first."""
    opened = Opened()
    parts = [opened.keep(Part()), opened.keep(Part(failure)), opened.keep(Part())]
    with caplog.at_level(logging.WARNING):
        asyncio.run(opened.close())
    asyncio.run(opened.close())
    assert [part.closed for part in parts] == [1, 1, 1]
    assert "did not close cleanly" in caplog.text
