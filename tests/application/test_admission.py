"""What becomes of rollouts that nobody wants any more, and of answers that cannot be answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import attrs
import pytest
import torch
from tests.tiny import answer

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedReward, SimulatedTokenizer
from hexpo.application.agents import SingleTurn
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.ports.rollout import Generation, Request
from hexpo.application.rollouts import Rollouts
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.metrics import values
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import open_gate, plan
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Group,
    Outcome,
    Prompt,
    Scored,
    Ticket,
    Trajectory,
)


class Counting(SimulatedRollout):
    """Knows which requests are inside and which were ever made; the first one never ends."""

    def __init__(self) -> None:
        super().__init__(
            lambda request: Script(length=1, seconds=1e6 if request.id == self.slow else 1.0)
        )
        self.slow, self.inside, self.made = "", set[str](), list[str]()

    async def generate(self, request: Request) -> Generation:
        self.slow = self.slow or request.id
        self.made.append(request.id)
        self.inside.add(request.id)
        try:
            return await super().generate(request)
        finally:
            self.inside.discard(request.id)


def rollouts_of(engine: SimulatedRollout, *, window: int | None, staleness: float) -> Rollouts:
    agent = SingleTurn(
        rollout=engine, tokenizer=SimulatedTokenizer(), sampling=Sampling(max_new_tokens=8), seed=0
    )
    policy = RetryPolicy(deadline_seconds=1e9)
    player = Player(agent, SimulatedReward(), policy=policy, give_up_after=99)
    gate = open_gate(plan(groups=1, max_staleness=staleness, window=window))
    return Rollouts(SimulatedPrompts(9), player, gate, samples=1)


def test_a_stale_group_is_cancelled_and_frees_its_slots() -> None:
    """F1: what can never be trained holds no slot in the gate and none in the engine."""

    async def play() -> None:
        engine = Counting()
        rollouts = rollouts_of(engine, window=None, staleness=1.0)
        feed = asyncio.ensure_future(rollouts.run())
        for version in (1, 2):
            batch = await rollouts.take(None)
            assert batch is not None
            assert [group.ticket.number for group in batch] == [version]
            assert engine.slow in engine.inside
            rollouts.published(version)
            if version == 1:
                rollouts.fill()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.slow not in engine.inside
        assert rollouts.gate.free == 2
        assert rollouts.in_flight == ()
        assert rollouts.gate.ledger.balanced
        feed.cancel()

    run(play())


def test_what_order_of_completion_drops_is_reported_with_the_time_that_it_took() -> None:
    """F3, X3: the slow group was played for as long as two fast ones, and trains nothing."""

    async def play() -> list[dict[str, float]]:
        rollouts = rollouts_of(Counting(), window=None, staleness=1.0)
        feed = asyncio.ensure_future(rollouts.run())
        steps = []
        for version in (1, 2):
            await rollouts.take(None)
            rollouts.published(version)
            rollouts.fill()
            steps.append(values(rollouts.metrics()))
        feed.cancel()
        return steps

    names = ("bias/passed", "bias/dropped_share", "bias/trained_seconds", "bias/dropped_seconds")
    first, second = ([step.get(name) for name in names] for step in run(play()))
    assert first == [1, 0, 1.0, None]
    assert second == [1, 0.5, 1.0, 2.0]


def test_what_is_in_flight_is_whole_between_a_restoration_and_the_run() -> None:
    """H1, H5: a checkpoint that is written before the run starts again loses no ticket."""

    async def play() -> None:
        first = rollouts_of(Counting(), window=1, staleness=2.0)
        feed = asyncio.ensure_future(first.run())
        await asyncio.sleep(0.5)
        feed.cancel()
        second = rollouts_of(engine := Counting(), window=1, staleness=2.0)
        second.restore(first.gate, first.in_flight)
        assert second.in_flight == first.in_flight
        assert len(second.in_flight) == 3
        second.restore(second.gate, second.in_flight)
        feed = asyncio.ensure_future(second.run())
        await asyncio.sleep(0.5)
        assert second.in_flight == first.in_flight
        assert len(engine.made) == 3
        feed.cancel()

    run(play())


def test_nothing_is_issued_after_the_end_of_a_run() -> None:
    """F7: a late `fill` finds nobody to play for."""

    async def play() -> None:
        rollouts = rollouts_of(engine := Counting(), window=1, staleness=0.0)
        engine.slow = "none"
        feed = asyncio.ensure_future(rollouts.run())
        assert await rollouts.take(None)
        feed.cancel()
        await asyncio.wait({feed})
        rollouts.published(1)
        rollouts.fill()
        await asyncio.sleep(5)
        assert rollouts.gate.free == 1
        assert len(engine.made) == 1

    run(play())


class OneBad:
    """Sample 1's answer is spoilt."""

    def __init__(self, spoil: Callable[[Trajectory], Trajectory]) -> None:
        self._spoil = spoil

    async def run(self, ticket: Ticket, sample: int) -> Trajectory:
        row = answer(ticket, sample)
        return self._spoil(row) if sample == 1 else row


class Grader:
    """Grades by a function of all rows."""

    def __init__(self, grade: Callable[[Sequence[Trajectory]], Sequence[Outcome]]) -> None:
        self._grade = grade

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        return self._grade(rows)

    async def close(self) -> None: ...


def ones(rows: Sequence[Trajectory]) -> list[Outcome]:
    return [Scored(value=1.0) for _ in rows]


def played(
    spoil: Callable[[Trajectory], Trajectory] = lambda row: row,
    grade: Callable[[Sequence[Trajectory]], Sequence[Outcome]] = ones,
) -> Group:
    policy = RetryPolicy(retries=0)
    player = Player(OneBad(spoil), Grader(grade), policy=policy, give_up_after=3, vocabulary=32)
    ticket = Ticket(number=0, prompt=Prompt(id="p", messages=()), version=0, samples=3)
    return run(player.play(ticket))


SPOILT: dict[str, Callable[[Trajectory], Trajectory]] = {
    "a log-prob short": lambda row: attrs.evolve(row, behaviour=row.behaviour[:-1]),
    "a token too many": lambda row: attrs.evolve(row, tokens=torch.tensor([1, 2, 3, 4])),
    "past the vocabulary": lambda row: attrs.evolve(row, tokens=torch.tensor([1, 2, 32])),
    "a negative id": lambda row: attrs.evolve(row, tokens=torch.tensor([1, -2, 3])),
    "of no version": lambda row: attrs.evolve(row, version=torch.tensor([0, -1, 0])),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_answer_that_contradicts_itself_fails_alone(
    spoil: Callable[[Trajectory], Trajectory],
) -> None:
    """L3: it becomes a typed failure, is not graded, and its peers are as they were."""
    group = played(spoil)
    outcomes = [row.outcome for row in group.rows]
    assert isinstance(outcomes[0], Scored)
    assert isinstance(outcomes[2], Scored)
    assert isinstance(outcomes[1], Failed)
    assert outcomes[1].cause is Cause.BAD_RESULT
    assert not group.rows[1].trajectory.action.any()


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_no_finite_number_fails_its_sample_alone(score: float) -> None:
    """B7: one of them would spoil the whole group's baseline."""
    group = played(grade=lambda rows: [Scored(value=score), *ones(rows)[1:]])
    first, *others = [row.outcome for row in group.rows]
    assert isinstance(first, Failed)
    assert first.cause is Cause.BAD_RESULT
    assert all(isinstance(one, Scored) for one in others)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_grader_that_gives_another_number_of_outcomes_is_refused(more: int) -> None:
    """B7: scores must not be paired with other answers."""
    with pytest.raises(RewardUnavailable, match="one for each"):
        played(grade=lambda rows: [Scored(value=1.0)] * (len(rows) + more))
