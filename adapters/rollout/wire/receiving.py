"""An engine that reads weights from tensors in its process, and a transfer that writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

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
from hexpo.domain.errors import EngineFailed, HexpoError, IllegalTransition


class ReceivingRollout:
    """Implements `RolloutEngine` around one: `load_weights` first takes the weights in.

    While they are half written, or gone after a sleep, the engine cannot resume (G8).
    """

    def __init__(self, engine: RolloutEngine, receive: Callable[[Update], Digest]) -> None:
        """Args: receive: writes an update's weights to where the engine reads them; blocks."""
        self._engine, self._receive = engine, receive
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="receive")
        self._receiving: Future[Digest] | None = None
        self._paused = False
        self._invalid = ""
        """Why the weights are not to be used."""

    @property
    def capabilities(self) -> RolloutCapabilities:
        """Its weights are its own: whoever trains may change others meanwhile."""
        return attrs.evolve(self._engine.capabilities, overlap=True)

    @property
    def version(self) -> int:
        return self._engine.version

    async def generate(self, request: Request) -> Generation:
        return await self._engine.generate(request)

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        return self._engine.stream(request)

    async def pause(self, mode: PauseMode) -> None:
        await self._engine.pause(mode)
        self._paused = True

    async def resume(self) -> None:
        """Raises EngineFailed: the weights are not whole."""
        if self._invalid:
            raise EngineFailed(f"the engine cannot resume: {self._invalid}; load weights first")
        self._paused = False
        await self._engine.resume()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        await self._engine.interrupt(requests)

    async def load_weights(self, update: Update) -> Digest | None:
        """Raises IllegalTransition: not paused. EngineFailed: the weights did not come whole."""
        if not self._paused:
            raise IllegalTransition(f"load_weights({update.version}) while generating: pause first")
        await self._earlier()
        self._invalid = f"version {update.version} did not arrive whole"
        self._receiving = self._thread.submit(self._receive, update)
        try:
            digest = await asyncio.wrap_future(self._receiving)
        except HexpoError:
            raise
        except Exception as error:
            raise EngineFailed(
                f"version {update.version} could not be received: {type(error).__name__}: {error}"
            ) from error
        await self._engine.load_weights(update)
        self._invalid = ""
        return digest

    async def _earlier(self) -> None:
        """A cancelled load goes on in its thread until its own bound; two must not write."""
        if self._receiving is not None and not self._receiving.done():
            await asyncio.wait([asyncio.wrap_future(self._receiving)])

    async def sleep(self) -> None:
        await self._engine.sleep()
        self._invalid = "its weights are gone since it slept"

    async def wake(self) -> None:
        await self._engine.wake()

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._engine.close()
