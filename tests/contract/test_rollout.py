"""What every rollout engine promises. Engines whose model is a tiny random one, on a CPU."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import attrs
import pytest
import torch
from tests.contract.rollout_engines import (
    END,
    SLOTS,
    VOCABULARY,
    Bench,  # noqa: F401 - suites of other engines take it from here
    Letters,
    OpenBench,
    all_of,
    assert_went_on,
    assert_whole,
    benches,
    embedded,  # noqa: F401 - suites of other engines take it from here
    expected_logprobs,
    request,
    run,
    skip_without,
    started,
    support_of,
)

from hexpo.application.continuing import complete
from hexpo.application.ports.rollout import Generation, PauseMode, Request, RolloutEngine
from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import EngineFailed, WrongValue
from hexpo.domain.trajectory import StopReason
from hexpo.entrypoints.testing.rollout import CONTRACT, Check


@benches
def test_ids_logprobs_and_spans_agree_and_logprobs_are_those_of_a_full_forward(
    open_bench: OpenBench,
) -> None:
    """C1: at any temperature, for prompts of different lengths that share slots."""
    bench = open_bench()
    requests = [
        request(str(i), range(3, 4 + i), seed=i, temperature=0.5 + 0.2 * i, session=str(i % 2))
        for i in range(7)
    ]
    answers = run(bench, lambda engine: all_of(engine, requests))
    for one, answer in zip(requests, answers, strict=True):
        assert_whole(answer)
        assert len(answer.tokens) == 12
        assert answer.stop is StopReason.LENGTH
        difference = answer.logprobs - expected_logprobs(bench, one, answer)
        assert float(difference.abs().max()) < bench.exactness


@benches
def test_an_answer_is_the_same_alone_and_in_company(open_bench: OpenBench) -> None:
    """A request's randomness is its own; different seeds give different answers."""
    company = [request(str(i), range(9, 11 + i), seed=i, session="s") for i in range(6)]
    crowded = run(open_bench(), lambda engine: all_of(engine, company))
    alone = run(open_bench(), lambda engine: engine.generate(attrs.evolve(company[3], session="")))
    assert torch.equal(crowded[3].tokens, alone.tokens)
    torch.testing.assert_close(crowded[3].logprobs, alone.logprobs, rtol=0, atol=1e-4)
    same = [request(str(i), seed=i) for i in range(4)]
    answers = run(open_bench(), lambda engine: all_of(engine, same))
    assert len({tuple(answer.tokens.tolist()) for answer in answers}) > 1


@benches
def test_temperature_zero_follows_the_likeliest_id(open_bench: OpenBench) -> None:
    """Greedy: no randomness, and the log-probs of a certain choice."""
    bench = open_bench()
    one = request("greedy", temperature=0.0)
    answer = run(bench, lambda engine: engine.generate(one))
    ids = [*one.prompt, *answer.tokens.tolist()]
    assert torch.equal(bench.logits(ids)[2:-1].argmax(-1), answer.tokens)
    assert answer.logprobs.tolist() == [0.0] * 12


@benches
def test_every_stop_id_ends_an_answer_and_stays_in_it(open_bench: OpenBench) -> None:
    """O09: the model's own stop id and the request's; the reason is the engine's word."""
    bench = open_bench()
    long = [request(str(i), seed=i, max_new_tokens=60, min_new_tokens=0) for i in range(8)]
    answers = run(bench, lambda engine: all_of(engine, long))
    for answer in answers:
        ids = answer.tokens.tolist()
        assert END not in ids[:-1]
        assert (answer.stop is StopReason.STOP) == (ids[-1] == END)
        assert answer.stop is StopReason.STOP or len(ids) == 60
    assert any(answer.stop is StopReason.STOP for answer in answers)
    stops = (*range(3, 20),)
    again = [attrs.evolve(one, sampling=attrs.evolve(one.sampling, stop_ids=stops)) for one in long]
    for short, full in zip(
        run(open_bench(), lambda engine: all_of(engine, again)), answers, strict=True
    ):
        ids = full.tokens.tolist()
        first = next((i for i, token in enumerate(ids) if token in (END, *stops)), len(ids) - 1)
        assert short.tokens.tolist() == ids[: first + 1]


@benches
def test_a_stop_id_on_the_last_token_of_the_budget_is_a_stop(open_bench: OpenBench) -> None:
    """O09: ids say nothing about their role; an answer of exactly its budget may be complete."""
    everything = tuple(range(VOCABULARY))
    one = request("x", max_new_tokens=3, min_new_tokens=3, stop_ids=everything)
    answer = run(open_bench(), lambda engine: engine.generate(one))
    assert len(answer.tokens) == 3
    assert answer.stop is StopReason.STOP


@benches
def test_a_stop_text_ends_an_answer_with_the_tokens_that_made_it(open_bench: OpenBench) -> None:
    """O09 r5: a stop without any stop id."""
    bench = open_bench()
    if not bench.engine.capabilities.stop_texts:
        pytest.skip("this engine declares no stop texts")
    full = run(bench, lambda engine: engine.generate(request("full", seed=3)))
    letters = Letters().decode(full.tokens.tolist())
    text = letters[4:7]
    first = letters.find(text)
    one = request("text", seed=3, min_new_tokens=0, stop_texts=("not in there", text))
    answer = run(open_bench(), lambda engine: engine.generate(one))
    assert answer.tokens.tolist() == full.tokens.tolist()[: first + 3]
    assert answer.stop is StopReason.STOP


@benches
@pytest.mark.parametrize(
    "filters",
    [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 20, "top_p": 0.9, "min_p": 0.05}],
    ids=str,
)
def test_filtered_ids_lie_in_the_support_and_logprobs_are_renormalised(
    open_bench: OpenBench, filters: dict[str, Any]
) -> None:
    """Log-probs are those of the distribution that was drawn from."""
    bench = open_bench()
    if not bench.engine.capabilities.filtered_logprobs:
        pytest.skip("this engine declares no filtered log-probs")
    one = request("f", temperature=0.8, **filters)
    answer = run(bench, lambda engine: engine.generate(one))
    ids = [*one.prompt, *answer.tokens.tolist()]
    logits = bench.logits(ids)[len(one.prompt) - 1 : -1].double() / 0.8
    for row, token, logprob in zip(
        logits, answer.tokens.tolist(), answer.logprobs.tolist(), strict=True
    ):
        support = support_of(row, one.sampling)
        assert token in support
        assert logprob == pytest.approx(math.log(support[token]), abs=1e-4)


@benches
@pytest.mark.parametrize(
    ("one", "message"),
    [
        (request("bad", [5, VOCABULARY]), f"bad.*id {VOCABULARY}"),
        (request("negative", [-1]), "negative.*id -1"),
        (request("long", [5] * 250), "long.*250.*256"),
        (request("empty", []), "empty"),
    ],
    ids=lambda value: value.id if isinstance(value, Request) else "",
)
def test_a_request_that_cannot_be_served_is_refused_by_name(
    open_bench: OpenBench, one: Request, message: str
) -> None:
    """E1: too long, or an id that the model does not have."""

    async def work(engine: RolloutEngine) -> None:
        with pytest.raises(WrongValue, match=message):
            await engine.generate(one)
        assert len((await engine.generate(request("good"))).tokens) == 12

    run(open_bench(), work)


@benches
def test_a_cancelled_request_frees_its_slot(open_bench: OpenBench) -> None:
    """Cancellation: more than the slots are cancelled, running and waiting; others still run."""

    async def work(engine: RolloutEngine) -> None:
        endless = [
            request(f"long {i}", max_new_tokens=240, min_new_tokens=240) for i in range(2 * SLOTS)
        ]
        tasks = [asyncio.ensure_future(engine.generate(one)) for one in endless]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        answers = await all_of(engine, [request(str(i), seed=i) for i in range(SLOTS)])
        assert all(len(answer.tokens) == 12 for answer in answers)

    run(open_bench(), work)


@benches
def test_a_deadline_ends_an_answer_with_what_it_has(open_bench: OpenBench) -> None:
    """A timeout is a stop reason, running or waiting."""

    async def work(engine: RolloutEngine) -> None:
        late = request("late", max_new_tokens=250, min_new_tokens=250, deadline_seconds=0.02)
        answers = await all_of(engine, [late, *(attrs.evolve(late, id=str(i)) for i in range(9))])
        for answer in answers:
            assert_whole(answer)
            assert answer.stop is StopReason.TIMEOUT
            assert len(answer.tokens) < 250

    run(open_bench(), work)


@benches
def test_a_stream_gives_the_same_tokens_and_the_reason_last(open_bench: OpenBench) -> None:
    """Streaming and the whole answer are one thing."""

    async def work(engine: RolloutEngine) -> tuple[list[int], list[StopReason | None], Generation]:
        chunks = [chunk async for chunk in engine.stream(request("s", seed=5))]
        tokens = [token for chunk in chunks for token in chunk.tokens]
        return tokens, [chunk.stop for chunk in chunks], await engine.generate(request("g", seed=5))

    tokens, stops, answer = run(open_bench(), work)
    assert tokens == answer.tokens.tolist()
    assert set(stops[:-1]) <= {None}
    assert stops[-1] is answer.stop


@benches
def test_a_pause_that_keeps_goes_on_under_the_new_weights_without_a_stale_cache(
    open_bench: OpenBench,
) -> None:
    """G7, G2: tokens after the load have the log-probs of the new model on the whole answer, and
    the spans say which version sampled which."""
    bench = open_bench()
    skip_without(bench, PauseMode.KEEP)
    one = request("kept", seed=2, max_new_tokens=200, min_new_tokens=200)

    async def work(engine: RolloutEngine) -> Generation:
        task = await started(engine, one)
        await engine.pause(PauseMode.KEEP)
        await asyncio.sleep(0.05)
        assert not task.done()
        bench.train()
        await engine.load_weights(Update(version=3))
        assert engine.version == 3
        await engine.resume()
        return await task

    assert_went_on(bench, one, run(bench, work))


@benches
def test_a_pause_that_aborts_returns_partial_answers_at_once(open_bench: OpenBench) -> None:
    """Running requests end aborted; new ones wait until the engine resumes."""
    bench = open_bench()
    skip_without(bench, PauseMode.ABORT)

    async def work(engine: RolloutEngine) -> None:
        task = await started(engine, request("a", max_new_tokens=200, min_new_tokens=200))
        await engine.pause(PauseMode.ABORT)
        answer = await task
        assert_whole(answer)
        assert answer.stop is StopReason.ABORTED
        assert 0 < len(answer.tokens) < 200
        waiting = asyncio.ensure_future(engine.generate(request("later")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await engine.resume()
        assert len((await waiting).tokens) == 12

    run(bench, work)


@benches
def test_a_pause_that_drains_lets_running_requests_end(open_bench: OpenBench) -> None:
    """Nothing runs when the pause returns, and nothing was cut."""
    bench = open_bench()
    skip_without(bench, PauseMode.DRAIN)

    async def work(engine: RolloutEngine) -> None:
        task = await started(engine, request("d", max_new_tokens=60, min_new_tokens=60))
        await engine.pause(PauseMode.DRAIN)
        await asyncio.sleep(0)
        assert task.done()
        assert len((await task).tokens) == 60

    run(bench, work)


@benches
def test_loaded_weights_change_the_answers_and_no_session_remembers_older_ones(
    open_bench: OpenBench,
) -> None:
    """G7: the same request of the same session, before and after."""
    bench = open_bench()
    one = request("w", range(3, 50), seed=4, session="same")

    async def work(engine: RolloutEngine) -> tuple[Generation, Generation]:
        before = await engine.generate(one)
        await engine.pause(PauseMode.DRAIN)
        bench.train()
        await engine.load_weights(Update(version=1))
        await engine.resume()
        return before, await engine.generate(one)

    before, after = run(bench, work)
    assert [span.version for span in before.spans + after.spans] == [0, 1]
    assert not torch.equal(before.logprobs, after.logprobs)
    difference = after.logprobs - expected_logprobs(bench, one, after)
    assert float(difference.abs().max()) < bench.exactness


@benches
def test_an_engine_that_fails_tells_every_waiter_why(open_bench: OpenBench) -> None:
    """A failing engine reaches its callers with its own first error; nobody hangs."""
    bench = open_bench()

    async def work(engine: RolloutEngine) -> None:
        bench.break_it()
        calls: list[Coroutine[Any, Any, Any]] = [
            engine.generate(request(str(i))) for i in range(2 * SLOTS)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for error in results:
            assert isinstance(error, EngineFailed)
            assert "broken" in str(error)
            assert isinstance(error.__cause__, RuntimeError)
        with pytest.raises(EngineFailed):
            await engine.generate(request("after"))

    run(bench, work)


@benches
def test_closing_twice_ends_running_requests(open_bench: OpenBench) -> None:
    """Close is final, safe to repeat, and leaves nobody waiting."""

    async def work(engine: RolloutEngine) -> None:
        task = await started(engine, request("c", max_new_tokens=200, min_new_tokens=200))
        await engine.close()
        await engine.close()
        assert (await task).stop is StopReason.ABORTED
        with pytest.raises(EngineFailed, match="closed"):
            await engine.generate(request("after"))

    run(open_bench(), work)


@benches
def test_lower_priority_numbers_are_served_first(open_bench: OpenBench) -> None:
    """Waiting requests leave the queue by priority, equal ones in order of arrival."""
    order: list[str] = []

    async def work(engine: RolloutEngine) -> None:
        async def one(wanted: Request) -> None:
            await engine.generate(wanted)
            order.append(wanted.id)

        async with asyncio.TaskGroup() as group:
            for i in range(3 * SLOTS):
                wanted = request(str(i), seed=i, priority=-1 if i >= 2 * SLOTS else 0)
                group.create_task(one(wanted))

    run(open_bench(), work)
    assert set(order[:SLOTS]) == {str(i) for i in range(2 * SLOTS, 3 * SLOTS)}


@benches
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_updates_keep_the_contract(open_bench: OpenBench, check: Check) -> None:
    """F7, F8, G7: cuts, interruptions, partial answers, every way to pause."""
    asyncio.run(asyncio.wait_for(check(open_bench().engine), 60))


@benches
def test_a_cut_answer_goes_on_under_the_new_weights_without_a_stale_cache(
    open_bench: OpenBench,
) -> None:
    """G7: the tokens of each piece have the log-probs of the weights that sampled them."""
    bench = open_bench()
    skip_without(bench, PauseMode.ABORT)
    one = request("cut", seed=2, max_new_tokens=200, min_new_tokens=200, session="s")

    async def work(engine: RolloutEngine) -> Generation:
        task = asyncio.ensure_future(complete(engine, one))
        await started(engine, attrs.evolve(one, id="beside", session=""))
        await engine.pause(PauseMode.ABORT)
        bench.train()
        await engine.load_weights(Update(version=3))
        await engine.resume()
        return await task

    assert_went_on(bench, one, run(bench, work))
