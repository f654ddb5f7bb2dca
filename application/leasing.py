"""Replicas that are set aside at one policy version, for an evaluation, while the others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from hexpo.application.dispatch import Desk
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import Unsupported


class Lease:
    """Implements RolloutEngine on leased replicas: it answers, under one version to the end."""

    def __init__(self, desk: Desk, *, capabilities: RolloutCapabilities, version: int) -> None:
        self._desk, self._capabilities, self._version = desk, capabilities, version
        self._own: set[str] = set()

    @property
    def capabilities(self) -> RolloutCapabilities:
        return self._capabilities

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: Request) -> Generation:
        """Raises EngineFailed: no leased replica is left, or the lease has ended."""
        self._own.add(request.id)
        try:
            return await self._desk.answer(request)
        finally:
            self._own.discard(request.id)

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        return self._desk.stream(request)

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """End running requests of the lease, with what they have; others in the same replicas,
        from before the lease, go on."""
        named = self._own if requests is None else self._own.intersection(requests)
        for member in self._desk.idlest(len(self._desk)):
            await member.engine.interrupt(tuple(named))

    async def pause(self, mode: PauseMode) -> None:
        raise _refused("paused")

    async def resume(self) -> None:
        raise _refused("resumed")

    async def load_weights(self, update: Update) -> Digest | None:
        raise _refused("updated")

    async def sleep(self) -> None:
        raise _refused("put to sleep")

    async def wake(self) -> None:
        raise _refused("woken")

    async def close(self) -> None:
        """Leaving the lease's block ends it."""


def _refused(what: str) -> Unsupported:
    return Unsupported(f"a lease cannot be {what}: it is at one version until it is returned")
