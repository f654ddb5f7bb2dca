"""Waits for replicas that say nothing: none is without end, and none ends too early."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings
from hexpo.application.membership import Standing
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Update
from hexpo.application.replicas import Replicas, ReplicaSettings
from hexpo.domain.errors import EngineFailed
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason
from hexpo.entrypoints.testing.faults import garbled
from hexpo.entrypoints.testing.mortal import Mishap, MortalReplica

LENGTH = 200
CALL, ASKED = 30.0, 5.0
"""Bounds of a call, and of the question whether a replica lives."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def replica(name: str) -> MortalReplica:
    """A token a second."""
    speed = RolloutSpeed(token_seconds=1.0, request_seconds=0.0, slots=9)
    settings = FleetSettings(speed=speed, load_seconds=1.0)
    return MortalReplica(name, settings, lambda _: LENGTH, bound_seconds=45.0, garble=garbled)


def fleet() -> tuple[list[MortalReplica], Replicas]:
    """Three of them."""
    engines = [replica(f"rollout-{n}") for n in range(3)]
    return engines, Replicas({one.name: one for one in engines}, ReplicaSettings(least_share=0.1))


async def asked(replicas: Replicas) -> list[asyncio.Task[Generation]]:
    """Three answers that run, one in each replica."""
    sampling = Sampling(max_new_tokens=LENGTH)
    made = [
        asyncio.ensure_future(
            replicas.generate(Request(id=f"r{n}", prompt=(1, 2), sampling=sampling, seed=n))
        )
        for n in range(3)
    ]
    await asyncio.sleep(2.0)
    return made


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_drain_is_not_held_up_by_a_replica_that_hangs() -> None:
    """F4, G2: it is asked whether it lives when the bound has passed, fenced, and what it had to
    do is done by the others under the next version."""

    async def scenario() -> None:
        engines, replicas = fleet()
        answers = await asked(replicas)
        engines[1].strike(Mishap.HANGS)
        await replicas.pause(PauseMode.DRAIN)
        assert list(replicas.fenced) == ["rollout-1"]
        assert now() == pytest.approx(LENGTH)  # as long as the longest of the others
        await replicas.load_weights(Update(version=1))
        await replicas.resume()
        moved = await answers[1]
        assert (len(moved.tokens), moved.stop) == (LENGTH, StopReason.STOP)
        assert {span.version for span in moved.spans} == {1}
        await replicas.close()

    run(scenario())


def test_a_drain_of_replicas_that_all_hang_ends_with_their_names() -> None:
    """F4, O5: within a call's bound and the question's."""

    async def scenario() -> None:
        engines, replicas = fleet()
        answers = await asked(replicas)
        for engine in engines:
            engine.strike(Mishap.HANGS)
        with pytest.raises(EngineFailed, match=r"rollout-0 did not pause, nor say within 5\.0 s"):
            await replicas.pause(PauseMode.DRAIN)
        assert now() == pytest.approx(2.0 + CALL + ASKED)
        await replicas.close()
        ends = await asyncio.gather(*answers, return_exceptions=True)
        assert all(isinstance(end, EngineFailed) for end in ends)

    run(scenario())


def test_a_long_answer_in_a_drain_fences_nobody() -> None:
    """F4: whoever says that it lives has all the time of its answer."""

    async def scenario() -> None:
        _, replicas = fleet()
        answers = await asked(replicas)
        await replicas.pause(PauseMode.DRAIN)
        assert now() == pytest.approx(LENGTH)
        assert not replicas.fenced
        assert set(replicas.standings.values()) == {Standing.SERVING}
        assert all(answer.done() for answer in answers)

    run(scenario())


def test_a_replica_that_dies_in_a_drain_is_not_waited_for() -> None:
    """F4, G2: its answer begins again elsewhere after the resumption."""

    async def scenario() -> None:
        engines, replicas = fleet()
        answers = await asked(replicas)
        asyncio.get_running_loop().call_later(50.0, engines[2].strike, Mishap.DIES)
        await replicas.pause(PauseMode.DRAIN)
        assert now() == pytest.approx(LENGTH)
        assert list(replicas.fenced) == ["rollout-2"]
        await replicas.resume()
        assert len((await answers[2]).tokens) == LENGTH
        await replicas.close()

    run(scenario())


def test_closing_releases_whoever_waits_for_a_replica_that_hangs() -> None:
    """F7: within the bound of a call."""

    async def scenario() -> None:
        engines, replicas = fleet()
        answers = await asked(replicas)
        engines[0].strike(Mishap.HANGS)
        await replicas.close()
        assert now() == pytest.approx(2.0 + CALL)
        _, waiting = await asyncio.wait(answers, timeout=1.0)
        assert not waiting
        assert all(isinstance(answer.exception(), EngineFailed) for answer in answers)

    run(scenario())


def test_a_closing_in_the_middle_of_a_drain_ends_it() -> None:
    """F7: the pause raises, or returns, and nobody asks any more."""

    async def scenario() -> None:
        engines, replicas = fleet()
        answers = await asked(replicas)
        engines[0].strike(Mishap.HANGS)
        drain = asyncio.ensure_future(replicas.pause(PauseMode.DRAIN))
        await asyncio.sleep(1.0)
        await replicas.close()
        _, waiting = await asyncio.wait([drain, *answers], timeout=CALL + ASKED)
        assert not waiting
        for one in (drain, *answers):
            assert one.exception() is None or isinstance(one.exception(), EngineFailed)

    run(scenario())


def test_a_drain_that_is_cancelled_leaves_no_question_behind() -> None:
    """F7: whoever asked whether a replica lives takes the question back."""

    async def scenario() -> None:
        engines, replicas = fleet()
        engines[0].strike(Mishap.HANGS)
        drain = asyncio.ensure_future(replicas.pause(PauseMode.DRAIN))
        await asyncio.sleep(CALL + ASKED / 2)  # the question is being asked
        drain.cancel()
        await asyncio.wait([drain])
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(scenario())


def test_a_replica_that_hangs_is_found_when_a_request_is_given_up() -> None:
    """F4, G2: not only at the next update, which may never come where all requests are in it."""

    async def scenario() -> None:
        engines, replicas = fleet()
        answers = await asked(replicas)
        engines[1].strike(Mishap.HANGS)
        await asyncio.sleep(10.0)
        answers[1].cancel()  # its deadline
        await asyncio.sleep(CALL - 1.0)
        assert not replicas.fenced
        await asyncio.sleep(1.5)
        assert list(replicas.fenced) == ["rollout-1"]
        assert len((await answers[0]).tokens) == LENGTH
        await replicas.close()

    run(scenario())


def test_a_request_that_is_given_up_fences_nobody_who_lives() -> None:
    """A deadline says nothing about the engine."""

    async def scenario() -> None:
        _, replicas = fleet()
        for answer in await asked(replicas):
            answer.cancel()
        await asyncio.sleep(2 * CALL)
        assert not replicas.fenced
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await replicas.close()

    run(scenario())


def test_where_no_replica_serves_any_more_a_deadline_ends_the_run() -> None:
    """F4, O5: two died, and the third waits for a version that nobody can bring about."""

    async def waiting() -> None:
        engines, replicas = fleet()
        engines[2].strike(Mishap.LIES)
        await replicas.pause(PauseMode.KEEP)
        await replicas.load_weights(Update(version=1))
        await replicas.resume()
        await replicas.readmit("rollout-2")  # it waits for version 2
        answers = await asked(replicas)
        for engine in engines[:2]:
            engine.strike(Mishap.DIES)
        await asyncio.sleep(1.0)
        assert not any(answer.done() for answer in answers)
        answers[0].cancel()  # its deadline
        await asyncio.wait(answers[1:])
        for answer in answers[1:]:
            with pytest.raises(EngineFailed, match="no rollout replica serves"):
                answer.result()
        await replicas.close()

    run(waiting())
