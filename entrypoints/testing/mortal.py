"""One simulated replica among several, and all that may befall it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import Enum
from typing import Protocol

import attrs

from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Update
from hexpo.domain.digest import Digest
from hexpo.domain.errors import EngineFailed, WrongValue

GOOD = Digest(tensors=2, bytes=8, checksum="good")


class Mishap(Enum):
    """What befalls a replica."""

    DIES = "dies"
    """Every call raises, those that run included."""
    HANGS = "hangs"
    """No call returns, and what runs stands still."""
    BABBLES = "babbles"
    """Answers to training what cannot be an answer."""
    LATE = "late"
    """Confirms its next update after the bound."""
    CUT = "cut"
    """Its next update fails half-way."""
    OTHER = "other"
    """Reads other weights than the others do, once."""
    LIES = "lies"
    """Confirms its next update and keeps its old weights."""


_STUMBLES = (Mishap.LATE, Mishap.CUT, Mishap.OTHER, Mishap.LIES)
"""They befall the next update, and only that."""


class Watch(Protocol):
    """Who looks at what the replicas do."""

    garbled: set[str]
    """Requests that got nonsense."""

    def asked(self, replica: MortalReplica, request: Request) -> None:
        """A request came."""

    def left(self, replica: MortalReplica, request: Request, piece: Generation | None) -> None:
        """It ended, with a piece of an answer or without one."""


class MortalReplica(SimulatedFleet):
    """Answers as simulated engines do until its mishap, and says which versions it confirmed."""

    def __init__(
        self,
        name: str,
        settings: FleetSettings,
        length: Callable[[Request], int],
        *,
        bound_seconds: float,
        garble: Callable[[Generation, int], Generation],
    ) -> None:
        """Args: bound_seconds: what a late update passes. garble: makes nonsense of an answer."""
        super().__init__(attrs.evolve(settings, replicas=1), length)
        self.name, self._bound, self._garble = name, bound_seconds, garble
        self.watch: Watch | None = None
        self.mishap: Mishap | None = None
        self.confirmed = {self.version}
        """Versions whose weights it really has read in time; all begin with the same ones."""
        self._well = asyncio.Event()
        self._well.set()

    @property
    def is_ill(self) -> bool:
        """It answers no call."""
        return self.mishap in (Mishap.DIES, Mishap.HANGS)

    def whole(self, request: Request) -> int:
        """Ids of the answer from its very beginning."""
        return self._length(request)

    def again(self) -> MortalReplica:
        """A new one in its place, with the weights that all began with."""
        return MortalReplica(
            self.name,
            self.settings,
            self._length,
            bound_seconds=self._bound,
            garble=self._garble,
        )

    def strike(self, mishap: Mishap) -> None:
        """It happens now, or at the next update."""
        self.mishap = mishap
        if mishap is Mishap.DIES:
            for replica in self._replicas:
                replica.fail(self._death())
        if mishap is Mishap.HANGS:
            self._well.clear()
            for replica in self._replicas:
                replica.hold()

    def recover(self) -> None:
        """It answers again, unless it is dead."""
        if self.mishap is Mishap.DIES:
            return
        self.mishap = None
        self._well.set()
        if self._admitting.is_set():
            for replica in self._replicas:
                replica.go()

    async def generate(self, request: Request) -> Generation:
        """As the fleet's; ids that its vocabulary lacks are refused as real engines do."""
        if self.watch is not None:
            self.watch.asked(self, request)
        piece = None
        try:
            await self._living()
            if not all(0 <= token < self.settings.vocabulary for token in request.prompt):
                raise WrongValue(f"request {request.id!r} has an id that the model lacks")
            answer = await super().generate(request)
            await self._living()
            if self.mishap is Mishap.BABBLES and request.id.startswith("train"):
                if self.watch is not None:
                    self.watch.garbled.add(request.id)
                answer = self._garble(answer, request.seed)
            piece = answer
            return answer
        finally:
            if self.watch is not None:
                self.watch.left(self, request, piece)

    async def pause(self, mode: PauseMode) -> None:
        """Unless it is ill."""
        await self._living()
        await super().pause(mode)

    async def resume(self) -> None:
        """Unless it is ill."""
        await self._living()
        await super().resume()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """Unless it is ill."""
        await self._living()
        await super().interrupt(requests)

    async def load_weights(self, update: Update) -> Digest | None:
        """Confirms, unless something befalls it."""
        await self._living()
        befalls = self.mishap if self.mishap in _STUMBLES else None
        if befalls is not None:
            self.mishap = None
        if befalls is Mishap.LIES:
            await asyncio.sleep(self.settings.load_seconds)
            return GOOD
        if befalls is Mishap.CUT:
            await asyncio.sleep(self.settings.load_seconds / 2)
            raise EngineFailed(f"the transfer to {self.name} was cut")
        if befalls is Mishap.LATE:
            await asyncio.sleep(self._bound + 1.0)
        await super().load_weights(update)
        await self._living()
        if befalls is None:
            self.confirmed.add(update.version)
        else:
            self.confirmed.discard(update.version)
        return attrs.evolve(GOOD, checksum=self.name) if befalls is Mishap.OTHER else GOOD

    async def close(self) -> None:
        """Unless it is ill."""
        await self._living()
        await super().close()

    async def _living(self) -> None:
        if self.mishap is Mishap.DIES:
            raise self._death()
        await self._well.wait()

    def _death(self) -> EngineFailed:
        return EngineFailed(f"{self.name} is out of memory")
