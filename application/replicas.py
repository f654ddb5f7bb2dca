"""Several rollout engines behind one port: routing, fencing, leases.

Whoever fails, is late, talks nonsense, or reports another version or other weights than its peers
is *fenced*: it gets no request and no update any more, and what runs in it goes on elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs

from hexpo.application.dispatch import Desk
from hexpo.application.fanning import Fan, Missed, agreed, because, confirmed, never
from hexpo.application.leasing import Lease
from hexpo.application.membership import Member, Standing, Usage, shares
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    RolloutEngine,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed, NotEnough, WrongValue
from hexpo.domain.metrics import Measure, latest, total

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ReplicaSettings:
    """Bounds of what several replicas do together."""

    least_share: float = attrs.field(
        default=0.5, validator=[attrs.validators.gt(0), attrs.validators.le(1)]
    )
    """The run goes on while at least this share of the replicas is not fenced."""
    load_seconds: float = attrs.field(default=45.0, validator=attrs.validators.gt(0))
    """How long a replica may take to confirm a version. Less than half of the transfer's own
    bound, so that whoever is late is named here first."""
    call_seconds: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    """How long a replica may take to pause, resume, sleep, wake, or give back what it has."""
    catch_up: bool = False
    """The transfer keeps a version until the next one, so that a replica can load it later: after
    a lease, or when it is readmitted. Otherwise it waits for the next version."""


class Replicas:
    """Implements RolloutEngine by several. Built and used in one event loop."""

    def __init__(
        self,
        engines: Mapping[str, RolloutEngine],
        settings: ReplicaSettings = ReplicaSettings(),
        *,
        readers: Mapping[str, Sequence[str]] | None = None,
        is_consequence: Callable[[BaseException], bool] = never,
        vocabulary: int | None = None,
    ) -> None:
        """Args: engines: by the name that logs and errors give them.
        readers: names of each replica's receivers; its own name where none are given.
        is_consequence: tells errors of a load that were another's fault: they fence nobody.
        vocabulary: whoever answers again and again with ids from there on is fenced.

        Raises: WrongValue: there is none.
        """
        if not engines:
            raise WrongValue("replicas need at least one rollout engine")
        self._settings, self._of = settings, readers or {}
        self._members = {name: Member(name, engine) for name, engine in engines.items()}
        self._open_desk = partial(Desk, on_death=self._fence, vocabulary=vocabulary)
        self._desk = self._open_desk()
        self._leases: set[Desk] = set()
        self._fenced: dict[str, BaseException] = {}
        self._fan = Fan(fence=self._fence, is_consequence=is_consequence)
        self._turn = asyncio.Lock()  # held from pause to resume, and while one catches up
        self._paused: list[Member] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._pulse: asyncio.Task[None] | None = None
        self._closed = False
        self._update: Update | None = None
        self._digest: Digest | None = None
        self._version = max(engine.version for engine in engines.values())
        self._moved_reported = 0
        for member in self._members.values():
            self._admit(member)

    @property
    def capabilities(self) -> RolloutCapabilities:
        """What all of them can do."""
        each = [member.engine.capabilities for member in self._members.values()]
        return RolloutCapabilities(
            pause_modes=frozenset.intersection(*(one.pause_modes for one in each)),
            filtered_logprobs=all(one.filtered_logprobs for one in each),
            stop_texts=all(one.stop_texts for one in each),
            overlap=all(one.overlap for one in each),
            sleep=all(one.sleep for one in each),
            replicas=sum(one.replicas for one in each),
        )

    @property
    def version(self) -> int:
        """What every replica has that is neither fenced nor leased."""
        return self._version

    @property
    def fenced(self) -> Mapping[str, BaseException]:
        """Who is left alone, and why, first failure first."""
        return dict(self._fenced)

    @property
    def standings(self) -> Mapping[str, Standing]:
        """What each replica is now."""
        return {name: member.standing for name, member in self._members.items()}

    def readers(self) -> list[str]:
        """Names of the receivers that take part in the present or the next update."""
        return [
            reader
            for member in self._updated()
            for reader in self._of.get(member.name, (member.name,))
        ]

    # Answers

    async def generate(self, request: Request) -> Generation:
        """From the session's replica, else the least loaded. A request whose replica is fenced
        goes on at another one; one that is given up makes them say that they live. Raises
        EngineFailed: too few are left; names all."""
        try:
            return await self._desk.answer(request)
        except asyncio.CancelledError:
            if self._paused is None and (self._pulse is None or self._pulse.done()):
                self._pulse = self._errand(self._feel())
            raise

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """From one replica. Raises EngineFailed, too, where that one fails: a stream stays."""
        return self._desk.stream(request)

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """Everywhere but in leases and fenced replicas."""
        await self._do(self._updated(), "interrupt", lambda engine: engine.interrupt(requests))

    @asynccontextmanager
    async def lease(self, count: int = 1) -> AsyncIterator[Lease]:
        """Keep the `count` least loaded replicas at their version and for oneself. They end what
        they have begun for others. On return they catch up before they serve again.

        Raises: NotEnough: none would be left to the others.
        """
        async with self._turn:
            self._require_living()
            if not 0 < count < len(self._desk):
                raise NotEnough(
                    f"{count} of {len(self._desk)} serving replicas cannot be leased: at least one"
                    " stays with training"
                )
            members = self._desk.idlest(count)
            desk = self._open_desk()
            self._leases.add(desk)
            for member in members:
                member.standing = Standing.LEASED
                self._desk.shut(member)
                desk.open(member)
        try:
            yield Lease(desk, capabilities=self.capabilities, version=self._version)
        finally:
            self._leases.discard(desk)
            desk.fail(EngineFailed("this lease of replicas has ended"))
            for member in members:
                if not member.is_fenced:
                    member.standing = Standing.RETURNING
                    if not self._closed:
                        self._errand(self._return(member))

    # Updates

    async def pause(self, mode: PauseMode) -> None:
        """All but leased and fenced ones, side by side, each within the bound. A drain takes as
        long as the longest answer of a replica that says that it lives."""
        if self._paused is None:
            await self._turn.acquire()
            if self._closed:  # meanwhile: nobody would resume
                self._turn.release()
            else:
                self._paused = self._updated()
        missed = Missed.WAIT if mode is PauseMode.DRAIN else Missed.FENCE
        await self._do(self._updated(), "pause", lambda engine: engine.pause(mode), missed=missed)

    async def resume(self) -> None:
        """All that were paused. Those that came back with this version serve from here on."""
        members = self._updated()
        await self._do(members, "resume", lambda engine: engine.resume())
        for member in members:
            self._admit(member)
        if self._paused is not None:
            self._paused = None
            self._turn.release()

    async def load_weights(self, update: Update) -> Digest | None:
        """All that were paused load; the version counts when every one confirmed that is not
        fenced, within the bound, with the same digest.

        Raises: EngineFailed: too few are left, the readers do not agree, or the sender failed;
            the last two may be tried again.
        """
        read = await self._do(
            self._updated(),
            f"confirm version {update.version}",
            lambda engine: engine.load_weights(update),
            self._settings.load_seconds,
            missed=Missed.ASK,
        )
        digest = agreed(confirmed(read, update.version, self._fence), self._fence)
        self._require_living()
        self._version, self._update, self._digest = update.version, update, digest
        return digest

    async def sleep(self) -> None:
        """All that were paused."""
        await self._do(self._updated(), "sleep", lambda engine: engine.sleep())

    async def wake(self) -> None:
        """All that were paused."""
        await self._do(self._updated(), "wake", lambda engine: engine.wake())

    async def readmit(self, name: str, engine: RolloutEngine | None = None) -> None:
        """A fenced replica, or a new engine in its place, serves again: at once where the transfer
        keeps the present version, else after the next one.

        Raises: WrongValue: it is not fenced.
        """
        member = self._members.get(name)
        if member is None or not member.is_fenced:
            raise WrongValue(f"replica {name!r} is not fenced; fenced are {list(self._fenced)}")
        await member.idle.wait()
        fresh = self._members[name] = Member(name, engine or member.engine)
        del self._fenced[name]
        log.info("replica %s is readmitted", name)
        await self._return(fresh, loaded=False)

    async def close(self) -> None:
        """All of them, fenced ones included."""
        if self._closed:
            return
        self._closed = True
        ended = EngineFailed("the rollout replicas are closed")
        for desk in (self._desk, *self._leases):
            desk.fail(ended)
        if self._paused is not None:  # an update that broke off: whoever waits for its end learns
            self._paused = None
            self._turn.release()
        for errand in self._errands:
            errand.cancel()
        async with asyncio.TaskGroup() as tasks:
            for member in self._members.values():
                tasks.create_task(self._close(member))
        if self._errands:
            await asyncio.wait(self._errands)

    # Numbers

    def usage(self) -> tuple[Usage, ...]:
        """Of every replica, since the last call."""
        return tuple(member.usage() for member in self._members.values())

    def metrics(self) -> dict[str, Measure]:
        """Busy shares, requests and faults since the last call."""
        moved = sum(desk.moved for desk in (self._desk, *self._leases))
        new, self._moved_reported = moved - self._moved_reported, moved
        return {
            **shares(self.usage()),
            "replicas/waiting": latest(float(self._desk.waiting)),
            "replicas/moved": total(float(new)),
        }

    # Inside

    def _updated(self) -> list[Member]:
        """Who takes part in the update that goes on, or else in the next one."""
        if self._paused is not None:
            return [member for member in self._paused if not member.is_fenced]
        here = (Standing.SERVING, Standing.RETURNING)
        return [member for member in self._members.values() if member.standing in here]

    def _admit(self, member: Member) -> None:
        """Let it serve, if it has the present version."""
        if member.standing not in (Standing.SERVING, Standing.RETURNING):
            return
        is_present = member.engine.version == self._version
        member.standing = Standing.SERVING if is_present else Standing.RETURNING
        if is_present:
            self._desk.open(member)

    async def _do(
        self,
        members: Sequence[Member],
        what: str,
        call: Callable[[RolloutEngine], Coroutine[Any, Any, Any]],
        seconds: float | None = None,
        *,
        missed: Missed = Missed.FENCE,
    ) -> dict[Member, Any]:
        if self._closed:
            raise EngineFailed("the rollout replicas are closed")
        bound = self._settings.call_seconds if seconds is None else seconds
        done = await self._fan.out(members, what, call, bound, missed=missed)
        self._require_living()
        return done

    def _fence(self, member: Member, error: BaseException) -> None:
        if member.is_fenced or self._closed:
            return
        member.standing = Standing.FENCED
        self._fenced[member.name] = error
        log.error("replica %s is fenced: %s", member.name, error, exc_info=error)
        for desk in (self._desk, *self._leases):
            desk.shut(member)
            if not len(desk) and desk is not self._desk:
                desk.fail(because(f"no leased replica is left: {error}", error))
        self._errand(self._evacuate(member))
        living = len(self._members) - len(self._fenced)
        if living < max(1.0, self._settings.least_share * len(self._members)):
            for desk in (self._desk, *self._leases):
                desk.fail(self._too_few())

    def _too_few(self) -> EngineFailed:
        causes = "; ".join(f"{name} ({error})" for name, error in self._fenced.items())
        error = EngineFailed(
            f"{len(self._fenced)} of {len(self._members)} rollout replicas failed and a share of"
            f" {self._settings.least_share:g} must live; in order: {causes}"
        )
        return because(str(error), next(iter(self._fenced.values())))

    def _require_living(self) -> None:
        if self._desk.broken is not None:
            raise because(str(self._desk.broken), self._desk.broken.__cause__)

    async def _evacuate(self, member: Member) -> None:
        """What runs in a fenced replica returns with what it has, or without it."""
        bound = self._settings.call_seconds
        try:
            async with asyncio.timeout(bound):
                await member.engine.interrupt()
                await member.idle.wait()
        except Exception as error:  # noqa: BLE001  it is fenced: nothing that it says counts
            log.info("replica %s gave nothing back (%s)", member.name, error)
            await asyncio.sleep(0)
        member.release()

    async def _return(self, member: Member, *, loaded: bool = True) -> None:
        """After a lease or a readmission: load the present version, or wait for the next one."""
        member.standing = Standing.RETURNING
        async with self._turn:
            update = self._update
            is_old = member.engine.version != self._version or not loaded
            if is_old and update is not None and self._settings.catch_up:
                bounds = self._settings
                await self._fan.catch_up(
                    member,
                    update,
                    self._digest,
                    call_seconds=bounds.call_seconds,
                    load_seconds=bounds.load_seconds,
                )
            elif is_old:
                return
            self._admit(member)

    async def _feel(self) -> None:
        """A deadline passed: whoever hangs is found now, not at the next update."""
        if not len(self._desk):  # it passed in the queue: those that return wait for a version
            self._desk.fail(EngineFailed("no rollout replica serves, so no version can follow"))
        bound = self._settings.call_seconds
        await self._fan.out(self._updated(), "answer", lambda e: e.interrupt(()), bound)

    async def _close(self, member: Member) -> None:
        try:
            async with asyncio.timeout(self._settings.call_seconds):
                await member.engine.close()
        except (EngineFailed, TimeoutError) as error:
            log.warning("replica %s did not close: %s", member.name, error)
        member.release()  # whoever waits for one that hangs

    def _errand(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that nobody waits for; `close` does."""
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task
