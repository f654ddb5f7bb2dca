"""When shared devices stop generating, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.simulated.clock import run
from hexpo.application.turns import Meter, Turns


async def _play(meter: Meter, seconds: float) -> None:
    meter.begin()
    try:
        await asyncio.sleep(seconds)
    finally:
        meter.end()


@given(st.lists(st.floats(0.0, 100.0), max_size=8))
def test_answers_are_counted_by_the_seconds_that_each_of_them_took(spans: list[float]) -> None:
    """R3: the sum, however they overlap."""

    async def main() -> tuple[float, int]:
        meter = Meter()
        async with asyncio.TaskGroup() as tasks:
            for span in spans:
                tasks.create_task(_play(meter, span))
        await asyncio.sleep(5.0)  # nothing is played meanwhile
        return meter.spent, meter.running

    spent, running = run(main())
    assert (spent, running) == (pytest.approx(sum(spans), abs=1e-6), 0)


async def _stops_at(spans: Sequence[float], *, wanted: int, switch: float) -> float:
    """When generation ends: each span is a group of one answer."""
    meter, began = Meter(), asyncio.get_running_loop().time()
    turns = Turns(meter)
    with turns.away(lambda: 0.0):
        await asyncio.sleep(switch)
    finished = 0

    async def group(seconds: float) -> None:
        nonlocal finished
        await _play(meter, seconds)
        finished += 1
        meter.changed.set()

    tasks = [asyncio.ensure_future(group(span)) for span in spans]
    await asyncio.sleep(0)
    await turns.over(lambda: (finished, wanted), asyncio.Event())
    ended = asyncio.get_running_loop().time() - began - switch
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return ended


def test_generation_ends_when_its_speed_has_fallen_to_the_average_so_far() -> None:
    """Four answers, two are a batch. At 2 s 2 of them run, and 2 (2 + C) <= 7 for C <= 1.5; at 6 s
    one does, and 1 (6 + C) <= 15 for C <= 9; then only the end is left."""
    spans = (1.0, 2.0, 6.0, 20.0)
    assert run(_stops_at(spans, wanted=2, switch=1.0)) == pytest.approx(2.0)
    assert run(_stops_at(spans, wanted=2, switch=4.0)) == pytest.approx(6.0)
    assert run(_stops_at(spans, wanted=2, switch=30.0)) == pytest.approx(20.0)


def test_generation_never_ends_before_a_batch_is_complete_unless_it_is_stopped() -> None:
    """Three groups are wanted; the third comes at 6 s."""
    assert run(_stops_at((1.0, 2.0, 6.0, 20.0), wanted=3, switch=0.0)) == pytest.approx(6.0)

    async def stopped() -> float:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(3.0, stop.set)
        await Turns(Meter()).over(lambda: (0, 1), stop)
        return asyncio.get_running_loop().time()

    assert run(stopped()) == pytest.approx(3.0)
