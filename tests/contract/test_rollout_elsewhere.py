"""A rollout in another process keeps the contract of rollouts: the whole suite, through a service
and a proxy, with every value encoded and decoded on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.contract.borrowed import borrowed, own_copy

from hexpo.adapters.cluster.wire.codec import decode, encode
from hexpo.adapters.cluster.wire.failures import revived
from hexpo.adapters.cluster.wire.service import answer
from hexpo.adapters.rollout.wire import RemoteRollout, RolloutService
from hexpo.application.ports.cluster import Death
from hexpo.application.ports.rollout import PauseMode
from hexpo.domain.errors import EngineFailed


class InMemory:
    """A process that is none: calls cross as bytes."""

    name, pid = "replica", 0

    def __init__(self, service: object) -> None:
        self._service = service
        self._dead: asyncio.Future[Death] | None = None

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        parts = [bytes(part) for part in encode((method, arguments, options))]
        returned, parts_back = await answer(self._service, parts)
        value = decode([bytearray(part) for part in parts_back])
        if not returned:
            raise revived(value, name=self.name)
        return value

    async def death(self) -> Death:
        return await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """Nothing runs."""


SUITE = own_copy(Path(__file__).with_name("test_rollout.py"))
OWN = (
    "test_an_engine_that_fails_tells_every_waiter_why",  # a cause does not cross, its words do
    "test_lower_priority_numbers_are_served_first",  # calls arrive one after the other
)
"""Tests that this module has in a form of its own."""


def elsewhere() -> Any:
    """The embedded engine behind the wire."""
    bench = SUITE.embedded()
    engine = bench.engine
    remote = RemoteRollout(
        InMemory(RolloutService(engine)), capabilities=engine.capabilities, version=engine.version
    )
    return attrs.evolve(bench, engine=remote)


@pytest.mark.parametrize(("test", "given"), list(borrowed(SUITE, without=OWN.__contains__)))
def test_a_rollout_behind_a_process_keeps_the_contract(
    test: Callable[..., None], given: dict[str, Any]
) -> None:
    """Ids, log-probs, spans, streams, cancellation, pauses, updates, priorities."""
    test(open_bench=elsewhere, **given)


def test_an_engine_that_fails_over_there_tells_every_waiter_why() -> None:
    """F5: the type, the words, and the traceback as a note."""
    bench = elsewhere()

    async def work(engine: RemoteRollout) -> None:
        bench.break_it()
        calls = [engine.generate(SUITE.request(str(i))) for i in range(2 * SUITE.SLOTS)]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, EngineFailed)
            assert "broken" in str(error)
            assert any("RuntimeError: broken" in note for note in error.__notes__)

    SUITE.run(bench, work)


def test_lower_priority_numbers_are_served_first_once_all_have_arrived() -> None:
    """Waiting requests leave the queue over there by priority."""
    order: list[str] = []

    async def work(engine: RemoteRollout) -> None:
        async def one(number: int) -> None:
            priority = -1 if number >= 2 * SUITE.SLOTS else 0
            await engine.generate(SUITE.request(str(number), seed=number, priority=priority))
            order.append(str(number))

        await engine.pause(PauseMode.KEEP)
        async with asyncio.TaskGroup() as group:
            for number in range(3 * SUITE.SLOTS):
                group.create_task(one(number))
            await asyncio.sleep(0.05)
            await engine.resume()

    SUITE.run(elsewhere(), work)
    expected = {str(number) for number in range(2 * SUITE.SLOTS, 3 * SUITE.SLOTS)}
    assert set(order[: SUITE.SLOTS]) == expected
