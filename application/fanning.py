"""The same call to several replicas at once, with a time bound; who fails is fenced."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs

from hexpo.application.membership import Member
from hexpo.application.ports.rollout import PauseMode, RolloutEngine
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed, Unsupported, WrongValue

_ANSWER_SECONDS = 5.0
"""How long a replica that lives may take to answer a call that does nothing."""

Call = Callable[[RolloutEngine], Coroutine[Any, Any, Any]]


def never(error: BaseException) -> bool:
    """No error was another one's fault."""
    return False


def because(message: str, cause: BaseException | None) -> EngineFailed:
    """The error, with what caused it."""
    error = EngineFailed(message)
    error.__cause__ = cause
    return error


class Missed(Enum):
    """What becomes of whoever is late."""

    FENCE = "fence"
    """It is fenced: nobody else has to do with it."""
    ASK = "ask"
    """It may wait for another one that fails or hangs, so it is asked whether it lives."""
    WAIT = "wait"
    """It may take its time, as long as it says that it lives whenever the bound has passed."""


@attrs.frozen(kw_only=True, eq=False)
class Fan:
    """Calls members together. Whoever fails or is late is fenced; its late answer is read by
    nobody."""

    fence: Callable[[Member, BaseException], None]
    is_consequence: Callable[[BaseException], bool]

    async def out(
        self,
        members: Sequence[Member],
        what: str,
        call: Call,
        seconds: float,
        *,
        missed: Missed = Missed.FENCE,
    ) -> dict[Member, Any]:
        """The answers of those that gave one.

        Raises: Unsupported, WrongValue: what one of them raised; it is not fenced for that.
            EngineFailed: some did not answer, and were not to blame for it.
        """
        failures: list[tuple[Member, BaseException]] = []
        tasks = {asyncio.ensure_future(call(member.engine)): member for member in members}
        for task, member in tasks.items():
            task.add_done_callback(_noting(member, failures))
        try:
            if missed is Missed.WAIT:
                await self._patiently(tasks, what, seconds)
            elif tasks:
                await asyncio.wait(tasks, timeout=seconds)
            await asyncio.sleep(0)  # the callbacks
            done = {member: task for task, member in tasks.items() if task.done()}
            late = [member for task, member in tasks.items() if not task.done()]
        finally:
            for task in tasks:
                task.cancel()
        for member, error in failures:  # in the order of time
            if isinstance(error, Unsupported | WrongValue):
                raise error
            if not self.is_consequence(error):
                self.fence(member, error)
        innocent = [member for member, error in failures if self.is_consequence(error)]
        answered = {m: t.result() for m, t in done.items() if not (t.cancelled() or t.exception())}
        ask = missed is Missed.ASK and (len(failures) > len(innocent) or not answered)
        innocent += await self._judge(late, f"{what} within {seconds} s", ask=ask)
        if innocent:
            names = ", ".join(member.name for member in innocent)
            cause = failures[0][1] if failures else None
            raise EngineFailed(f"{names} did not {what}, and waited for others") from cause
        return answered

    async def catch_up(
        self,
        member: Member,
        update: Update,
        digest: Digest | None,
        *,
        call_seconds: float,
        load_seconds: float,
    ) -> None:
        """Bring one member to the version that the others have, or fence it.

        Args: digest: what the others read. call_seconds, load_seconds: bounds of the calls.
        """
        await self.out([member], "pause", lambda e: e.pause(PauseMode.ABORT), call_seconds)
        read = await self.out(
            [] if member.is_fenced else [member],
            f"confirm version {update.version}",
            lambda engine: engine.load_weights(update),
            load_seconds,
        )
        require_same(confirmed(read, update.version, self.fence), digest, self.fence)
        here = [] if member.is_fenced else [member]
        await self.out(here, "resume", lambda engine: engine.resume(), call_seconds)

    async def _judge(self, late: Sequence[Member], what: str, *, ask: bool) -> list[Member]:
        """Fences those that are late by themselves. Returns: the others."""
        lives = await self._alive(late) if late and ask else []
        for member in late:
            if member not in lives:
                self.fence(member, EngineFailed(f"{member.name} did not {what}"))
        return lives

    async def _patiently(
        self, tasks: Mapping[asyncio.Task[Any], Member], what: str, seconds: float
    ) -> None:
        """Until each has ended, or its member is fenced, by this or by another failure."""
        late = set(tasks)
        while late:
            _, late = await asyncio.wait(late, timeout=seconds)
            lives = await self._alive([tasks[task] for task in late]) if late else []
            for task in late:
                if not (task.done() or tasks[task] in lives):
                    error = f"{tasks[task].name} did not {what}, nor say within {_ANSWER_SECONDS}"
                    self.fence(tasks[task], EngineFailed(f"{error} s that it lives"))
            late = {task for task in late if tasks[task] in lives and not tasks[task].is_fenced}

    async def _alive(self, members: Sequence[Member]) -> list[Member]:
        asked = {asyncio.ensure_future(member.engine.interrupt(())): member for member in members}
        try:
            done, _ = await asyncio.wait(asked, timeout=_ANSWER_SECONDS)
        finally:
            for task in asked:
                task.cancel()
        return [asked[task] for task in done if not (task.cancelled() or task.exception())]


def _noting(
    member: Member, failures: list[tuple[Member, BaseException]]
) -> Callable[[asyncio.Task[Any]], None]:
    def note(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failures.append((member, error))

    return note


def confirmed(
    read: Mapping[Member, Digest | None],
    version: int,
    fence: Callable[[Member, BaseException], None],
) -> dict[Member, Digest | None]:
    """Of those that answered, who reports the version that it was given; the others are fenced."""
    for member in read:
        if not member.is_fenced and member.engine.version != version:
            what = f"reports version {member.engine.version} after loading {version}"
            fence(member, EngineFailed(f"{member.name} {what}"))
    return {member: got for member, got in read.items() if not member.is_fenced}


def require_same(
    read: Mapping[Member, Digest | None],
    digest: Digest | None,
    fence: Callable[[Member, BaseException], None],
) -> None:
    """Fences whoever read other weights."""
    for member, got in read.items():
        if got != digest:
            error = EngineFailed(
                f"{member.name} read {_words(got)}, most others {_words(digest)}: its weights"
                " cannot be trusted"
            )
            fence(member, error)


def agreed(
    read: Mapping[Member, Digest | None], fence: Callable[[Member, BaseException], None]
) -> Digest | None:
    """What most of them read; the others are fenced.

    Raises: EngineFailed: no more than half of them read the same.
    """
    if not read:
        return None
    counted = Counter(read.values()).most_common()
    digest, votes = counted[0]
    if len(counted) > 1 and 2 * votes <= len(read):
        each = "; ".join(f"{member.name} read {_words(got)}" for member, got in read.items())
        raise EngineFailed(f"replicas read different weights, no two halves alike: {each}")
    require_same(read, digest, fence)
    return digest


def _words(digest: Digest | None) -> str:
    if digest is None:
        return "nothing"
    return f"{digest.tensors} tensors with checksum {digest.checksum}"
