"""Running tasks together: the first failure is the one that is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The earliest real error inside a task group's report; its siblings stay attached to it as
    notes, so that nothing is hidden (O5, L4)."""
    leaves = list(_leaves(group))
    first, others = leaves[0], leaves[1:]
    for other in others:
        if repr(other) != repr(first):
            first.add_note(f"also failed: {type(other).__name__}: {other}")
    return first


async def apart(work: Coroutine[Any, Any, Result]) -> Result:
    """Do it in a task of its own and wait for its end. Whoever tries again after a failure calls
    this: a task group in which a task fails while the group is cancelled raises the failure alone,
    and the cancellation would be lost.

    Raises: what the work raises; CancelledError: the caller was cancelled, and the work has ended.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        raise
    return task.result()


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
