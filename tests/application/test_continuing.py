"""Answers that updates cut: joined, continued, and given up where nothing comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.application.continuing import OnUpdate, complete
from hexpo.application.ports.rollout import Generation, PauseMode, Request, Span
from hexpo.application.ports.transfer import Update
from hexpo.domain.batch.assemble import assemble
from hexpo.domain.errors import EngineFailed, NoProgress
from hexpo.domain.metrics import values
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import (
    Graded,
    Group,
    Message,
    Prompt,
    Scored,
    StopReason,
    Ticket,
    Trajectory,
)

ONE = Request(id="one", prompt=(7, 8), sampling=Sampling(min_new_tokens=5), seed=3, session="s")


class Scripted:
    """Gives pieces as told; keeps what it was asked."""

    def __init__(self, piece: Callable[[Request], Generation]) -> None:
        self._piece = piece
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> Generation:
        self.asked.append(request)
        return self._piece(request)


def piece(*ids: int, stop: StopReason = StopReason.ABORTED, version: int = 0) -> Generation:
    spans = (Span(0, len(ids), version),) if ids else ()
    return Generation(
        tokens=torch.tensor(ids, dtype=torch.int64),
        logprobs=-torch.tensor(ids, dtype=torch.float32),
        spans=spans,
        stop=stop,
    )


def test_a_cut_answer_is_asked_for_its_rest_and_joined() -> None:
    """F8, F9: ids behind the prompt, the rest of both budgets, the same seed and session."""
    pieces = iter([piece(1, 2), piece(3, version=1), piece(4, 5, stop=StopReason.STOP, version=1)])
    engine = Scripted(lambda _: next(pieces))
    answer = asyncio.run(complete(engine, ONE))  # type: ignore[arg-type]
    assert answer.tokens.tolist() == [1, 2, 3, 4, 5]
    assert answer.logprobs.tolist() == [-1, -2, -3, -4, -5]
    assert answer.spans == (Span(0, 2, 0), Span(2, 5, 1))
    assert answer.stop is StopReason.STOP
    first, second, third = engine.asked
    assert first == ONE
    assert (second.prompt, second.given) == ((7, 8, 1, 2), 2)
    assert (third.prompt, third.given) == ((7, 8, 1, 2, 3), 3)
    assert (third.sampling.max_new_tokens, third.sampling.min_new_tokens) == (61, 2)
    assert {(one.seed, one.session, one.id) for one in engine.asked} == {(3, "s", "one")}


def test_an_answer_without_progress_is_given_up() -> None:
    """F4: no wait is unbounded; a single token starts the count again."""
    count = iter(range(1000))
    engine = Scripted(lambda _: piece(1) if next(count) == 3 else piece())
    with pytest.raises(NoProgress, match=r"one.*5 times.*after 1 tokens"):
        asyncio.run(complete(engine, ONE, fruitless=4))  # type: ignore[arg-type]
    assert len(engine.asked) == 4 + 5


def test_a_full_budget_is_a_cut_answer_even_if_the_engine_was_interrupted() -> None:
    """Nothing is asked for no token."""
    short = attrs.evolve(ONE, sampling=Sampling(max_new_tokens=2))
    engine = Scripted(lambda _: piece(1, 2))
    answer = asyncio.run(complete(engine, short))  # type: ignore[arg-type]
    assert answer.stop is StopReason.LENGTH
    assert len(engine.asked) == 1


@pytest.mark.parametrize("stop", [StopReason.TIMEOUT, StopReason.LENGTH, StopReason.STOP])
def test_only_a_cut_goes_on(stop: StopReason) -> None:
    """A deadline, a budget and an end are final."""
    engine = Scripted(lambda _: piece(1, stop=stop))
    assert asyncio.run(complete(engine, ONE)).stop is stop  # type: ignore[arg-type]
    assert len(engine.asked) == 1


def simulated(length: int) -> SimulatedRollout:
    return SimulatedRollout(lambda request: Script(length=length, seconds=length))


@given(
    st.integers(1, 40),
    st.lists(st.floats(0.1, 9.0), max_size=12),
    st.sampled_from(list(OnUpdate)),
)
def test_cuts_change_neither_ids_nor_logprobs_nor_the_length(
    length: int, gaps: list[float], on_update: OnUpdate
) -> None:
    """Each token has the version that was loaded when it was drawn; none is lost or drawn twice."""
    one = attrs.evolve(ONE, sampling=Sampling())

    async def play(updates: list[float]) -> Generation:
        engine = simulated(length)
        answer = asyncio.ensure_future(complete(engine, one))
        for version, gap in enumerate(updates, start=1):
            await asyncio.sleep(gap)
            await engine.pause(on_update.pause_mode)
            await engine.load_weights(Update(version=version))
            await engine.resume()
        return await answer

    cut, uncut = run(play(gaps)), run(play([]))
    assert torch.equal(cut.tokens, uncut.tokens)
    assert torch.equal(cut.logprobs, uncut.logprobs)
    assert cut.stop is uncut.stop is StopReason.STOP
    covered = [place for span in cut.spans for place in range(span.start, span.end)]
    assert covered == list(range(length))
    versions = [span.version for span in cut.spans]
    assert versions == sorted(set(versions))
    assert len(versions) == 1 or on_update is not OnUpdate.DRAIN


def test_a_deadline_holds_for_the_whole_answer() -> None:
    """Cuts don't extend it."""
    late = attrs.evolve(ONE, deadline_seconds=10.5)

    async def play() -> tuple[Generation, float]:
        engine, clock = simulated(60), asyncio.get_running_loop().time
        answer = asyncio.ensure_future(complete(engine, late))
        for _ in range(3):
            await asyncio.sleep(3)
            await engine.pause(PauseMode.ABORT)
            await engine.resume()
        return await answer, clock()

    answer, ended = run(play())
    assert answer.stop is StopReason.TIMEOUT
    assert len(answer.tokens) == 11
    assert ended <= 12


def test_an_engine_that_closes_ends_the_answer_with_a_failure() -> None:
    """F7: a shutdown is no cut that could go on."""

    async def play() -> None:
        engine = simulated(60)
        answer = asyncio.ensure_future(complete(engine, ONE))
        await asyncio.sleep(3)
        await engine.close()
        with pytest.raises(EngineFailed, match="closed"):
            await answer

    run(play())


def test_a_piece_without_logprobs_masks_its_own_tokens_only() -> None:
    """C3: counted, and the other pieces are trained."""
    nan = attrs.evolve(piece(4, 5, version=1), logprobs=torch.full((2,), torch.nan))
    pieces = iter([piece(1, 2), nan, piece(6, stop=StopReason.STOP, version=2)])
    answer = asyncio.run(complete(Scripted(lambda _: next(pieces)), ONE))  # type: ignore[arg-type]
    prompt = Prompt(id="p", messages=(Message("user", "?"),))
    version = torch.zeros(7, dtype=torch.int64)
    for span in answer.spans:
        version[2 + span.start : 2 + span.end] = span.version
    row = Trajectory(
        id=0,
        group=0,
        prompt=prompt,
        tokens=torch.cat([torch.tensor(ONE.prompt), answer.tokens]),
        prompt_length=2,
        action=torch.arange(7) >= 2,
        behaviour=torch.cat([torch.zeros(2), answer.logprobs]),
        version=version,
        stop=answer.stop,
    )
    ticket = Ticket(number=0, prompt=prompt, version=0, samples=1)
    group = Group(ticket=ticket, rows=(Graded(trajectory=row, outcome=Scored(value=1.0)),))
    batch, metrics = assemble([group])
    trained = batch.tokens["trained"].tolist()
    assert trained == [False, False, True, True, False, False, True]
    assert batch.tokens["version"].tolist() == [0, 0, 0, 0, 1, 1, 2]
    counted = values(metrics)
    assert counted["tokens/masked/no_logprob"] == 2
    assert counted["tokens/trained"] == 3
