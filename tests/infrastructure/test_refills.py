"""How many groups a configured run may lose before it gives a batch up."""

from __future__ import annotations

import asyncio

import pytest

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedReward, SimulatedTokenizer
from hexpo.application.agents import SingleTurn
from hexpo.application.grading import Player, RetryPolicy
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import Cause, Failed, Outcome, Scored, Trajectory
from hexpo.infrastructure.config.load import load
from hexpo.infrastructure.parts import make_rollouts


def taken(*, prompts: int, lost: int) -> int:
    """Groups of the first batch, where the first so many cannot be scored."""
    config = load(
        {
            "model": {"path": "none"},
            "data": {"train": {"kind": "jsonl", "options": {"paths": ["none"]}}},
            "reward": {"kind": "python", "options": {"function": "none:none"}},
        },
        overrides=[f"training.prompts_per_step={prompts}", "rollout.samples=2"],
    ).config

    def score(row: Trajectory) -> Outcome:
        if row.group < lost:
            return Failed(cause=Cause.RAISED, message="too cold")
        return Scored(value=float(row.id))

    rollout = SimulatedRollout(lambda request: Script(length=1, seconds=1.0))
    agent = SingleTurn(rollout=rollout, tokenizer=SimulatedTokenizer(), sampling=Sampling(), seed=0)
    player = Player(agent, SimulatedReward(score), policy=RetryPolicy(), give_up_after=999)

    async def play() -> int:
        rollouts = make_rollouts(config, SimulatedPrompts(999), player)
        feed = asyncio.create_task(rollouts.run())
        try:
            groups = await rollouts.take(None)
        finally:
            feed.cancel()
        return len(groups or [])

    return run(play())


def test_a_batch_may_lose_as_many_groups_as_it_has_and_64_in_any_case() -> None:
    """K6: a large batch is not given up for what is a small share of it."""
    assert taken(prompts=4, lost=64) == 4
    assert taken(prompts=100, lost=100) == 100
    with pytest.raises(RewardUnavailable, match=r"65 groups.*refill budget is 64.*too cold"):
        taken(prompts=4, lost=65)
    with pytest.raises(RewardUnavailable, match="refill budget is 100"):
        taken(prompts=100, lost=101)
