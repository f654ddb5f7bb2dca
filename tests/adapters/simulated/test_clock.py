"""Virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest

from hexpo.adapters.simulated.clock import Stuck, run


def test_a_day_of_waiting_passes_at_once() -> None:
    """Virtual time follows sleeps and timeouts."""

    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - began

    began = time.perf_counter()
    assert run(main()) == pytest.approx(86_460)
    assert time.perf_counter() - began < 5


def test_timers_fire_in_the_order_of_their_times() -> None:
    """Concurrency in virtual time is that of asyncio."""
    order: list[int] = []

    async def wait(seconds: int) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for seconds in (5, 1, 3):
                tasks.create_task(wait(seconds))

    run(main())
    assert order == [1, 3, 5]


def test_a_deadlock_is_an_error_and_not_a_hang() -> None:
    """F4: no wait is unbounded, in simulation least of all."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        run(main())
