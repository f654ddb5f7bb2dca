"""Evaluations beside training, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.adapters.simulated.world import (
    SimulatedPrompts,
    SimulatedReward,
    SimulatedTokenizer,
    SimulatedTracker,
)
from hexpo.application.agents import SingleTurn
from hexpo.application.evaluate import Beside, Evaluator
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.ports.rollout import PauseMode, RolloutEngine
from hexpo.application.ports.transfer import Update
from hexpo.application.replicas import Replicas
from hexpo.application.validation import Validation
from hexpo.domain.sampling import Sampling


def player(rollout: RolloutEngine) -> Player:
    agent = SingleTurn(
        rollout=rollout,
        tokenizer=SimulatedTokenizer(),
        sampling=Sampling(max_new_tokens=64),
        seed=0,
        stream="evaluate",
    )
    return Player(agent, SimulatedReward(), policy=RetryPolicy(), give_up_after=3)


def test_an_evaluation_beside_training_measures_one_version_and_is_reported_in_order() -> None:
    """N5, Y10: labelled with the version of its start, at a step that is not over."""

    async def main() -> SimulatedTracker:
        speed = RolloutSpeed(token_seconds=1.0, request_seconds=0.0)
        engines = {
            name: SimulatedFleet(FleetSettings(speed=speed), lambda request: 30) for name in "ab"
        }
        replicas, tracker, step = Replicas(engines), SimulatedTracker(), 0
        beside = Beside(lessor=replicas, player=player)
        evaluator = Evaluator(
            SimulatedPrompts(4), player(replicas), replicas, samples=1, name="held", beside=beside
        )
        validation = Validation(evaluator, tracker)
        async with asyncio.TaskGroup() as tasks:
            for step in range(1, 7):
                await asyncio.sleep(9.0)
                await replicas.pause(PauseMode.KEEP)
                await replicas.load_weights(Update(version=step))
                await replicas.resume()
                tracker.report(step, {})
                if step == 2:
                    validation.start(step, tasks, present=lambda: tracker.reports[-1][0])
            await validation.flush()
        await validation.run(step)
        await replicas.close()
        return tracker

    tracker = run(main())
    steps = [step for step, _ in tracker.reports]
    assert steps == sorted(steps)
    measured = [
        (step, values["evaluate/held/step"], values["evaluate/held/version"])
        for step, values in tracker.reports
        if values
    ]
    assert measured == [(5, 2.0, 2.0), (6, 6.0, 6.0)]
    versions = [set(sample.versions[sample.prompt_length :]) for sample in tracker.records]
    assert versions == [{2}] * 4 + [{6}] * 4


class Dying:
    """Lends engines that die at once."""

    def __init__(self) -> None:
        self.lent = 0

    @asynccontextmanager
    async def lease(self, count: int) -> AsyncIterator[RolloutEngine]:
        self.lent += 1
        engine = SimulatedFleet(FleetSettings(), lambda request: 1)
        await engine.close()
        yield engine


def test_an_evaluation_whose_replicas_die_one_after_the_other_is_left_out() -> None:
    """O5, F5: they are fenced and counted; training goes on while enough others live."""

    async def main() -> int:
        lessor, engine = Dying(), SimulatedFleet(FleetSettings(), lambda request: 1)
        evaluator = Evaluator(
            SimulatedPrompts(2),
            player(engine),
            engine,
            samples=1,
            beside=Beside(lessor=lessor, player=player),
        )
        assert await evaluator.run_beside() is None
        return lessor.lent

    assert run(main()) == 2
