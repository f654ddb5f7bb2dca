"""A device whose memory is counted, and engines that take it and give it back over virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

import attrs

from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    RolloutEngine,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed, IllegalTransition, WrongValue


class Device:
    """So many bytes. What does not fit fails, as on a real one."""

    def __init__(self, capacity: int, *, bytes_per_second: float = float("inf")) -> None:
        """Args: bytes_per_second: how fast memory is filled, and emptied."""
        self.capacity, self._speed = capacity, bytes_per_second
        self._taken: dict[str, int] = {}
        self.peak = 0
        """The most that was ever taken."""
        self.history: list[tuple[float, str, int]] = []
        """When whose share changed, and to what."""

    @property
    def taken(self) -> Mapping[str, int]:
        """Bytes by owner."""
        return dict(self._taken)

    @property
    def free(self) -> int:
        """Bytes that nobody has."""
        return self.capacity - sum(self._taken.values())

    async def take(self, owner: str, size: int) -> None:
        """Take memory at once, and the time to fill it. Raises EngineFailed: it is not there."""
        if size > self.free:
            raise EngineFailed(
                f"out of memory: {owner} wants {size} bytes, {self.free} of {self.capacity} are"
                f" free; others have {self._taken}"
            )
        self._set(owner, self._taken.get(owner, 0) + size)
        self.peak = max(self.peak, self.capacity - self.free)
        await asyncio.sleep(size / self._speed)

    async def give(self, owner: str) -> None:
        """Give back all that the owner has, after the time that it takes to empty it."""
        await asyncio.sleep(self._taken.get(owner, 0) / self._speed)
        self._set(owner, 0)

    def _set(self, owner: str, size: int) -> None:
        self._taken[owner] = size
        self.history.append((asyncio.get_running_loop().time(), owner, size))


@attrs.frozen(kw_only=True)
class Footprint:
    """What an engine takes of each device."""

    weights: int = 0
    working: int = 0
    """A rollout's cache; a learner's gradients, optimizer state and activations."""


class RolloutWithMemory:
    """Implements RolloutEngine by another one. Awake it holds its weights; its cache it takes with
    `resume`, so that a transfer has the room (I3)."""

    def __init__(
        self, engine: RolloutEngine, device: Device, size: Footprint, *, name: str = "rollout"
    ) -> None:
        self._engine, self._device, self._size, self._name = engine, device, size, name
        self._is_awake = self._has_cache = self._has_weights = False

    @property
    def capabilities(self) -> RolloutCapabilities:
        return attrs.evolve(self._engine.capabilities, sleep=True)

    @property
    def version(self) -> int:
        return self._engine.version

    async def start(self) -> None:
        """Take everything, as an engine does when it is built."""
        await self._device.take(self._name, self._size.weights + self._size.working)
        self._is_awake = self._has_cache = self._has_weights = True

    async def generate(self, request: Request) -> Generation:
        return await self._engine.generate(request)

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        return self._engine.stream(request)

    async def pause(self, mode: PauseMode) -> None:
        await self._engine.pause(mode)

    async def resume(self) -> None:
        """Takes the cache first. Raises IllegalTransition: asleep, or without weights."""
        if not (self._is_awake and self._has_weights):
            state = "has no weights: load them" if self._is_awake else "sleeps: wake it"
            raise IllegalTransition(f"{self._name} {state} before it generates")
        if not self._has_cache:
            await self._device.take(self._name, self._size.working)
            self._has_cache = True
        await self._engine.resume()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        await self._engine.interrupt(requests)

    async def load_weights(self, update: Update) -> Digest | None:
        """Raises IllegalTransition: asleep."""
        if not self._is_awake:
            raise IllegalTransition(f"{self._name} sleeps: wake it before it loads weights")
        digest = await self._engine.load_weights(update)
        self._has_weights = True
        return digest

    async def sleep(self) -> None:
        """Returns when weights and cache are free."""
        await self._device.give(self._name)
        self._is_awake = self._has_cache = self._has_weights = False

    async def wake(self) -> None:
        """Takes memory for the weights."""
        if not self._is_awake:
            await self._device.take(self._name, self._size.weights)
            self._is_awake = True

    async def close(self) -> None:
        await self._engine.close()
        await self._device.give(self._name)


class Held:
    """What a learner holds of a device."""

    def __init__(self, device: Device, size: Footprint, *, name: str = "policy") -> None:
        self._device, self._name = device, name
        self._bytes = size.weights + size.working
        if not self._bytes:
            raise WrongValue(f"{name} holds nothing; give it a footprint")
        self.is_here = False

    async def onload(self) -> None:
        """Take everything; nothing where it is here."""
        if not self.is_here:
            await self._device.take(self._name, self._bytes)
            self.is_here = True

    async def offload(self) -> None:
        """Give everything back; returns when it is free."""
        if self.is_here:
            await self._device.give(self._name)
            self.is_here = False

    def require(self, what: str) -> None:
        """Raises IllegalTransition: it is away."""
        if not self.is_here:
            raise IllegalTransition(f"{self._name} is offloaded: onload it before it can {what}")
