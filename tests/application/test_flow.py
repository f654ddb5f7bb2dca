"""The valve: what waits is released, a synchronisation waits for nobody's end, pauses pair up."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.application.flow import Pauses
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import values
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason

PIECE = 1.0
"""Virtual seconds of a token."""


def request(number: int) -> Request:
    return Request(id=str(number), prompt=(1,), sampling=Sampling(max_new_tokens=9999), seed=number)


def engine_of(lengths: list[int], *, slots: int | None = None) -> SimulatedRollout:
    def script(asked: Request) -> Script:
        length = lengths[asked.seed % len(lengths)]
        return Script(length=length, seconds=length * PIECE)

    return SimulatedRollout(script, slots=slots)


MOVES = ("ask", "wait", "interrupt", "resume", *PauseMode)


@given(
    st.lists(st.sampled_from(MOVES) | st.just("wait"), max_size=25),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.none() | st.integers(1, 2),
    st.booleans(),
)
def test_no_order_of_events_leaves_anybody_waiting(
    moves: list[str | PauseMode], lengths: list[int], slots: int | None, closes: bool
) -> None:
    """F4, F7: every request ends and every pause returns, whether it closes or only resumes."""

    async def play() -> list[asyncio.Task[Generation]]:
        engine = engine_of(lengths, slots=slots)
        asked: list[asyncio.Task[Generation]] = []
        pauses: list[asyncio.Task[None]] = []
        for move in moves:
            if isinstance(move, PauseMode):
                pauses.append(asyncio.ensure_future(engine.pause(move)))
            elif move == "ask":
                asked.append(asyncio.ensure_future(engine.generate(request(len(asked)))))
            elif move == "interrupt":
                await engine.interrupt()
            elif move == "resume":
                await engine.resume()
            await asyncio.sleep(0.7 if move == "wait" else 0)
        await asyncio.sleep(0)
        await (engine.close() if closes else engine.resume())
        if asked or pauses:
            _, pending = await asyncio.wait([*asked, *pauses], timeout=300 * PIECE)
            assert not pending
        return asked

    for number, task in enumerate(run(play())):
        if task.exception() is None:
            assert len(task.result().tokens) <= lengths[number % len(lengths)]
        else:
            assert isinstance(task.exception(), EngineFailed)


@pytest.mark.parametrize("mode", [PauseMode.KEEP, PauseMode.ABORT])
def test_a_synchronisation_interrupts_a_drain(mode: PauseMode) -> None:
    """It does not wait behind the longest trajectory (O15), and the drain is released too."""

    async def play() -> tuple[float, bool]:
        engine, clock = engine_of([1000]), asyncio.get_running_loop().time
        answer = asyncio.ensure_future(engine.generate(request(0)))
        await asyncio.sleep(2.5)
        drain = asyncio.ensure_future(engine.pause(PauseMode.DRAIN))
        await asyncio.sleep(2)
        began = clock()
        await engine.pause(mode)
        took = clock() - began
        await asyncio.wait([drain], timeout=PIECE)
        assert drain.done()
        await engine.load_weights(Update(version=1))
        await engine.resume()
        whole = await answer
        assert whole.stop is (StopReason.STOP if mode is PauseMode.KEEP else StopReason.ABORTED)
        return took, drain.done()

    took, released = run(play())
    assert took <= PIECE
    assert released


@given(st.integers(2, 500))
def test_going_on_takes_no_longer_behind_a_longer_trajectory(length: int) -> None:
    """A resumption lets those that wait begin in the same instant."""

    async def play() -> float:
        engine, clock = engine_of([length, 1]), asyncio.get_running_loop().time
        long = asyncio.ensure_future(engine.generate(request(0)))
        await asyncio.sleep(0.5)
        await engine.pause(PauseMode.KEEP)
        short = asyncio.ensure_future(engine.generate(request(1)))
        await asyncio.sleep(3)
        assert not short.done()
        began = clock()
        await engine.resume()
        await short
        took = clock() - began
        await engine.close()
        await long
        return took

    assert run(play()) == pytest.approx(PIECE)


def test_pauses_come_in_pairs_with_their_lengths() -> None:
    """R2: also where the block between them fails."""

    async def play() -> tuple[dict[str, float], dict[str, float]]:
        engine, pauses = engine_of([4]), Pauses()
        answer = asyncio.ensure_future(engine.generate(request(0)))
        await asyncio.sleep(0.25)
        async with pauses.during(engine, PauseMode.KEEP):
            await asyncio.sleep(2)
        with pytest.raises(ValueError, match="half"):
            async with pauses.during(engine, PauseMode.DRAIN):
                raise ValueError("half written")
        first = values(pauses.metrics())
        assert (await answer).stop is StopReason.STOP
        return first, values(pauses.metrics())

    first, second = run(play())
    assert first == pytest.approx(
        {
            "rollout/pauses": 2,
            "rollout/resumptions": 2,
            "rollout/pausing_seconds": 0.75 + 3,
            "rollout/paused_seconds": 2.75 + 3,
            "rollout/paused_seconds_longest": 3,
        }
    )
    assert second["rollout/pauses"] == second["rollout/paused_seconds"] == 0


def test_a_request_that_is_cancelled_while_it_waits_leaves_its_place() -> None:
    """Nothing of it stays: the next one begins."""

    async def play() -> Generation:
        engine = engine_of([2], slots=1)
        first, second, third = (
            asyncio.ensure_future(engine.generate(request(n))) for n in range(3)
        )
        await asyncio.sleep(0.5)
        second.cancel()
        first.cancel()
        return await third

    assert run(play()).stop is StopReason.STOP
