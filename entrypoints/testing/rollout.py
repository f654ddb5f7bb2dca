"""The contract of updates for the RolloutEngine port: cuts, pauses, interruptions, partial answers.

@pytest.mark.parametrize("check", CONTRACT)
def test_rollout(check: Check) -> None:
    asyncio.run(check(my_engine()))

An engine answers the requests made here (ids 5 to 7, at most 60 new ones) for long enough that a
few tokens exist before it is cut: 10 ms a token are fine, microseconds are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import attrs

from hexpo.application.continuing import OnUpdate, complete
from hexpo.application.ports.rollout import Generation, PauseMode, Request, RolloutEngine
from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import EngineFailed
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason
from hexpo.entrypoints.testing.expecting import expect

Check = Callable[[RolloutEngine], Coroutine[Any, Any, None]]
"""Raises AssertionError where an engine breaks the contract, and closes it."""

LONG = 60
BOUND = 30.0
"""Seconds after which something hangs."""


def _request(number: int, **rest: Any) -> Request:
    sampling = Sampling(max_new_tokens=LONG, min_new_tokens=LONG)
    return Request(id=str(number), prompt=(5, 6, 7), sampling=sampling, seed=number, **rest)


def _expect_whole(answer: Generation) -> None:
    count = len(answer.tokens)
    expect(len(answer.logprobs) == count, "log-probs and ids differ in number")
    covered = [place for span in answer.spans for place in range(span.start, span.end)]
    expect(covered == list(range(count)), f"spans {answer.spans} do not cover {count} ids")


async def _bounded(work: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(work, BOUND)


def _skips(engine: RolloutEngine, mode: PauseMode) -> bool:
    return mode not in engine.capabilities.pause_modes


async def an_interruption_ends_those_that_are_named(engine: RolloutEngine) -> None:
    """The others go on, and so does the engine."""
    for seconds in (0.03, 0.01, 0.003, 0.001, 0.0):  # a fast engine is done before: sooner, then
        named, other = (asyncio.ensure_future(engine.generate(_request(n))) for n in (1, 2))
        await asyncio.sleep(seconds)
        await engine.interrupt(["1"])
        first, second = await _bounded(named), await _bounded(other)
        for answer in (first, second, await _bounded(engine.generate(_request(3)))):
            _expect_whole(answer)
        expect(second.stop is not StopReason.ABORTED, "another one was ended too")
        if first.stop is StopReason.ABORTED:
            return await engine.close()
    raise AssertionError(f"the named one ended as {first.stop.name}")


async def an_interruption_ends_a_drain(engine: RolloutEngine) -> None:
    """Everybody leaves with what they have, and nobody begins before a resumption."""
    if _skips(engine, PauseMode.DRAIN):
        return await engine.close()
    tasks = [asyncio.ensure_future(engine.generate(_request(n))) for n in range(3)]
    await asyncio.sleep(0.03)
    drain = asyncio.ensure_future(engine.pause(PauseMode.DRAIN))
    await asyncio.sleep(0)
    await engine.interrupt()
    await _bounded(drain)
    later = asyncio.ensure_future(engine.generate(_request(9)))
    for task in tasks:
        _expect_whole(await _bounded(task))
    await asyncio.sleep(0.03)
    expect(not later.done(), "a request was answered while paused")
    await engine.resume()
    await _bounded(later)
    await engine.close()


async def a_pause_that_keeps_ends_a_drain(engine: RolloutEngine) -> None:
    """Both pauses return, and the answer is whole after the resumption."""
    if _skips(engine, PauseMode.KEEP) or _skips(engine, PauseMode.DRAIN):
        return await engine.close()
    task = asyncio.ensure_future(engine.generate(_request(1)))
    await asyncio.sleep(0.03)
    drain = asyncio.ensure_future(engine.pause(PauseMode.DRAIN))
    await asyncio.sleep(0)
    await _bounded(engine.pause(PauseMode.KEEP))
    await _bounded(drain)
    await engine.resume()
    answer = await _bounded(task)  # its last id may be one that stops, too
    expect(answer.stop is not StopReason.ABORTED, "the kept answer did not go on")
    expect(len(answer.tokens) == LONG, f"the kept answer has {len(answer.tokens)} of {LONG} ids")
    await engine.close()


async def answers_are_whole_over_updates(engine: RolloutEngine) -> None:
    """In every way to update: full length, versions in order, sampled while they were loaded."""
    version = engine.version
    for mode in OnUpdate:
        if _skips(engine, mode.pause_mode):
            continue
        began = version
        tasks = [asyncio.ensure_future(complete(engine, _request(n))) for n in range(4)]
        for _ in range(3):
            await asyncio.sleep(0.02)
            await _bounded(engine.pause(mode.pause_mode))
            version += 1
            await engine.load_weights(Update(version=version))
            await engine.resume()
        for task in tasks:
            answer = await _bounded(task)
            _expect_whole(answer)
            expect(len(answer.tokens) == LONG, f"{mode.value}: {len(answer.tokens)} of {LONG} ids")
            expect(answer.stop is not StopReason.ABORTED, f"{mode.value}: it was cut")
            seen = [span.version for span in answer.spans]
            expect(seen == sorted(set(seen)), f"{mode.value}: versions {seen}")
            expect(began <= seen[0] <= seen[-1] <= version, f"{mode.value}: versions {seen}")
            one = mode is not OnUpdate.DRAIN or len(seen) == 1
            expect(one, f"an answer that was drained is of versions {seen}")
    await engine.close()


async def given_ids_are_no_part_of_the_answer_nor_of_its_budget(engine: RolloutEngine) -> None:
    """What comes back is the rest alone."""
    whole = _request(1)
    rest = attrs.evolve(
        whole,
        prompt=(*whole.prompt, 8, 9),
        given=2,
        sampling=Sampling(max_new_tokens=5, min_new_tokens=5),
    )
    answer = await _bounded(engine.generate(rest))
    _expect_whole(answer)
    expect(len(answer.tokens) == 5, f"{len(answer.tokens)} ids instead of 5")
    await engine.close()


async def a_close_releases_everybody(engine: RolloutEngine) -> None:
    """Those that run, that wait, and that pause."""
    tasks = [asyncio.ensure_future(engine.generate(_request(n))) for n in range(12)]
    await asyncio.sleep(0.03)
    drain = asyncio.ensure_future(engine.pause(PauseMode.DRAIN))
    await asyncio.sleep(0)
    await _bounded(engine.close())
    _, pending = await asyncio.wait([*tasks, drain], timeout=BOUND)
    expect(not pending, f"{len(pending)} still wait after close")
    for task in (*tasks, drain):
        error = task.exception()
        expect(error is None or isinstance(error, EngineFailed), f"{error!r}")
    await engine.close()


CONTRACT: tuple[Check, ...] = (
    an_interruption_ends_those_that_are_named,
    an_interruption_ends_a_drain,
    a_pause_that_keeps_ends_a_drain,
    answers_are_whole_over_updates,
    given_ids_are_no_part_of_the_answer_nor_of_its_budget,
    a_close_releases_everybody,
)
"""Every promise about updates."""
