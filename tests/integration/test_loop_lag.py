"""Nothing blocks the event loop while a run trains."""

from __future__ import annotations

import asyncio
from typing import Any

from hexpo.entrypoints.library import build

STALL = 0.25
"""Seconds; a loaded machine takes away some tens of milliseconds by itself."""


async def _longest_stall(work: asyncio.Task[Any]) -> float:
    """The longest time that the loop did not come back for a timer of 5 ms."""
    loop, longest = asyncio.get_running_loop(), 0.0
    while not work.done():
        began = loop.time()
        await asyncio.sleep(0.005)
        longest = max(longest, loop.time() - began - 0.005)
    return longest


def test_training_never_holds_the_loop(tiny: dict[str, Any]) -> None:
    """F6: steps, scores, batches, weights and samples; building the parts is before the loop."""
    tiny["run"]["steps"] = 4
    run = build(tiny)

    async def work() -> float:
        await run.container.processes().start()
        try:
            task = asyncio.ensure_future(run.container.trainer().run())
            longest = await _longest_stall(task)
            assert task.result().step == 4
        finally:
            await run.container.opened().close()
        return longest

    assert asyncio.run(work()) < STALL
