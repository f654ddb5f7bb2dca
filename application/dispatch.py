"""Sends each request to a replica, and on to another one where that replica fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import attrs

from hexpo.application.membership import Member, Running
from hexpo.application.pieces import Pieces
from hexpo.application.ports.rollout import Chunk, Generation, Request
from hexpo.application.routing import SLACK, LeastLoaded
from hexpo.application.soundness import flaw_of_piece
from hexpo.domain.errors import EngineFailed
from hexpo.domain.trajectory import StopReason

NONSENSE = 3
"""Answers in a row that can be none, after which a replica is not asked any more."""


@attrs.define(eq=False)
class _Session:
    member: Member
    """Who has its prefix."""
    requests: int = 0


class Desk:
    """Members that answer the same requests: requests of one session go to one of them while it
    has little more to do than the least loaded, others to that one. A request whose replica is
    fenced goes on at another one, behind what it has. A single bad answer is its sample's failure;
    a member that gives nothing else is at fault itself.
    """

    def __init__(
        self,
        *,
        on_death: Callable[[Member, EngineFailed], None],
        slack: int = SLACK,
        vocabulary: int | None = None,
    ) -> None:
        """Args: on_death: a member's engine failed; it is to be fenced. slack: requests that a
        session's member may have more than the least loaded before the session moves on.
        vocabulary: ids from there on are no answer; None: any may be."""
        self._on_death, self._slack, self._vocabulary = on_death, slack, vocabulary
        self._members: LeastLoaded[Member] = LeastLoaded()
        self._sessions: dict[str, _Session] = {}
        self._changed = asyncio.Event()
        self.broken: EngineFailed | None = None
        """Why nobody answers any more."""
        self.moved = 0
        """Requests that went on elsewhere, since the beginning."""
        self.waiting = 0
        """Requests that no replica could take yet."""

    def __len__(self) -> int:
        return len(self._members)

    def open(self, member: Member) -> None:
        """The member answers from now on."""
        self._members.enter(member, len(member.running))
        self._changed.set()

    def shut(self, member: Member) -> None:
        """The member gets nothing new."""
        self._members.leave(member)

    def idlest(self, count: int) -> list[Member]:
        """Members with the least to do."""
        return self._members.idlest(count)

    def fail(self, error: EngineFailed) -> None:
        """Whoever waits, and whoever comes, gets this error."""
        self.broken = error
        self._changed.set()

    async def answer(self, request: Request) -> Generation:
        """The whole answer. Raises EngineFailed: too few replicas are left."""
        now = asyncio.get_running_loop().time
        began, pieces = now(), Pieces(request)
        while (rest := pieces.rest(seconds=now() - began)) is not None:
            member = await self._next(request.session)
            piece = await self._ask(member, rest)
            if piece is not None:
                self._judge(member, piece)
                pieces.add(piece)
                if not (member.is_fenced and piece.stop is StopReason.ABORTED):
                    return pieces.whole()
            self.moved += 1
        return pieces.whole(StopReason.TIMEOUT)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """The answer as it grows, from one replica. Raises EngineFailed: that one failed."""
        member = await self._next(request.session)
        running = self._begin(member)
        try:
            async for chunk in member.engine.stream(request):
                yield chunk
        except EngineFailed as error:
            self._on_death(member, error)
            raise
        finally:
            self._end(member, running, request.session)

    async def _ask(self, member: Member, request: Request) -> Generation | None:
        """Its answer, whole or cut; None: it failed, or was fenced and gave nothing back."""
        running = self._begin(member)
        try:
            async with running.bound:
                return await member.engine.generate(request)
        except TimeoutError:
            if not running.bound.expired():
                raise
            return None
        except EngineFailed as error:
            self._on_death(member, error)
            return None
        finally:
            self._end(member, running, request.session)

    def _judge(self, member: Member, piece: Generation) -> None:
        flaw = flaw_of_piece(piece, vocabulary=self._vocabulary)
        member.nonsense = 0 if flaw is None else member.nonsense + 1
        if member.nonsense == NONSENSE:
            what = f"{NONSENSE} answers in a row can be none; of the last one: {flaw}"
            self._on_death(member, EngineFailed(f"{member.name} talks nonsense: {what}"))

    async def _next(self, session: str) -> Member:
        self.waiting += 1
        try:
            while not len(self._members) and self.broken is None:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.waiting -= 1
        if self.broken is not None:
            raise EngineFailed(*self.broken.args) from self.broken.__cause__
        if not session:
            return self._members.least()
        entry = self._sessions.get(session)
        if entry is None:
            entry = self._sessions[session] = _Session(self._members.least())
        elif not self._members.has_room(entry.member, slack=self._slack):
            entry.member = self._members.least()
        entry.requests += 1
        return entry.member

    def _begin(self, member: Member) -> Running:
        running = Running(asyncio.timeout(None))
        member.begin(running)
        self._members.add(member, 1)
        return running

    def _end(self, member: Member, running: Running, session: str) -> None:
        member.end(running)
        self._members.add(member, -1)
        if not session:
            return
        entry = self._sessions[session]
        entry.requests -= 1
        if not entry.requests:
            del self._sessions[session]
