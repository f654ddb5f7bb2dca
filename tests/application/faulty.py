"""Replicas that fail as they are told, and what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Digest, Update
from hexpo.application.replicas import Replicas, ReplicaSettings
from hexpo.domain.errors import EngineFailed
from hexpo.domain.sampling import Sampling

SPEED = RolloutSpeed(token_seconds=1.0, request_seconds=0.0, slots=1000)
GOOD = Digest(tensors=2, bytes=8, checksum="good")
Scenario = Callable[[], Coroutine[Any, Any, Any]]


class Faulty(SimulatedFleet):
    """One simulated replica that can die, hang, lie about its version or read other weights."""

    def __init__(self, length: int = 10, load_seconds: float = 1.0) -> None:
        super().__init__(
            FleetSettings(speed=SPEED, load_seconds=load_seconds), lambda request: length
        )
        self.digest, self.lies, self.hangs, self.dead = GOOD, False, False, False
        self.asked: list[Request] = []
        self.loads = 0

    async def generate(self, request: Request) -> Generation:
        self._require_living()
        self.asked.append(request)
        return await super().generate(request)

    async def load_weights(self, update: Update) -> Digest | None:
        self._require_living()
        self.loads += 1
        if self.hangs:
            await asyncio.sleep(1e9)
        if not self.lies:
            await super().load_weights(update)
        return self.digest

    async def pause(self, mode: PauseMode) -> None:
        self._require_living()
        await super().pause(mode)

    async def interrupt(self, requests: Any = None) -> None:
        self._require_living()
        if self.hangs:
            await asyncio.sleep(1e9)
        await super().interrupt(requests)

    def die(self) -> None:
        self.dead = True
        for replica in self._replicas:
            replica.fail(EngineFailed("out of memory"))

    def _require_living(self) -> None:
        if self.dead:
            raise EngineFailed("out of memory")


def ask(number: int, *, session: str = "", budget: int = 64, **more: Any) -> Request:
    return Request(
        id=f"r{number}",
        prompt=(1, 2, 3),
        sampling=Sampling(max_new_tokens=budget),
        seed=number,
        session=session,
        **more,
    )


def fleet(count: int, **settings_: Any) -> tuple[dict[str, Faulty], Replicas]:
    engines = {f"rollout-{place}": Faulty() for place in range(count)}
    return engines, Replicas(engines, ReplicaSettings(**settings_))


async def update(replicas: Replicas, version: int, mode: PauseMode = PauseMode.KEEP) -> None:
    await replicas.pause(mode)
    await replicas.load_weights(Update(version=version))
    await replicas.resume()


def simulated(scenario: Scenario) -> Any:
    return run(scenario())
