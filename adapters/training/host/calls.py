"""One call to every rank: all answers, or the failure that came first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from hexpo.application.ports.cluster import Death, Process
from hexpo.domain.errors import CheckpointError, EngineFailed, HexpoError

_log = logging.getLogger(__name__)

_OF_OTHERS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
"""What a rank says when another one is gone: a consequence, never the cause (O5)."""


class Ranks:
    """The ranks' processes. One rank's failure ends them all: the others would wait for it."""

    def __init__(self, processes: Sequence[Process], *, grace_seconds: float) -> None:
        """Args: grace_seconds: how long the others may take to answer after one has failed."""
        self._processes, self._grace = list(processes), grace_seconds
        self._failure: EngineFailed | None = None
        self._closed = False
        self._watches = [asyncio.ensure_future(self._watch(process)) for process in processes]

    def __len__(self) -> int:
        return len(self._processes)

    async def _watch(self, process: Process) -> Death:
        death = await process.death()
        if not death.expected and self._failure is None and not self._closed:
            log = f"; its log is {death.log}" if death.log else ""
            self._failure = EngineFailed(f"training {process.name} died: {death.cause}{log}")
        return death

    def require_alive(self) -> None:
        """Raises EngineFailed: closed, or failed before, with the first cause."""
        if self._closed:
            raise EngineFailed("the training engine is closed")
        if self._failure is not None:
            raise EngineFailed(str(self._failure)) from self._failure

    async def first(self, method: str, *arguments: Any) -> Any:
        """Ask the first rank alone. Raises: as `all`."""
        return (await self._ask(self._processes[:1], method, arguments))[0]

    async def all(self, method: str, *arguments: Any) -> list[Any]:
        """Ask all ranks, and wait for all of them.

        Raises: HexpoError: a rank refused, and the others know: nothing was computed.
            EngineFailed: a rank failed or died; all of them are stopped.
        Cancellation: waits until the ranks have answered: they can only stop together.
        """
        return await self._ask(self._processes, method, arguments)

    async def _ask(self, asked: Sequence[Process], method: str, arguments: Any) -> list[Any]:
        self.require_alive()
        calls = [asyncio.ensure_future(process.call(method, *arguments)) for process in asked]
        ending = asyncio.ensure_future(self._end(calls))
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            ending.exception()
            raise

    async def _end(self, calls: Sequence[asyncio.Future[Any]]) -> list[Any]:
        ended: list[asyncio.Future[Any]] = []
        for call in calls:
            call.add_done_callback(ended.append)
        await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        if any(call.done() and call.exception() for call in calls):
            _, late = await asyncio.wait(calls, timeout=self._grace)
            for call in late:  # it ends with its process, which is stopped: no news
                call.add_done_callback(_look_at)
            await asyncio.sleep(0)
            errors = [error for call in ended if (error := call.exception()) is not None]
            refused = [error for error in errors if _is_refusal(error)]
            if not late and len(refused) == len(errors):
                raise refused[0]
            await self._fail(errors)
        return [call.result() for call in calls]

    async def _fail(self, errors: list[BaseException]) -> None:
        """Stop all ranks. Raises: EngineFailed: the first cause. CheckpointError: it was that."""
        await asyncio.sleep(0)  # a death may have been seen
        cause = next((error for error in errors if not _is_consequence(error)), errors[0])
        if self._failure is None or not _is_consequence(cause):
            failure = EngineFailed(f"training failed: {type(cause).__name__}: {cause}")
            failure.__cause__ = cause
            self._failure = self._failure or failure
        _log.error("%s; all training ranks are stopped", self._failure)
        await self._stop()
        if isinstance(cause, CheckpointError):  # of one rank's disk, say: it keeps its type
            raise cause
        raise self._failure

    async def _stop(self) -> None:
        async with asyncio.TaskGroup() as stops:
            for process in self._processes:
                stops.create_task(process.stop())

    async def close(self) -> None:
        """Stop all. Safe to call twice."""
        self._closed = True
        await self._stop()
        await asyncio.wait(self._watches)


def _look_at(call: asyncio.Future[Any]) -> None:
    """An error that nobody looked at is printed when its call is forgotten."""
    if not call.cancelled():
        call.exception()


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, HexpoError) and not isinstance(error, EngineFailed)


def _is_consequence(error: BaseException) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in _OF_OTHERS)
