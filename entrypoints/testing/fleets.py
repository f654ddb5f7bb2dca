"""The library's own replicas, watched: what must hold whatever befalls one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import torch

from hexpo.application.membership import Member, Standing
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Digest, Update
from hexpo.application.replicas import Replicas, ReplicaSettings
from hexpo.application.schedule import Side
from hexpo.domain.trajectory import StopReason
from hexpo.entrypoints.testing.mortal import Mishap, MortalReplica
from hexpo.entrypoints.testing.scenarios import Fault, Scenario

_ASKED_SECONDS = 5.0
"""What the library allows a replica for saying that it lives."""
_TRIES = 3
"""How often a version is sent."""
_CALLS = ReplicaSettings(load_seconds=6.0, call_seconds=3.0)


def settings_of(scenario: Scenario) -> ReplicaSettings:
    """Bounds of a scenario's replicas."""
    return ReplicaSettings(
        least_share=scenario.least_share,
        load_seconds=_CALLS.load_seconds,
        call_seconds=_CALLS.call_seconds,
        catch_up=scenario.catch_up,
    )


class WatchedReplicas(Replicas):
    """Notes each promise that is not kept; an error would count as a sample's."""

    def __init__(self, scenario: Scenario, engines: Mapping[str, MortalReplica]) -> None:
        vocabulary = min(engine.settings.vocabulary for engine in engines.values())
        super().__init__(engines, settings_of(scenario), vocabulary=vocabulary)
        self._scenario = scenario
        self._engines = dict(engines)
        self.broken: list[str] = []
        """Promises that were not kept."""
        self.garbled: set[str] = set()
        self.had_too_few = False
        """The run may end for want of replicas."""
        self._inside: dict[str, MortalReplica] = {}
        self._pieces: dict[str, list[Generation]] = {}
        self._left_alone: dict[MortalReplica, float] = {}
        self._fencings = {name: asyncio.Event() for name in engines}
        self._ill: list[MortalReplica] = []
        self._is_troubled = False
        self._returning = 0
        self._began = 0.0
        for engine in engines.values():
            engine.watch = self

    @property
    def _slack(self) -> float:
        return 20 * self._scenario.jitter + 1e-6

    def engine(self, name: str) -> MortalReplica:
        """Who serves under this name."""
        return self._engines[name]

    # Requests

    def asked(self, replica: MortalReplica, request: Request) -> None:
        """A replica is asked only while it serves, at a version that it confirmed."""
        name, standing = replica.name, self.standings[replica.name]
        is_leased = standing is Standing.LEASED and request.id.startswith("evaluate")
        serves = is_leased or standing is Standing.SERVING
        here = self._engines[name] is replica and serves
        self._note(here, f"G2: {name} was asked while {standing.value}, or replaced")
        is_held = self._paused is not None  # it begins after the update
        known = is_held or replica.version in replica.confirmed
        self._note(known, f"G2: {name} serves version {replica.version}, which it never confirmed")
        present = is_held or is_leased or replica.version == self.version
        self._note(present, f"G2: {name} serves {replica.version} beside version {self.version}")
        other = self._inside.setdefault(request.id, replica)
        self._note(other is replica, f"{request.id} is in {other.name} and in {name} at once")

    def left(self, replica: MortalReplica, request: Request, piece: Generation | None) -> None:
        """Whoever was in a fenced replica leaves it soon; what it has is of confirmed versions."""
        self._inside.pop(request.id, None)
        fenced = self._left_alone.get(replica)
        if fenced is not None and not self._closed:
            seconds = _now() - fenced
            bound = self._settings.call_seconds + self._slack
            self._note(
                seconds <= bound, f"F4: {request.id} stayed {seconds} s in fenced {replica.name}"
            )
        if piece is not None:
            self._pieces.setdefault(request.id, []).append(piece)
            strange = {span.version for span in piece.spans} - replica.confirmed
            self._note(not strange, f"G2: {replica.name} answered under versions {strange}")

    async def generate(self, request: Request) -> Generation:
        """The whole answer, if it is all that replicas gave for it and nothing else."""
        self._pieces.pop(request.id, None)
        answer = await super().generate(request)
        pieces = self._pieces.pop(request.id, [])
        if request.id not in self.garbled:
            self._compare(request, answer, pieces)
        return answer

    def _compare(self, request: Request, answer: Generation, pieces: list[Generation]) -> None:
        name = request.id
        for column in ("tokens", "logprobs"):
            parts = [getattr(piece, column) for piece in pieces]
            same = torch.equal(getattr(answer, column), torch.cat(parts)) if parts else True
            self._note(same, f"F8: {column} of {name} changed on the way")
        given = [version for piece in pieces for version in _versions(piece)]
        versions = _versions(answer)
        self._note(versions == given, f"F8: {name} has versions {versions}, sampled were {given}")
        self._note(versions == sorted(versions), f"F8: {name} went back: {versions}")
        if answer.stop in (StopReason.STOP, StopReason.LENGTH):
            wanted = self.expected(request)
            self._note(
                len(answer.tokens) == wanted, f"F8: {name} has {len(answer.tokens)} of {wanted} ids"
            )

    def expected(self, request: Request) -> int:
        """Ids of the whole answer to a request."""
        whole = next(iter(self._engines.values())).whole(request)
        return min(max(1, whole - request.given), request.sampling.max_new_tokens)

    # Updates

    async def pause(self, mode: PauseMode) -> None:
        """Whoever answers no call now is fenced when the update is over."""
        self._began = _now()
        self._ill = [
            engine
            for name, engine in self._engines.items()
            if engine.is_ill and self.standings[name] is not Standing.LEASED
        ]
        self._is_troubled = self._returning > 0 or any(
            engine.mishap is not None for engine in self._engines.values()
        )
        await super().pause(mode)
        if mode is PauseMode.DRAIN:
            self._began = _now()

    async def load_weights(self, update: Update) -> Digest | None:
        """Within its bound, however long any answer is."""
        digest = await super().load_weights(update)
        took, bound = _now() - self._began, self._bound()
        self._note(took <= bound, f"F6: version {update.version} took {took} s of {bound}")
        return digest

    async def resume(self) -> None:
        """All that took part serve again, at a version that they confirmed, or are fenced."""
        taking_part = self._updated()
        for member in taking_part:
            read = self.version in self._engines[member.name].confirmed
            self._note(read, f"G2: {member.name} never read version {self.version}")
        await super().resume()
        for member in taking_part:
            here = member.is_fenced or member.standing is Standing.SERVING
            self._note(here, f"progress: {member.name} is {member.standing.value} after an update")
        for engine in self._ill:
            is_here = engine.is_ill and self._engines[engine.name] is engine
            seen = not is_here or self.standings[engine.name] is Standing.FENCED
            self._note(seen, f"F5: {engine.name} was ill before an update and is not fenced")

    def _bound(self) -> float:
        """Seconds of an update: the transfer and a token; with trouble, the bounds of calls."""
        scenario, bounds = self._scenario, self._settings
        tight = scenario.load_seconds + scenario.token_seconds + self._slack
        # after a lease, which may be late
        catches_up = scenario.side is Side.LEASE and scenario.catch_up
        if not (self._is_troubled or catches_up):
            return tight
        returning = 2 * bounds.call_seconds + bounds.load_seconds
        tries = _TRIES * (bounds.load_seconds + _ASKED_SECONDS + self._slack)
        return returning + bounds.call_seconds + tries + tight

    async def _feel(self) -> None:
        self.had_too_few |= not len(self._desk)
        await super()._feel()

    def _fence(self, member: Member, error: BaseException) -> None:
        engine = member.engine
        if not member.is_fenced and isinstance(engine, MortalReplica):
            self._left_alone[engine] = _now()
            self._fencings[engine.name].set()
        super()._fence(member, error)
        living = len(self._engines) - len(self.fenced)
        if living < max(1.0, self._settings.least_share * len(self._engines)):
            self.had_too_few = True

    # Mishaps

    async def live(self) -> None:
        """Let everything happen that the scenario says, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for fault in self._scenario.faults:
                tasks.create_task(self._befall(fault))

    async def _befall(self, fault: Fault) -> None:
        await asyncio.sleep(fault.after)
        name = fault.replica
        self._is_troubled = True
        self._engines[name].strike(fault.kind)
        if fault.back is None:
            return
        if fault.kind not in (Mishap.HANGS, Mishap.BABBLES):  # those may pass unnoticed
            await self._fencings[name].wait()
        await asyncio.sleep(fault.back)
        self._is_troubled = True
        self._engines[name].recover()
        if name not in self.fenced or self._closed:
            return
        self._returning += 1
        is_new = fault.is_replaced or fault.kind is Mishap.DIES
        fresh = self._engines[name].again() if is_new else self._engines[name]
        await self._members[name].idle.wait()
        fresh.watch, self._engines[name] = self, fresh
        self._left_alone.pop(fresh, None)
        await self.readmit(name, fresh)
        self._returning -= 1

    def _note(self, kept: bool, promise: str) -> None:  # noqa: FBT001  reads as a sentence
        if not kept:
            self.broken.append(promise)


def _versions(answer: Generation) -> list[int]:
    """A version an id."""
    return [span.version for span in answer.spans for _ in range(span.start, span.end)]


def _now() -> float:
    return asyncio.get_running_loop().time()
