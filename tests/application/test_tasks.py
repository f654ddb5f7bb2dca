"""Whoever tries again after a failure must not outlive its own cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from hexpo.application.tasks import apart

Work = Coroutine[None, None, None]


class Broken(Exception):
    """What the inner task dies of."""


async def _fails_when_it_is_cancelled() -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise Broken from None


async def _group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_fails_when_it_is_cancelled())


async def _tries(how: Callable[[Work], Awaitable[None]]) -> tuple[int, bool]:
    """The tries that began, and whether it ended as cancelled; it is cancelled in the first."""
    begun = 0

    async def try_again() -> None:
        nonlocal begun
        begun = 1
        try:
            await how(_group())
        except BaseExceptionGroup:
            begun = 2

    trying = asyncio.ensure_future(try_again())
    await asyncio.sleep(0.01)
    trying.cancel()
    await asyncio.wait({trying})
    return begun, trying.cancelled()


async def _plainly(work: Work) -> None:
    await work


def test_a_cancellation_is_not_lost_where_a_task_group_fails_of_it() -> None:
    """F4, F7: awaited plainly the second try begins, as if nobody had asked it to end."""
    assert asyncio.run(_tries(apart)) == (1, True)
    assert asyncio.run(_tries(_plainly)) == (2, False)


def test_results_and_failures_pass_through() -> None:
    """What the work gives or raises is the caller's."""

    async def three() -> int:
        return 3

    async def broken() -> None:
        raise Broken("as it was")

    assert asyncio.run(apart(three())) == 3
    with pytest.raises(Broken, match="as it was"):
        asyncio.run(apart(broken()))
