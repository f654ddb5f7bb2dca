"""Several rollout engines behind one port, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.application.faulty import Faulty, ask, fleet, simulated, update

from hexpo.application.membership import Standing
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Digest, Update
from hexpo.application.replicas import Replicas
from hexpo.application.routing import LeastLoaded
from hexpo.domain.errors import EngineFailed
from hexpo.domain.trajectory import StopReason


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=80), st.randoms(use_true_random=False))
def test_the_least_loaded_member_is_found_after_any_changes(
    moves: list[int], random_: random.Random
) -> None:
    """The choice equals a search over all members."""
    table: LeastLoaded[int] = LeastLoaded()
    loads: dict[int, int] = {}
    for move in moves:
        member = random_.randrange(5)
        if move <= 1:
            table.enter(member, move)
            loads.setdefault(member, move)
        elif move == 2:
            table.leave(member)
            loads.pop(member, None)
        else:
            change = 1 if move < 5 or not loads.get(member) else -1
            table.add(member, change)
            if member in loads:
                loads[member] += change
        assert len(table) == len(loads)
        if loads:
            assert loads[table.least()] == min(loads.values())
            idlest = table.idlest(2)
            assert [loads[one] for one in idlest] == sorted(loads.values())[: len(idlest)]


def test_requests_of_a_session_share_a_replica_and_sessions_spread() -> None:
    """A shared prefix is computed once; nobody is idle meanwhile."""

    async def scenario() -> Mapping[str, Faulty]:
        engines, replicas = fleet(4)
        async with asyncio.TaskGroup() as tasks:
            for number in range(32):
                tasks.create_task(replicas.generate(ask(number, session=f"s{number // 4}")))
        return engines

    engines = simulated(scenario)
    of_session: dict[str, set[str]] = {}
    for name, engine in engines.items():
        assert len(engine.asked) == 8
        for request in engine.asked:
            of_session.setdefault(request.session, set()).add(name)
    assert all(len(names) == 1 for names in of_session.values())


def test_a_dead_replicas_requests_are_answered_by_others() -> None:
    """G2: it is fenced, named and counted; nothing is lost."""

    async def scenario() -> tuple[list[Generation], Replicas]:
        engines, replicas = fleet(3)
        asyncio.get_running_loop().call_later(4.5, engines["rollout-1"].die)
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(replicas.generate(ask(number))) for number in range(9)]
        measured = replicas.metrics()
        assert measured["replicas/moved"].value == 3
        assert measured["replicas/fenced"].value == 1
        return [task.result() for task in made], replicas

    answers, replicas = simulated(scenario)
    assert [len(answer.tokens) for answer in answers] == [10] * 9
    assert {answer.stop for answer in answers} == {StopReason.STOP}
    assert list(replicas.fenced) == ["rollout-1"]
    assert replicas.standings["rollout-1"] is Standing.FENCED


@pytest.mark.parametrize("fault", ["lies", "digest", "hangs"])
def test_a_replica_that_does_not_confirm_is_fenced_and_the_version_counts(fault: str) -> None:
    """G2, G10: another version, other weights, or no answer within the bound."""

    async def scenario() -> tuple[Replicas, float]:
        engines, replicas = fleet(3, load_seconds=20.0)
        bad = engines["rollout-2"]
        if fault == "digest":
            bad.digest = Digest(tensors=2, bytes=8, checksum="bad")
        else:
            setattr(bad, fault, True)
        await update(replicas, 1)
        taken = asyncio.get_running_loop().time()
        await asyncio.sleep(1000.0)  # a late confirmation would come now
        await replicas.generate(ask(1))
        assert not bad.asked
        await replicas.close()
        return replicas, taken

    replicas, seconds = simulated(scenario)
    assert replicas.version == 1
    assert list(replicas.fenced) == ["rollout-2"]
    assert "rollout-2" in str(replicas.fenced["rollout-2"])
    assert seconds <= 20.0 + 30.0


def test_what_a_fenced_replica_has_sampled_goes_on_elsewhere() -> None:
    """G2: tokens, log-probs and versions of the first part stay; the rest is asked with `given`."""

    async def scenario() -> tuple[Generation, Request]:
        engines, replicas = fleet(2)
        reference = await Faulty().generate(ask(7))
        request = asyncio.create_task(replicas.generate(ask(7)))
        await asyncio.sleep(4.5)
        (bad,) = [engine for engine in engines.values() if engine.asked]
        (good,) = [engine for engine in engines.values() if engine is not bad]
        bad.lies = True
        await update(replicas, 1)
        answer = await request
        assert answer.tokens.tolist() == reference.tokens.tolist()
        assert answer.logprobs.tolist() == reference.logprobs.tolist()
        return answer, good.asked[0]

    answer, continued = simulated(scenario)
    assert continued.given == 4
    assert continued.prompt[3:] == tuple(answer.tokens[:4].tolist())
    assert continued.sampling.max_new_tokens == 60
    assert [(span.start, span.end, span.version) for span in answer.spans] == [
        (0, 4, 0),
        (4, 10, 1),
    ]


def test_the_run_ends_with_the_first_failure_when_too_few_live() -> None:
    """O5: all are named, the first is the cause, and every waiting call gets it."""

    async def scenario() -> list[Any]:
        engines, replicas = fleet(4, least_share=0.75)
        for seconds, name in ((2.5, "rollout-3"), (3.5, "rollout-0")):
            asyncio.get_running_loop().call_later(seconds, engines[name].die)
        calls = [replicas.generate(ask(number)) for number in range(8)]
        return await asyncio.gather(*calls, return_exceptions=True)

    failed = [end for end in simulated(scenario) if isinstance(end, EngineFailed)]
    assert failed
    for error in failed:
        text = str(error)
        assert text.index("rollout-3") < text.index("rollout-0")
        assert "out of memory" in text
        assert "out of memory" in str(error.__cause__)


def test_two_that_disagree_are_both_named_and_neither_is_trusted() -> None:
    """G2: without a majority the attempt fails; the version does not count."""

    async def scenario() -> Replicas:
        engines, replicas = fleet(2)
        engines["rollout-1"].digest = Digest(tensors=2, bytes=8, checksum="bad")
        await replicas.pause(PauseMode.KEEP)
        with pytest.raises(EngineFailed, match=r"rollout-0 read .*rollout-1 read"):
            await replicas.load_weights(Update(version=1))
        return replicas

    assert simulated(scenario).version == 0


def test_whoever_waits_for_a_dead_reader_is_not_fenced_with_it() -> None:
    """O5: one hangs, the others wait for the sender that waits for it; only that one is fenced."""

    class Waiting(Faulty):
        async def load_weights(self, update: Update) -> Digest | None:
            await asyncio.sleep(1e9)
            return None

    async def scenario() -> Replicas:
        engines: dict[str, Faulty] = {f"rollout-{place}": Waiting() for place in range(3)}
        engines["rollout-1"].hangs = True
        replicas = Replicas(engines)
        await replicas.pause(PauseMode.KEEP)
        with pytest.raises(EngineFailed, match="waited for others"):
            await replicas.load_weights(Update(version=1))
        assert replicas.readers() == ["rollout-0", "rollout-2"]
        await replicas.close()
        return replicas

    assert list(simulated(scenario).fenced) == ["rollout-1"]


def test_a_fenced_replica_serves_again_after_it_was_readmitted() -> None:
    """G2: it has the present version first."""

    async def scenario() -> None:
        engines, replicas = fleet(2, catch_up=True)
        engines["rollout-1"].lies = True
        await update(replicas, 1)
        assert list(replicas.fenced) == ["rollout-1"]
        engines["rollout-1"].lies = False
        await asyncio.sleep(1.0)
        await replicas.readmit("rollout-1")
        assert replicas.standings["rollout-1"] is Standing.SERVING
        assert engines["rollout-1"].version == 1
        assert not replicas.fenced
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                tasks.create_task(replicas.generate(ask(number)))
        assert len(engines["rollout-1"].asked) == 2

    simulated(scenario)


def test_busy_and_waiting_are_the_wall_time_of_every_replica() -> None:
    """R3: shares lie in [0, 1] and are 0 where nothing ever ran."""

    async def scenario() -> None:
        engines, replicas = fleet(2)
        assert replicas.metrics()["replicas/busy"].value == 0.0
        await replicas.generate(ask(0))
        await asyncio.sleep(30.0)
        each = {one.name: one for one in replicas.usage()}
        assert [one.busy_seconds + one.waiting_seconds for one in each.values()] == [40.0, 40.0]
        assert sorted(one.busy_share for one in each.values()) == [0.0, 0.25]
        assert sum(len(engine.asked) for engine in engines.values()) == 1

    simulated(scenario)


@settings(max_examples=150, deadline=None)
@given(
    replicas_=st.integers(2, 5),
    faults=st.lists(
        st.tuples(
            st.floats(0.1, 40.0),
            st.integers(0, 4),
            st.sampled_from(["die", "lies", "hangs", "digest"]),
        ),
        max_size=2,
    ),
    mode=st.sampled_from([PauseMode.KEEP, PauseMode.DRAIN]),
    requests=st.integers(1, 12),
)
def test_no_fault_loses_an_answer_while_enough_replicas_live(
    replicas_: int, faults: list[tuple[float, int, str]], mode: PauseMode, requests: int
) -> None:
    """F2, G2, O3: each request ends whole, or the run ends with all failures named."""

    async def scenario() -> list[Any]:
        engines, replicas = fleet(replicas_, least_share=0.01, load_seconds=20.0)
        loop, names = asyncio.get_running_loop(), list(engines)

        def strike(place: int, fault: str) -> None:
            bad = engines[names[place % replicas_]]
            if fault == "die":
                bad.die()
            elif fault == "digest":
                bad.digest = Digest(tensors=2, bytes=8, checksum="bad")
            else:
                setattr(bad, fault, True)

        for seconds, place, fault in faults:
            loop.call_later(seconds, strike, place, fault)

        async def updates() -> None:
            try:
                for version in range(1, 4):
                    await asyncio.sleep(7.0)
                    await update(replicas, version, mode)
            except EngineFailed:
                await replicas.close()  # as a run that ends does: whoever waits gets an error
                raise

        calls = [replicas.generate(ask(number)) for number in range(requests)]
        async with asyncio.timeout(2000.0):
            ends = await asyncio.gather(updates(), *calls, return_exceptions=True)
        await replicas.close()
        return ends

    ends = simulated(scenario)
    broken = isinstance(ends[0], EngineFailed)
    for end in ends[1:]:
        assert broken or isinstance(end, Generation)
        if isinstance(end, Generation):
            assert (len(end.tokens), end.stop) == (10, StopReason.STOP)
            assert [span.start for span in end.spans[1:]] == [span.end for span in end.spans[:-1]]
    if not faults:
        assert not broken
    assert Counter(isinstance(end, BaseException) for end in ends)[True] == 0 or broken
