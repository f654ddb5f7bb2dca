"""Runs the library's own loop under schedules and faults that seeds draw, and checks its promises.

explore(range(1000))            # raises Broken with the seed of the first run that breaks one
check(draw(17))                 # the same run again, to look at
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from hexpo.adapters.simulated.clock import Stuck
from hexpo.adapters.simulated.schedules import run_seeded
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedTokenizer, SimulatedTracker
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.transfer.shared import SharedTransfer
from hexpo.application.agents import SingleTurn
from hexpo.application.delivery import Delivery
from hexpo.application.evaluate import Beside, Evaluator
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.learning import POLICY, Learner, LearningSettings, Recipe, Role
from hexpo.application.membership import Standing
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tracker import Sample
from hexpo.application.ports.transfer import Update, WeightTransfer
from hexpo.application.rollouts import FlatJudge, Rollouts, unscored
from hexpo.application.schedule import RunReport, Schedule, Side
from hexpo.application.train import Trainer
from hexpo.domain.advantages.catalogue import estimator
from hexpo.domain.errors import EngineFailed, RewardUnavailable
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.objective import Loss, Objective, Term
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import open_gate
from hexpo.entrypoints.testing.broken import Broken, require
from hexpo.entrypoints.testing.faults import FaultyFleet, one_fleet, replicas_of
from hexpo.entrypoints.testing.fleets import WatchedReplicas
from hexpo.entrypoints.testing.promises import check_process, check_run
from hexpo.entrypoints.testing.scenarios import EVALUATED, Interruption, Scenario, draw
from hexpo.entrypoints.testing.sharing import Shared
from hexpo.entrypoints.testing.worlds import (
    Folders,
    LightLearner,
    ScenarioReward,
    WatchedRollouts,
    Witness,
)

_PATIENCE = 50_000.0
"""Virtual seconds within which any scenario ends: waits are bounded by deadlines, not by luck."""
_MANY = 10**6
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Thousands of small checkpoints are quicker in memory."""


@attrs.define(eq=False)
class World:
    """The objects of one process of a run."""

    scenario: Scenario
    rollout: FaultyFleet
    engine: Witness
    rollouts: Rollouts
    reward: ScenarioReward
    tracker: SimulatedTracker
    trainer: Trainer
    replicas: WatchedReplicas | None = None
    shared: Shared | None = None


Build = Callable[[Scenario, Folders], World]


def build(scenario: Scenario, store: Folders) -> World:
    """Everything of one process, made anew: only the checkpoints outlive it."""
    replicas = replicas_of(scenario) if scenario.fleet else None
    shared = Shared(one_fleet(scenario)) if scenario.shared else None
    rows, reward, tracker = MemoryRowStore(), ScenarioReward(scenario), SimulatedTracker()
    rollout = FaultyFleet(scenario, replicas if shared is None else shared.rollout)
    held = None if shared is None else shared.policy
    engine = Witness(rows, step_seconds=scenario.step_seconds, held=held)
    rollouts = WatchedRollouts(
        SimulatedPrompts(scenario.prompts),
        _player(scenario, rollout, reward, "train"),
        open_gate(scenario.plan),
        samples=scenario.samples,
        judge=FlatJudge() if scenario.filters else unscored,
        refill_budget=_MANY,
        filter_budget=2 if scenario.filters else 0,
    )
    rollouts.order = scenario.order
    objective = Objective(terms=(Term(name="policy", loss=Loss(function=ppo)),))
    learner = (Learner if scenario.whole else LightLearner)(
        LearningSettings(),
        roles={POLICY: Role(engine=engine, objective=objective)},
        store=rows,
        recipe=Recipe(estimators=(estimator("grpo"),)),
    )
    transfer: WeightTransfer = SharedTransfer(rollout)
    if replicas is not None:
        transfer = Delivery(transfer_once=transfer, replicas=replicas)
    trainer = Trainer(
        Schedule(
            steps=scenario.steps,
            on_update=scenario.on_update,
            parts=scenario.parts,
            evaluate_every=scenario.evaluate_every,
            evaluate_first=scenario.evaluate_every > 0,
            evaluate_last=scenario.evaluate_every > 0,
            side=scenario.side,
            save_every=scenario.save_every,
        ),
        rollouts=rollouts,
        learner=learner,
        rollout=rollout,
        transfer=transfer,
        checkpoints=store,
        tracker=tracker,
        evaluator=_evaluator(scenario, rollout, replicas),
        residency=None if shared is None else shared.residency,
        gauges=dict if replicas is None else replicas.metrics,
    )
    return World(scenario, rollout, engine, rollouts, reward, tracker, trainer, replicas, shared)


def _evaluator(
    scenario: Scenario, rollout: RolloutEngine, replicas: WatchedReplicas | None
) -> Evaluator:
    reward = ScenarioReward(attrs.evolve(scenario, ungraded=0.0))

    def player(engine: RolloutEngine) -> Player:
        return _player(scenario, engine, reward, "evaluate")

    own = one_fleet(scenario)

    async def refresh() -> None:
        await own.load_weights(Update(version=rollout.version))

    beside = None
    if replicas is not None and scenario.side is Side.LEASE:
        beside = Beside(lessor=replicas, player=player)
    apart = scenario.side is Side.TRAINER
    engine = own if apart else rollout
    return Evaluator(
        SimulatedPrompts(EVALUATED),
        player(engine),
        engine,
        samples=1,
        beside=beside,
        refresh=refresh if apart else None,
    )


def _player(
    scenario: Scenario, rollout: RolloutEngine, reward: ScenarioReward, stream: str
) -> Player:
    tokenizer = SimulatedTokenizer()
    agent = SingleTurn(
        rollout=rollout,
        tokenizer=tokenizer,
        sampling=Sampling(max_new_tokens=64),
        seed=scenario.seed,
        stream=stream,
    )
    return Player(
        agent,
        reward,
        policy=RetryPolicy(deadline_seconds=scenario.deadline_seconds),
        give_up_after=_MANY,
        vocabulary=tokenizer.vocabulary,
    )


async def _until(world: World, interruption: Interruption | None) -> RunReport | None:
    """Run to the end, or to the interruption; None where it died."""
    if world.shared is not None:
        await world.shared.rollout.start()
    run = asyncio.ensure_future(world.trainer.run())
    fate = None if world.replicas is None else asyncio.ensure_future(world.replicas.live())
    if interruption is not None:
        await asyncio.wait({run}, timeout=interruption.after)
        match interruption.kind:
            case "crash":
                run.cancel()
            case "stop":
                world.trainer.stop()
            case "engine":
                await world.rollout.close()
            case "grader":
                world.reward.is_gone = True
            case _:
                world.rollout.fail_transfer = True
    await asyncio.wait({run}, timeout=_PATIENCE)
    require(run.done(), "F4, F7: the run did not end within its bound")
    if world.replicas is not None and fate is not None:
        await _end(world.replicas, fate)
    await _require_nothing_left()
    if run.cancelled():
        return None
    return None if _may_fail(world, run.exception(), interruption) else run.result()


def _may_fail(world: World, error: BaseException | None, interruption: Interruption | None) -> bool:
    """Whether the run ended by what befell it."""
    if isinstance(error, RewardUnavailable):
        return world.reward.is_gone
    too_few = world.replicas is not None and world.replicas.had_too_few
    return isinstance(error, EngineFailed) and (interruption is not None or too_few)


async def _end(replicas: WatchedReplicas, fate: asyncio.Future[None]) -> None:
    """Nothing befalls them any more, and they are closed, hanging ones included."""
    fate.cancel()
    await asyncio.wait({fate})
    if not fate.cancelled():
        fate.result()
    leased = [name for name, one in replicas.standings.items() if one is Standing.LEASED]
    require(not leased, f"F7: {leased} were not given back")
    await replicas.close()


async def _require_nothing_left() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    require(not left, f"F7: tasks are left: {left}")


async def _live(scenario: Scenario, folder: Path, make: Build) -> list[World]:
    """All processes of a run, one after the other."""
    store, worlds = Folders(folder), list[World]()
    again = [None] if scenario.faults else []  # too many replicas may die: in the first process
    for interruption in (*scenario.interruptions, None, *again):
        world = make(attrs.evolve(scenario, faults=()) if worlds else scenario, store)
        worlds.append(world)
        report = await _until(world, interruption)
        check_process(scenario, world.tracker, world.rollout, ended_well=report is not None)
        if report is not None and report.finished:
            break
    return worlds


def _lasting(worlds: Iterable[World]) -> list[Sample]:
    """What was trained in the end: a step that a crash undid is the later process's."""
    by_step: dict[int, list[Sample]] = {}
    for world in worlds:
        records = [record for record in world.tracker.records if record.phase == "train"]
        by_step |= {step: [] for step in {record.step for record in records}}
        for record in records:
            by_step[record.step].append(record)
    return [record for step in sorted(by_step) for record in by_step[step]]


def check(scenario: Scenario, make: Build = build) -> list[World]:
    """Run a scenario and check every promise.

    Returns: the objects of its processes. Raises: Broken: names the promise and how to replay.
    """
    try:
        with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
            main = _live(scenario, Path(folder), make)
            worlds = run_seeded(main, scenario.seed, jitter=scenario.jitter)
        last = worlds[-1]
        check_run(
            scenario,
            trained=last.engine.trained,
            gate=last.rollouts.gate,
            records=_lasting(worlds),
        )
    except (Broken, Stuck) as failure:
        raise Broken(f"{failure}\nreplay: check({scenario!r})") from failure
    return worlds


def explore(seeds: Iterable[int], make: Build = build) -> int:
    """Check the scenarios of many seeds. Returns how many. Raises Broken at the first failure."""
    count = 0
    for seed in seeds:
        try:
            check(draw(seed), make)
        except Exception as failure:
            failure.add_note(f"seed {seed}: hexpo.entrypoints.testing.explorer.check(draw({seed}))")
            raise
        count += 1
    return count
