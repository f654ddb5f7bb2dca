"""An actor, as its cluster sees it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from hexpo.adapters.cluster.ray.host import Place, lent
from hexpo.adapters.cluster.wire.codec import decode, encode
from hexpo.adapters.cluster.wire.endings import killed_for_memory
from hexpo.adapters.cluster.wire.failures import revived
from hexpo.adapters.cluster.wire.logs import Tail
from hexpo.adapters.cluster.wire.service import dead
from hexpo.application.ports.cluster import Death, ProcessSpec
from hexpo.domain.errors import EngineFailed

_log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Bounds:
    """How long a beginning or an ending may take, in seconds."""

    place: float
    start: float
    close: float


class RayProcess:
    """Implements Process. Its cluster makes it; `ready` ends the start."""

    def __init__(
        self,
        ray: ModuleType,
        spec: ProcessSpec,
        actor: Any,
        *,
        bounds: Bounds,
        tail: Tail,
        ended: Callable[[str], None],
    ) -> None:
        self._ray, self._spec, self._actor = ray, spec, actor
        self._bounds, self._tail, self._ended = bounds, tail, ended
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

    async def ready(self) -> None:
        """Compose the service. Raises what the entry raised; EngineFailed: it ended, or is late."""
        bounds, parts = self._bounds, encode((self._spec.entry, self._spec.value))
        self._place = await self._within(bounds.place, "place_seconds", self._actor.settle.remote())
        composing = self._actor.compose.remote(lent(parts))
        composed, parts = await self._within(bounds.start, "start_seconds", composing)
        if not composed:
            raise revived(decode(parts), name=self.name)

    async def _within(self, seconds: float, setting: str, reference: Any) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await self._answer(reference)
        except TimeoutError:
            raise EngineFailed(
                f"process {self.name!r} was not ready after {seconds:g} s;"
                f" {self._tail.quote()}raise {setting} if it only needs longer"
            ) from None

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the service."""
        if self._death.done():
            raise dead(self.name, self._death.result().cause)
        number, parts = next(self._numbers), lent(encode((method, arguments, options)))
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
                await asyncio.wait({closing, self._death}, timeout=self._bounds.close)
                if not closing.done():
                    _log.warning("%s did not close within %g s", self.name, self._bounds.close)
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
            cause = _in_words(error) + self._memory()
        else:
            cause = "its actor returned"
        expected = self._stopping is not None
        self._ended(self.name)
        self._tail.pass_on()
        log = str(self._tail.path) if self._tail.path.exists() else ""
        self._death.set_result(Death(name=self.name, cause=cause, expected=expected, log=log))
        if not expected:
            _log.error("process %s died; %s%s", self.name, self._tail.quote(), cause)
        if self._place is not None and self._place.near:
            folder = Path(self._place.folder)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _memory(self) -> str:
        place = self._place
        short = place is not None and place.near and killed_for_memory() > place.memory_kills
        return "; the machine was out of memory" if short else ""


async def _awaited(reference: Any) -> Any:
    return await reference


def _in_words(error: Exception) -> str:
    """Ray's account of a death, without its advice; it names no signal and no exit code."""
    told = " ".join(str(error).split())
    account, _, _ = told.partition(" Some common causes include")
    _, found, ending = account.partition("Worker exit type: ")
    kind, _, detail = ending.partition(" Worker exit detail: ")
    return f"the worker ended ({kind}): {detail}" if found else account
