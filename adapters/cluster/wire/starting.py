"""Starting several things at once: all of them, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


async def all_or_none(
    starts: Mapping[str, Coroutine[Any, Any, T]],
    *,
    undo: Callable[[str], Coroutine[Any, Any, None]],
) -> list[T]:
    """Run named starts side by side.

    Raises: what the first that failed raised, once the others are undone.
    Cancellation: undoes all.
    """
    tasks: dict[str, asyncio.Future[T]] = {
        name: asyncio.ensure_future(start) for name, start in starts.items()
    }
    finished: list[asyncio.Future[T]] = []
    for task in tasks.values():
        task.add_done_callback(finished.append)
    try:
        if tasks:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:  # in the order in which they ended: the first failure is shown
            task.result()
        return [task.result() for task in tasks.values()]
    except BaseException:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        async with asyncio.TaskGroup() as undoing:
            for name in tasks:
                undoing.create_task(undo(name))
        raise
