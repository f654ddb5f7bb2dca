"""Replicas that die, hang, are late or lie, under the explorer; and mistakes that it finds."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from hexpo.application import dispatch, replicas
from hexpo.application.continuing import OnUpdate
from hexpo.application.dispatch import Desk
from hexpo.application.fanning import Fan
from hexpo.application.membership import Member, Standing
from hexpo.application.pieces import Pieces
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Digest, Update
from hexpo.application.replicas import Replicas
from hexpo.application.schedule import Side
from hexpo.domain.schedule import Order
from hexpo.domain.trajectory import StopReason
from hexpo.entrypoints.testing.broken import Broken
from hexpo.entrypoints.testing.explorer import World, check, explore
from hexpo.entrypoints.testing.mortal import Mishap
from hexpo.entrypoints.testing.scenarios import Fault, Interruption, Scenario, draw


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Every fenced replica is logged with its error."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


Where = Callable[[Scenario], bool]


def fleets(first: int, count: int, where: Where = lambda _: True) -> list[int]:
    """Seeds from `first` on whose scenarios have several replicas, a mishap, and what is wanted."""
    found: list[int] = []
    while len(found) < count:
        scenario = draw(first)
        if scenario.faults and where(scenario):
            found.append(first)
        first += 1
    return found


def strikes(*kinds: Mishap) -> Where:
    """One of these happens."""
    return lambda scenario: any(fault.kind in kinds for fault in scenario.faults)


def befallen(kind: Mishap, **changes: Any) -> World:
    """One run of three replicas; the middle one is struck after a second."""
    fault = Fault(kind=kind, replica="replica-1", after=1.0, **changes)
    scenario = Scenario(
        seed=5, fleet=3, groups=3, samples=3, steps=6, staleness=1.0, slots=8, faults=(fault,)
    )
    return check(scenario)[-1]


@pytest.mark.parametrize("kind", list(Mishap))
def test_a_struck_replica_is_fenced_and_the_run_ends_as_it_should(kind: Mishap) -> None:
    """G2, F5: the promises themselves are checked in the run; here, that the mishap happened."""
    world = befallen(kind)
    assert world.replicas is not None
    assert list(world.replicas.fenced) == ["replica-1"]
    assert len(world.engine.trained) == 6


def test_a_replica_that_talks_nonsense_is_fenced_and_what_it_said_is_not_trained() -> None:
    """O16, B7: a bad answer is a failure of its sample; three in a row are the replica's."""
    world = befallen(Mishap.BABBLES)
    assert world.replicas is not None
    assert "3 answers in a row" in str(world.replicas.fenced["replica-1"])
    failed = [record for record in world.tracker.records if record.score is None]
    assert len(failed) >= 3
    assert {record.id for record in failed}.isdisjoint(
        row for step in world.engine.trained for row in step
    )


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("kind", [Mishap.DIES, Mishap.HANGS, Mishap.LIES, Mishap.OTHER])
def test_a_replica_that_comes_back_serves_again(
    kind: Mishap, is_replaced: bool, catch_up: bool
) -> None:
    """G2: after the next version that it confirmed, or at once where the transfer keeps one."""
    fault = Fault(kind=kind, replica="replica-1", after=1.0, back=8.0, is_replaced=is_replaced)
    scenario = Scenario(
        seed=5, fleet=3, groups=3, samples=3, steps=30, staleness=1.0, slots=8,
        catch_up=catch_up, faults=(fault,),
    )  # fmt: skip
    [world] = check(scenario)
    assert world.replicas is not None
    assert not world.replicas.fenced
    assert world.replicas.standings["replica-1"] is Standing.SERVING
    assert world.replicas.engine("replica-1").confirmed >= {scenario.steps}
    fenced = [numbers.get("replicas/fenced", 0) for _, numbers in world.tracker.reports]
    assert max(fenced) == 1


def test_scenarios_of_replicas_strike_in_every_way_and_move_answers() -> None:
    """The explorer's own coverage: each mishap, deaths of all, returns, moved answers."""
    seeds = fleets(0, 100)
    kinds = Counter(fault.kind for seed in seeds for fault in draw(seed).faults)
    assert all(kinds[kind] >= 5 for kind in Mishap)
    moved = fenced = returned = ended = 0
    for seed in seeds:
        for world in check(draw(seed)):
            assert world.replicas is not None
            reports = [numbers for _, numbers in world.tracker.reports]
            moved += sum(int(numbers.get("replicas/moved", 0)) for numbers in reports)
            shut = [
                int(numbers["replicas/fenced"]) for numbers in reports if "time/step" in numbers
            ]
            fenced += bool(shut and max(shut))
            returned += bool(shut and max(shut) > shut[-1])
            ended += world.replicas.had_too_few
    assert moved >= 15
    assert fenced >= 25
    assert returned >= 5
    assert ended >= 10


# Mistakes that the explorer must find


def _keeps_asking(self: Desk, member: Member) -> None:
    """A fenced replica gets requests."""


def _frees_nobody(self: Member) -> None:
    """Whoever is in a fenced replica waits for it."""


class _LastPiece(Pieces):
    """What was sampled before the move is forgotten."""

    def whole(self, stop: StopReason | None = None) -> Generation:
        self._pieces = self._pieces[-1:]
        return super().whole(stop)


class _FromTheStart(Pieces):
    """The rest is asked as if nothing were there."""

    def rest(self, *, seconds: float) -> Request | None:
        return self._request


async def _forgives_the_late(
    self: Fan, late: Sequence[Member], what: str, *, ask: bool
) -> list[Member]:
    return []


async def _waits_for_ever(
    self: Fan, tasks: Mapping[asyncio.Task[Any], Member], what: str, seconds: float
) -> None:
    if tasks:
        await asyncio.wait(tasks)


async def _serves_at_once(self: Replicas, member: Member, *, loaded: bool = True) -> None:
    async with self._turn:
        member.standing = Standing.SERVING
        self._desk.open(member)


def _takes_the_first(
    read: Mapping[Member, Digest | None], fence: Callable[[Member, BaseException], None]
) -> Digest | None:
    return next(iter(read.values()), None)


async def _waits_for_the_longest(self: Replicas, mode: PauseMode) -> None:
    await pause_as_it_is(self, PauseMode.DRAIN)


pause_as_it_is = Replicas.pause


async def _believes_all(self: Replicas, update: Update) -> Digest | None:
    read = await self._do(self._updated(), "load", lambda engine: engine.load_weights(update))
    self._version, self._update = update.version, update
    return next(iter(read.values()), None)


async def _forgets(self: Replicas) -> None:
    members = self._updated()
    await self._do(members, "resume", lambda engine: engine.resume())
    if self._paused is not None:
        self._paused = None
        self._turn.release()


STUMBLES = (Mishap.LATE, Mishap.CUT, Mishap.OTHER, Mishap.LIES)


def kept(scenario: Scenario) -> bool:
    """A replica is fenced while it holds answers that have begun."""
    return scenario.on_update is OnUpdate.KEEP and strikes(*STUMBLES)(scenario)


def unharmed(scenario: Scenario) -> bool:
    """A fenced replica would still answer; one that died would be asked again and again."""
    return strikes(*STUMBLES)(scenario) and not strikes(Mishap.DIES)(scenario)


def returning(scenario: Scenario) -> bool:
    """A replica comes back, and waits for the next version."""
    return not scenario.catch_up and any(fault.back is not None for fault in scenario.faults)


def test_an_evaluation_that_waits_for_a_lease_ends_with_the_run() -> None:
    """F4, F7: all replicas are closed during an update, and an evaluation is cancelled whose
    answers fail at that moment. It neither asks again for ever nor keeps the run."""
    dead = Fault(kind=Mishap.DIES, replica="replica-2", after=3.1, back=7.2, is_replaced=False)
    check(
        Scenario(
            seed=1300806716,
            groups=1,
            samples=2,
            steps=5,
            staleness=3.0,
            order=Order.COMPLETION,
            on_update=OnUpdate.DRAIN,
            parts=3,
            prompts=2,
            save_every=2,
            evaluate_every=1,
            slots=5,
            token_seconds=0.3,
            tail=1.2,
            grade_seconds=0.3,
            step_seconds=0.0,
            load_seconds=0.0,
            deadline_seconds=600.0,
            flat=0.3,
            jitter=0.01,
            whole=False,
            interruptions=(Interruption(kind="engine", after=5.718424812706456),),
            fleet=3,
            least_share=0.5,
            catch_up=True,
            faults=(dead,),
            side=Side.LEASE,
        )
    )


def drained(scenario: Scenario) -> bool:
    """An update waits for the answers of a replica that hangs."""
    return scenario.on_update is OnUpdate.DRAIN and strikes(Mishap.HANGS)(scenario)


MISTAKES: Mapping[str, tuple[Any, str, Any, Where, str]] = {
    "fenced ones are asked": (Desk, "shut", _keeps_asking, unharmed, "was asked while"),
    "nobody is freed": (Member, "release", _frees_nobody, strikes(Mishap.HANGS), "stayed .* in f"),
    "earlier pieces lost": (dispatch, "Pieces", _LastPiece, kept, "F8"),
    "asked from the start": (dispatch, "Pieces", _FromTheStart, kept, "F8"),
    "late ones forgiven": (Fan, "_judge", _forgives_the_late, strikes(Mishap.LATE), "never read"),
    "a drain without end": (Fan, "_patiently", _waits_for_ever, drained, "did not end"),
    "old weights admitted": (Replicas, "_return", _serves_at_once, returning, "beside version"),
    "no majority": (replicas, "agreed", _takes_the_first, strikes(Mishap.OTHER), "never"),
    "longest answer awaited": (Replicas, "pause", _waits_for_the_longest, kept, "F6"),
    "every word believed": (Replicas, "load_weights", _believes_all, strikes(*STUMBLES), "never"),
    "returned ones forgotten": (Replicas, "resume", _forgets, returning, "progress"),
}
"""Owner, name, replacement, scenarios that it concerns, and what the broken promise says."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_replicas_is_found(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    """The explorer can fail: each is found within 100 schedules that concern it, by its own
    promise."""
    owner, name, replacement, where, promise = MISTAKES[mistake]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(Broken, match=promise):
        explore(fleets(20_000, 100, where))
