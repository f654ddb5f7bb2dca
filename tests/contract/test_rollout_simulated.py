"""Whoever stands for rollout engines in virtual time keeps the contract of updates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.schedules import run_seeded
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.replicas import Replicas
from hexpo.entrypoints.testing.rollout import CONTRACT, Check


@pytest.mark.parametrize("slots", [None, 2])
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_the_simulated_engine_updates_as_real_ones(check: Check, slots: int | None) -> None:
    """It may stand for them in virtual time."""
    engine = SimulatedRollout(lambda request: Script(length=900, seconds=9), slots=slots)
    asyncio.run(asyncio.wait_for(check(engine), 60))


def simulated_fleet() -> SimulatedFleet:
    """Two replicas of the planner's engine, fewer slots than requests."""
    speed = RolloutSpeed(token_seconds=0.01, request_seconds=0.0, slots=3)
    return SimulatedFleet(FleetSettings(replicas=2, speed=speed), lambda request: 900)


def replicas_of_simulated() -> Replicas:
    """The library's own, around engines of the script."""
    return Replicas({name: scripted() for name in ("one", "two")})


def scripted() -> SimulatedRollout:
    """Two slots."""
    return SimulatedRollout(lambda request: Script(length=900, seconds=9), slots=2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "make", [simulated_fleet, replicas_of_simulated, scripted], ids=lambda make: make.__name__
)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_whoever_stands_for_engines_in_virtual_time_updates_as_they_do(
    check: Check, make: Callable[[], RolloutEngine], seed: int
) -> None:
    """F7, F8: whatever the order of what happens in one instant."""

    async def whole() -> None:
        await asyncio.wait_for(check(make()), 600)

    run_seeded(whole(), seed)
