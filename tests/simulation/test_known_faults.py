"""Faults that asynchronous trainers are known for, each as a run in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedReward, SimulatedTokenizer
from hexpo.application.agents import SingleTurn
from hexpo.application.continuing import OnUpdate
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.ports.rollout import Request
from hexpo.application.rollouts import Rollouts
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import open_gate, plan
from hexpo.domain.trajectory import Cause, Failed, Group, StopReason
from hexpo.entrypoints.testing.explorer import check
from hexpo.entrypoints.testing.scenarios import Scenario


class AskedWhileRunning(SimulatedRollout):
    """Notes when each request came."""

    def __init__(self, script: Script) -> None:
        super().__init__(lambda request: script)
        self.arrived: list[float] = []

    async def generate(self, request: Request) -> object:  # type: ignore[override]
        self.arrived.append(asyncio.get_running_loop().time())
        return await super().generate(request)


def rollouts_of(engine: SimulatedRollout, *, staleness: float, samples: int = 1) -> Rollouts:
    agent = SingleTurn(
        rollout=engine,
        tokenizer=SimulatedTokenizer(),
        sampling=Sampling(max_new_tokens=16),
        seed=0,
    )
    policy = RetryPolicy(retries=0, deadline_seconds=50.0)
    player = Player(agent, SimulatedReward(), policy=policy, give_up_after=99)
    gate = open_gate(plan(groups=2, max_staleness=staleness))
    return Rollouts(SimulatedPrompts(9), player, gate, samples=samples)


async def playing(rollouts: Rollouts) -> asyncio.Task[None]:
    task = asyncio.ensure_future(rollouts.run())
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("staleness", [0.0, 0.5, 1.0])
def test_an_answer_that_the_queue_is_full_is_not_remembered_over_an_update(
    staleness: float,
) -> None:
    """F4: whoever asked before the publication and was refused is admitted right after it, not
    when the next group ends; what a full queue said is asked anew each time."""

    async def play() -> tuple[list[float], float]:
        engine = AskedWhileRunning(Script(length=2, seconds=2.0))
        rollouts = rollouts_of(engine, staleness=staleness)
        feed = await playing(rollouts)
        await rollouts.take(None)
        assert rollouts.gate.free == 0
        rollouts.fill()  # refused: all that was trained holds its slot until it is published
        before = len(engine.arrived)
        await asyncio.sleep(10)
        assert len(engine.arrived) == before
        now = asyncio.get_running_loop().time()
        rollouts.published(1)
        rollouts.fill()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        feed.cancel()
        return engine.arrived[before:], now

    arrived, published = run(play())
    assert arrived == [published] * 2


@pytest.mark.parametrize("on_update", [OnUpdate.KEEP, OnUpdate.CONTINUE])
def test_an_update_never_waits_for_the_longest_trajectory(on_update: OnUpdate) -> None:
    """F6, O15: no lock is held while an answer is awaited. One answer takes 40 tokens of a second,
    an update takes at most the token in hand and the transfer; the run checks each one."""
    scenario = Scenario(
        seed=3,
        staleness=1.0,
        on_update=on_update,
        tail=2.5,
        token_seconds=1.0,
        load_seconds=0.1,
        deadline_seconds=600.0,
    )
    [world] = check(scenario)
    lengths = [len(one.tokens) - one.prompt_length for one in world.tracker.records]
    took = [numbers["time/publish"] for _, numbers in world.tracker.reports if numbers]
    assert max(lengths) >= 20
    assert max(took) <= 1.0 + 0.1 + 1e-6


def test_a_drain_does_wait_and_the_measure_shows_it() -> None:
    """The same run can fail: with a drain the update takes as long as what it waits for."""
    scenario = Scenario(
        seed=3, staleness=1.0, on_update=OnUpdate.DRAIN, tail=2.5, token_seconds=1.0
    )
    [world] = check(scenario)
    took = [numbers["time/publish"] for _, numbers in world.tracker.reports if numbers]
    assert max(took) > 5


def test_a_failed_rollout_is_never_reported_as_a_success() -> None:
    """O16, B7: it has a failure, no action, no score, and is counted; its peers train."""

    async def play() -> Sequence[Group]:
        names: list[str] = []

        def noted(request: Request) -> Script:
            names.append(request.id)
            failing = len(names) == 2
            return Script(
                length=2, error=ConnectionError("the server hung up") if failing else None
            )

        rollouts = rollouts_of(SimulatedRollout(noted), staleness=0.0, samples=3)
        feed = await playing(rollouts)
        batch = await rollouts.take(None)
        feed.cancel()
        assert batch is not None
        return batch

    rows = [row for group in run(play()) for row in group.rows]
    failed = [row for row in rows if isinstance(row.outcome, Failed)]
    assert len(rows) == 6
    [one] = failed
    assert isinstance(one.outcome, Failed)
    assert one.outcome.cause is Cause.RAISED
    assert one.trajectory.failure is one.outcome
    assert one.trajectory.stop is StopReason.FAILED
    assert not one.trajectory.action.any()
