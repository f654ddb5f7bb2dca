"""The loop under thousands of seeded schedules and faults, and proof that they find mistakes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexpo.adapters.simulated.schedules import run_seeded
from hexpo.application import rollouts as module
from hexpo.application.rollouts import InFlight, Rollouts
from hexpo.domain.errors import IllegalTransition
from hexpo.domain.schedule import Gate, publish
from hexpo.entrypoints.testing.broken import Broken
from hexpo.entrypoints.testing.explorer import check, explore
from hexpo.entrypoints.testing.scenarios import draw

UNSEEN = 10**9
"""From here on no test plays every seed."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of failing rollouts warn."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_no_schedule_and_no_fault_breaks_a_promise(part: range) -> None:
    """F1 to F9, G2, H1, H5, N5, R2, R3, Y8: every promise on every run. `--schedules N` plays
    others, or more."""
    assert explore(part) == len(part)


@settings(max_examples=500, deadline=None)
@given(seed=st.integers(UNSEEN, 2**32))
def test_any_seed_keeps_every_promise(seed: int) -> None:
    """The same, from seeds that hypothesis picks."""
    explore([seed])


@pytest.mark.parametrize("seed", [865, 4580, 5267, 5621, 6199, 7185, 8467, 8624, 9250])
def test_a_replica_that_talks_nonsense_beside_one_that_returns_does_not_hold_a_run_up(
    seed: int,
) -> None:
    """F4, F7: the other waits for a version, and no answer of the first one makes a step."""
    explore([seed])


def test_the_same_seed_gives_the_same_run() -> None:
    """A failure can be replayed: every record and every metric repeats."""
    for seed in range(20):
        first, again = check(draw(seed)), check(draw(seed))
        for one, other in zip(first, again, strict=True):
            assert [attrs.astuple(r) for r in one.tracker.records] == [
                attrs.astuple(r) for r in other.tracker.records
            ]


def test_seeds_draw_different_orders_of_what_is_ready_in_one_instant() -> None:
    """Interleavings differ between seeds; asyncio alone has one."""

    async def order() -> tuple[int, ...]:
        seen: list[int] = []

        async def one(number: int) -> None:
            seen.append(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(one(number))
        return tuple(seen)

    assert len({run_seeded(order(), seed) for seed in range(100)}) > 12


def _slots_at_training(gate: Gate, *arguments: Any, **named: Any) -> Gate:
    settled = settle_as_it_is(gate, *arguments, **named)
    return attrs.evolve(settled, unpublished=0)


def _keeps_what_is_stale(gate: Gate) -> list[int]:
    return []


settle_as_it_is = module.settle


def _loses_a_wake_up(self: Rollouts, stop: asyncio.Event | None) -> Any:
    async def change() -> bool:
        await asyncio.sleep(0.05)
        self._changed.clear()  # what was set while nobody looked is forgotten
        await self._changed.wait()
        return stop is None or not stop.is_set()

    return change()


def _new_numbers(self: Rollouts, gate: Gate, in_flight: Any) -> None:
    self.gate, self._reported = gate, gate.ledger
    self._again = [
        InFlight(wanted.number + 1, wanted.version, wanted.position) for wanted in in_flight
    ]


def _published_without_drops(self: Rollouts, version: int) -> None:
    self.gate = publish(self.gate, version, short=self.gate.wanted > 0)
    self.gate = attrs.evolve(self.gate, version=version - 1)


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (module, "settle", _slots_at_training),
        (module, "overdue", _keeps_what_is_stale),
        (Rollouts, "_change", _loses_a_wake_up),
        (Rollouts, "restore", _new_numbers),
        (Rollouts, "published", _published_without_drops),
    ],
    ids=["slots freed at training", "stale kept", "lost wake-up", "new numbers", "old stamps"],
)
def test_a_mistake_in_the_loop_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mistake: Callable[..., Any]
) -> None:
    """The explorer can fail: each mistake is found within 300 schedules."""
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises((Broken, IllegalTransition)):
        explore(range(300))
