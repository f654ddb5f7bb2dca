"""The simulated fleet: processor sharing, updates, and what an answer is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import EngineFailed, WrongValue
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason

SPEED = RolloutSpeed(token_seconds=0.5, request_seconds=0.25, slots=4)
"""A lone request: 0.75 s a token; four: 1.5 s a token."""


def asked(name: int, **other: Any) -> Request:
    """A request whose seed is its name, and whose length `fleet` looks up there."""
    sampling = other.pop("sampling", Sampling(max_new_tokens=1_000))
    return Request(id=str(name), prompt=(1,), seed=name, sampling=sampling, **other)


def fleet(lengths: Sequence[int], **options: Any) -> SimulatedFleet:
    chosen = FleetSettings(**{"speed": SPEED, **options})
    return SimulatedFleet(chosen, lambda request: lengths[request.seed])


async def timed(
    engine: SimulatedFleet, requests: Sequence[Request], delays: Sequence[float] | None = None
) -> list[tuple[float, Generation]]:
    """When each ended, and its answer."""
    clock = asyncio.get_running_loop().time

    async def one(request: Request, delay: float) -> tuple[float, Generation]:
        await asyncio.sleep(delay)
        answer = await engine.generate(request)
        return clock(), answer

    async with asyncio.TaskGroup() as tasks:
        runs = [
            tasks.create_task(one(request, delay))
            for request, delay in zip(requests, delays or [0.0] * len(requests), strict=True)
        ]
    return [task.result() for task in runs]


def by_small_steps(
    lengths: Sequence[int], arrivals: Sequence[float], speed: RolloutSpeed
) -> list[float]:
    """The same replica, moved from event to event without a clock of attained service."""
    left = dict(enumerate(map(float, lengths)))
    running: list[int] = []
    queue: list[int] = []
    coming = sorted(range(len(lengths)), key=lambda place: (arrivals[place], place))
    ends, now = [0.0] * len(lengths), 0.0
    while left:
        pace = speed.pass_seconds(len(running)) if running else float("inf")
        first_end = now + min((left[one] for one in running), default=float("inf")) * pace
        next_time = min(first_end, arrivals[coming[0]] if coming else float("inf"))
        for one in running:
            left[one] -= (next_time - now) / pace
        now = next_time
        while coming and arrivals[coming[0]] <= now:
            queue.append(coming.pop(0))
        for one in [one for one in running if left[one] <= 1e-9]:
            running.remove(one)
            del left[one]
            ends[one] = now
        while queue and len(running) < speed.slots:
            running.append(queue.pop(0))
    return ends


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 20_000).map(lambda ms: ms / 1000)),
        min_size=1,
        max_size=12,
        unique_by=lambda job: job[1],  # who comes first of two at one moment is nobody's promise
    ),
    st.integers(1, 4),
)
def test_requests_end_when_they_would_if_each_pass_were_counted(
    jobs: list[tuple[int, float]], slots: int
) -> None:
    """Processor sharing by one clock equals moving every request; slots are first come first
    served."""
    lengths, arrivals = [length for length, _ in jobs], [when for _, when in jobs]
    speed = attrs.evolve(SPEED, slots=slots)

    async def play() -> list[float]:
        engine = fleet(lengths, speed=speed)
        seen = await timed(engine, [asked(n) for n in range(len(lengths))], arrivals)
        return [ended for ended, _ in seen]

    assert run(play()) == pytest.approx(by_small_steps(lengths, arrivals, speed), abs=1e-6)


def test_usage_counts_running_time_and_ids() -> None:
    """R3: two requests of 4 and 8 ids on one replica, one replica idle."""

    async def play() -> SimulatedFleet:
        engine = fleet([4, 8], replicas=2)
        await timed(engine, [asked(0, session="a"), asked(1, session="a")])
        return engine

    usage = run(play()).usage
    assert usage.ids == pytest.approx(12)
    assert usage.running == pytest.approx(4 * 1.0 + 4 * 0.75)


def test_requests_of_a_session_share_a_replica_and_others_take_the_idlest() -> None:
    """Three sessions on three replicas do not slow each other."""

    async def play() -> list[float]:
        engine = fleet([8] * 4, replicas=3)
        names = ["a", "b", "c", "c"]
        requests = [asked(n, session=name) for n, name in enumerate(names)]
        return [ended for ended, _ in await timed(engine, requests)]

    assert run(play()) == pytest.approx([6.0, 6.0, 8.0, 8.0])


def test_a_session_moves_on_from_a_replica_that_has_too_much_more_to_do() -> None:
    """Eight answers to one prompt on two replicas: one more than the slack on the first, then the
    other's turn. Together they would take 8 * (0.5 + 8 * 0.25) = 20 s."""

    async def play(slack: int) -> float:
        engine = fleet([8] * 8, replicas=2, slack=slack, speed=attrs.evolve(SPEED, slots=8))
        requests = [asked(n, session="one") for n in range(8)]
        return max(ended for ended, _ in await timed(engine, requests))

    assert run(play(8)) == pytest.approx(20.0)
    assert run(play(1)) == pytest.approx(8 * 1.5)


async def _updated(
    mode: PauseMode, *, at: float, length: int = 8, load_seconds: float = 3.0, **options: Any
) -> tuple[float, Generation, float]:
    """One request, one update: when it ended, its answer, how long the pause took."""
    engine = fleet([length], load_seconds=load_seconds, **options)
    clock = asyncio.get_running_loop().time
    task = asyncio.create_task(engine.generate(asked(0)))
    await asyncio.sleep(at)
    began = clock()
    await engine.pause(mode)
    paused = clock() - began
    await engine.load_weights(Update(version=1))
    await engine.resume()
    answer = await task
    return clock(), answer, paused


def test_a_kept_request_waits_and_names_the_version_of_each_part() -> None:
    """F5: 3 ids before the update, 5 after it."""
    ended, answer, paused = run(_updated(PauseMode.KEEP, at=3 * 0.75))
    assert paused == 0
    assert ended == pytest.approx(8 * 0.75 + 3)
    assert [(s.start, s.end, s.version) for s in answer.spans] == [(0, 3, 0), (3, 8, 1)]


def test_an_update_costs_reading_what_was_generated_again() -> None:
    """G7: prompt and 3 ids of grain 1 are read again under the new weights."""
    speed = attrs.evolve(SPEED, prefill_seconds=0.1)
    ended, _, _ = run(_updated(PauseMode.KEEP, at=5.0 + 3 * 0.75, speed=speed, prompt_tokens=50))
    assert ended == pytest.approx(5 + 8 * 0.75 + 3 + 5 + 0.3)


def test_a_drain_waits_for_what_runs_and_holds_the_queue() -> None:
    """F5: nothing of the running answer is from the new version, all of the queued one is."""

    async def play() -> tuple[float, list[Generation]]:
        engine = fleet([8, 8], speed=attrs.evolve(SPEED, slots=1))
        both = [asyncio.create_task(engine.generate(asked(n))) for n in range(2)]
        await asyncio.sleep(1)
        await engine.pause(PauseMode.DRAIN)
        paused = asyncio.get_running_loop().time()
        await engine.load_weights(Update(version=1))
        await engine.resume()
        return paused, [await one for one in both]

    paused, (first, second) = run(play())
    assert paused == pytest.approx(6.0)
    assert [span.version for span in first.spans] == [0]
    assert [span.version for span in second.spans] == [1]


def test_a_cut_answer_goes_on_to_be_the_uncut_one() -> None:
    """F5: ids and log-probs do not depend on where the update came."""

    async def play() -> tuple[Generation, Generation, Generation]:
        engine = fleet([10])
        task = asyncio.create_task(engine.generate(asked(0)))
        await asyncio.sleep(4 * 0.75 + 0.1)
        await engine.pause(PauseMode.ABORT)
        await engine.load_weights(Update(version=1))
        await engine.resume()
        cut = await task
        budget = Sampling(max_new_tokens=1_000 - len(cut.tokens))
        rest = await engine.generate(asked(0, given=len(cut.tokens), sampling=budget))
        return cut, rest, await fleet([10]).generate(asked(0))

    cut, rest, whole = run(play())
    assert (cut.stop, len(cut.tokens), rest.stop) == (StopReason.ABORTED, 4, StopReason.STOP)
    assert [*cut.tokens, *rest.tokens] == list(whole.tokens)
    assert [*cut.logprobs, *rest.logprobs] == list(whole.logprobs)
    assert [span.version for span in rest.spans] == [1]


def test_an_update_of_a_drained_fleet_can_be_cut_short() -> None:
    """An interrupt ends a drain at once."""

    async def play() -> tuple[float, Generation]:
        engine = fleet([1_000])
        task = asyncio.create_task(engine.generate(asked(0)))
        await asyncio.sleep(1.6)
        drain = asyncio.create_task(engine.pause(PauseMode.DRAIN))
        await asyncio.sleep(0)
        await engine.interrupt()
        await drain
        return asyncio.get_running_loop().time(), await task

    when, answer = run(play())
    assert when == pytest.approx(1.6)
    assert (answer.stop, len(answer.tokens)) == (StopReason.ABORTED, 2)


def test_a_budget_a_deadline_and_an_end_are_told_apart() -> None:
    """D4: the stop reason is the engine's word."""

    async def play(length: int, **other: Any) -> tuple[int, StopReason]:
        answer = await fleet([length]).generate(asked(0, **other))
        return len(answer.tokens), answer.stop

    short = Sampling(max_new_tokens=5)
    assert run(play(5, sampling=short)) == (5, StopReason.STOP)
    assert run(play(6, sampling=short)) == (5, StopReason.LENGTH)
    assert run(play(6, deadline_seconds=1.6)) == (2, StopReason.TIMEOUT)


def test_a_cancelled_request_leaves_its_slot_to_the_next() -> None:
    """Cancellation: nothing of it stays."""

    async def play() -> float:
        engine = fleet([100, 4], speed=attrs.evolve(SPEED, slots=1))
        first = asyncio.create_task(engine.generate(asked(0)))
        second = asyncio.create_task(engine.generate(asked(1)))
        await asyncio.sleep(1)
        first.cancel()
        await second
        assert engine.waiting == 0
        return asyncio.get_running_loop().time()

    assert run(play()) == pytest.approx(1 + 4 * 0.75)


@pytest.mark.parametrize("paused", [False, True])
def test_closing_fails_whoever_waits(paused: bool) -> None:
    """O5: nobody waits for an engine that is gone."""

    async def play() -> None:
        engine = fleet([100, 100], speed=attrs.evolve(SPEED, slots=1))
        both = [asyncio.create_task(engine.generate(asked(n))) for n in range(2)]
        await asyncio.sleep(1)
        if paused:
            await engine.pause(PauseMode.KEEP)
            both.append(asyncio.create_task(engine.generate(asked(0))))
            await asyncio.sleep(1)
        await engine.close()
        await engine.close()
        for one in both:
            with pytest.raises(EngineFailed):
                await one

    run(play())


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    events=st.lists(st.tuples(st.floats(0.01, 4), st.sampled_from(list(PauseMode))), max_size=4),
)
def test_no_update_loses_an_id_or_names_a_version_twice(
    lengths: list[int], events: list[tuple[float, PauseMode]]
) -> None:
    """F5, F8: every answer ends; its spans cover it in order, versions only rise."""

    async def play() -> list[Generation]:
        engine = fleet(lengths, replicas=2, load_seconds=0.5)
        tasks = [asyncio.create_task(engine.generate(asked(n))) for n in range(len(lengths))]
        for version, (after, mode) in enumerate(events, start=1):
            await asyncio.sleep(after)
            await engine.pause(mode)
            await engine.load_weights(Update(version=version))
            await engine.resume()
        return [await task for task in tasks]

    for length, answer in zip(lengths, run(play()), strict=True):
        assert len(answer.tokens) == len(answer.logprobs) <= length
        assert answer.stop is StopReason.ABORTED or len(answer.tokens) == length
        edges = [(span.start, span.end) for span in answer.spans]
        assert [edge for span in edges for edge in span][1:-1] == [
            edge for span in edges[1:] for edge in (span[0], span[0])
        ]
        assert sum(end - start for start, end in edges) == len(answer.tokens)
        versions = [span.version for span in answer.spans]
        assert versions == sorted(set(versions))


@pytest.mark.parametrize("wrong", [{"token_seconds": -1.0}, {"prefill_seconds": float("nan")}])
def test_a_speed_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    """Errors are typed and name the value."""
    with pytest.raises(WrongValue, match=next(iter(wrong))):
        RolloutSpeed(**wrong)  # type: ignore[arg-type]
    with pytest.raises(WrongValue, match="no time"):
        RolloutSpeed(token_seconds=0, request_seconds=0)
