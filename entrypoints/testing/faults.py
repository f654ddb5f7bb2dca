"""The rollout side of a scenario: engines that go wrong, one or several."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection

import attrs
import torch

from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    RolloutEngine,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed
from hexpo.entrypoints.testing.broken import require
from hexpo.entrypoints.testing.fleets import WatchedReplicas, settings_of
from hexpo.entrypoints.testing.mortal import GOOD, MortalReplica
from hexpo.entrypoints.testing.scenarios import Scenario


class FaultyFleet:
    """Implements RolloutEngine by another one, and raises, hangs and answers nonsense where its
    scenario says so."""

    def __init__(self, scenario: Scenario, inner: RolloutEngine | None = None) -> None:
        """Args: inner: who answers; None: one simulated fleet."""
        self.inner: RolloutEngine = inner or one_fleet(scenario)
        self._scenario = scenario
        self._tried: set[str] = set()
        self.given: list[Generation] = []
        self.pauses = self.resumes = 0
        self.is_paused = False
        self.fail_transfer = False

    @property
    def capabilities(self) -> RolloutCapabilities:
        return self.inner.capabilities

    @property
    def version(self) -> int:
        return self.inner.version

    async def generate(self, request: Request) -> Generation:
        """The answer, or what goes wrong with it."""
        scenario, name = self._scenario, request.id
        if not name.startswith("train"):
            return await self.inner.generate(request)
        if scenario.happens(scenario.hanging, "hang", name):
            await asyncio.sleep(1e9)
        if scenario.happens(scenario.failing, "fail", name) and name not in self._tried:
            self._tried.add(name)
            await asyncio.sleep(0.2)
            raise ConnectionError(name)
        answer = await self.inner.generate(request)
        self.given.append(answer)
        if scenario.happens(scenario.garbled, "garble", name):
            return garbled(answer, request.seed)
        return answer

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """As the inner one's."""
        return self.inner.stream(request)

    async def pause(self, mode: PauseMode) -> None:
        """Counted."""
        require(not self.is_paused, "R2: a pause follows a resume")
        self.is_paused = True
        self.pauses += 1
        await self.inner.pause(mode)

    async def resume(self) -> None:
        """Counted."""
        require(self.is_paused, "R2: a resume follows a pause")
        self.is_paused = False
        self.resumes += 1
        await self.inner.resume()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """As the inner one's."""
        await self.inner.interrupt(requests)

    async def load_weights(self, update: Update) -> Digest | None:
        """May fail half-way."""
        require(self.is_paused, "G2: weights are loaded while the engine is paused")
        if self.fail_transfer and update.version > self.version:
            await asyncio.sleep(self._scenario.load_seconds / 2)
            raise EngineFailed("the transfer was cut")
        digest = await self.inner.load_weights(update)
        if digest not in (None, GOOD):
            raise EngineFailed("the replicas read other weights than were sent")
        return digest

    async def sleep(self) -> None:
        """As the inner one's."""
        await self.inner.sleep()

    async def wake(self) -> None:
        """As the inner one's."""
        await self.inner.wake()

    async def close(self) -> None:
        """As the inner one's."""
        await self.inner.close()


def fleet_settings(scenario: Scenario) -> FleetSettings:
    """How fast a scenario's engines are."""
    speed = RolloutSpeed(
        token_seconds=scenario.token_seconds, request_seconds=0.0, slots=scenario.slots
    )
    return FleetSettings(
        replicas=scenario.replicas, speed=speed, load_seconds=scenario.load_seconds
    )


def one_fleet(scenario: Scenario) -> SimulatedFleet:
    """A scenario's engines, as one."""
    return SimulatedFleet(fleet_settings(scenario), length_of(scenario))


def length_of(scenario: Scenario) -> Callable[[Request], int]:
    """Ids of the answer to a request."""
    return lambda request: _length(scenario, request)


def replicas_of(scenario: Scenario) -> WatchedReplicas:
    """The library's own replicas, around engines that something may befall."""
    engines = {
        name: MortalReplica(
            name,
            fleet_settings(scenario),
            length_of(scenario),
            bound_seconds=settings_of(scenario).load_seconds,
            garble=garbled,
        )
        for name in (f"replica-{place}" for place in range(scenario.fleet))
    }
    return WatchedReplicas(scenario, engines)


def _length(scenario: Scenario, request: Request) -> int:
    """Log-normal around 4 tokens, at most 40."""
    place = torch.special.ndtri(torch.tensor((request.seed % 9973 + 0.5) / 9973)).item()
    return max(1, min(40, round(4 * math.exp(scenario.tail * place))))


def garbled(answer: Generation, seed: int) -> Generation:
    """What no answer can be: a log-prob is missing, or ids that the model lacks."""
    kind = seed % 3
    if kind == 0:
        return attrs.evolve(answer, logprobs=answer.logprobs[:-1])
    if kind == 1:
        return attrs.evolve(answer, tokens=answer.tokens + 1000)
    return attrs.evolve(answer, tokens=-1 - answer.tokens)
