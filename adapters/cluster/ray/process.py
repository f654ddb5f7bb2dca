"""An actor, as its cluster sees it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hexpo.adapters.cluster.ray.host import Place
from hexpo.adapters.cluster.wire.codec import decode, encode
from hexpo.adapters.cluster.wire.failures import revived
from hexpo.adapters.cluster.wire.logs import Tail
from hexpo.adapters.cluster.wire.service import dead
from hexpo.application.ports.cluster import Death, ProcessSpec
from hexpo.domain.errors import EngineFailed

_log = logging.getLogger(__name__)


class RayProcess:
    """Implements Process. Its cluster makes it; `ready` ends the start."""

    def __init__(
        self,
        ray: ModuleType,
        spec: ProcessSpec,
        actor: Any,
        *,
        close_seconds: float,
        tail: Tail,
        ended: Callable[[str], None],
    ) -> None:
        self._ray, self._spec, self._actor = ray, spec, actor
        self._close_seconds, self._tail, self._ended = close_seconds, tail, ended
        self._numbers = itertools.count(1)
        self._place: Place | None = None
        self._death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[None] | None = None
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def name(self) -> str:
        """As wanted."""
        return self._spec.name

    @property
    def pid(self) -> int:
        """On its own node. Raises EngineFailed: it is not ready yet."""
        if self._place is None:
            raise EngineFailed(f"process {self.name!r} has no number yet: it is not ready")
        return self._place.pid

    async def ready(self, seconds: float) -> None:
        """Compose the service. Raises what the entry raised; EngineFailed: it ended, or is late."""
        parts = encode((self._spec.entry, self._spec.value))
        try:
            async with asyncio.timeout(seconds):
                self._place = await self._answer(self._actor.settle.remote())
                composed, parts = await self._answer(self._actor.compose.remote(parts))
        except TimeoutError:
            raise EngineFailed(
                f"process {self.name!r} was not ready after {seconds:g} s;"
                f" {self._tail.quote()}raise start_seconds if it only needs longer"
            ) from None
        if not composed:
            raise revived(decode(parts), name=self.name)

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the service."""
        if self._death.done():
            raise dead(self.name, self._death.result().cause)
        number, parts = next(self._numbers), encode((method, arguments, options))
        try:
            returned, answered = await self._answer(self._actor.call.remote(number, parts))
        except asyncio.CancelledError:
            if not self._death.done():
                self._actor.cancel.remote(number)
            raise
        if not answered:
            raise dead(self.name, "it is being stopped")
        if not returned:
            raise revived(decode(answered), name=self.name)
        return decode(answered)

    async def _answer(self, reference: Any) -> Any:
        """Wait for Ray's answer, or for the death. Raises EngineFailed with its cause."""
        answer = asyncio.ensure_future(_awaited(reference))
        try:
            await asyncio.wait({answer, self._death}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and answer.exception() is None:
                return answer.result()
        finally:
            answer.cancel()
        if answer.done() and not isinstance(answer.exception(), self._ray.exceptions.RayActorError):
            raise EngineFailed(f"process {self.name!r}: Ray could not deliver") from (
                answer.exception()
            )
        raise dead(self.name, f"{self._tail.quote()}{(await self.death()).cause}")

    async def death(self) -> Death:
        """Wait until it ends."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """End it: by its service's `close`, and then by force."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if not self._death.done():
            if self._place is not None:
                closing = asyncio.ensure_future(_awaited(self._actor.close.remote()))
                await asyncio.wait({closing, self._death}, timeout=self._close_seconds)
                if not closing.done():
                    _log.warning("%s did not close within %g s", self.name, self._close_seconds)
                elif not closing.cancelled() and (error := closing.exception()):
                    _log.warning("%s failed to close: %s", self.name, error)
                closing.cancel()
            self._ray.kill(self._actor)
        await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        """Turn the end of the actor into a death, and clear up behind it."""
        try:
            await _awaited(self._actor.stay.remote())
        except self._ray.exceptions.RayError as error:
            cause = _in_words(error)
        else:
            cause = "its actor returned"
        expected = self._stopping is not None
        self._ended(self.name)
        self._tail.pass_on()
        log = str(self._tail.path) if self._tail.path.exists() else ""
        self._death.set_result(Death(name=self.name, cause=cause, expected=expected, log=log))
        if not expected:
            _log.error("process %s died; %s%s", self.name, self._tail.quote(), cause)
        if self._place is not None and self._place.node == socket.gethostname():
            folder = Path(self._place.folder)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _awaited(reference: Any) -> Any:
    return await reference


def _in_words(error: Exception) -> str:
    """Ray's account of a death, without its advice."""
    told = " ".join(str(error).split())
    account, _, _ = told.partition(" Some common causes include")
    _, found, exit_type = account.partition("Worker exit type: ")
    return f"the worker ended: {exit_type}" if found else account
