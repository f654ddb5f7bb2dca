"""The one loop, in virtual time against simulated engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.training import SimulatedTraining
from hexpo.adapters.simulated.world import (
    SimulatedPrompts,
    SimulatedReward,
    SimulatedTokenizer,
    SimulatedTracker,
)
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.transfer.shared import SharedTransfer
from hexpo.application.agents import SingleTurn
from hexpo.application.continuing import OnUpdate
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.learning import POLICY, Learner, LearningSettings, Recipe, Role
from hexpo.application.ports.checkpoints import Checkpoint
from hexpo.application.ports.rollout import Request
from hexpo.application.ports.transfer import Update
from hexpo.application.rollouts import Rollouts
from hexpo.application.schedule import RunReport, Schedule
from hexpo.application.train import Trainer
from hexpo.domain.advantages.catalogue import estimator
from hexpo.domain.errors import CheckpointError
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.objective import Loss, Objective, Term
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import Order, open_gate, plan, window_of
from hexpo.domain.trajectory import Ticket


class FolderStore:
    """Checkpoints as plain folders: the loop's side only; atomicity is the adapter's test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def write(self, step: int) -> Any:
        folder = self._folder / str(step)
        folder.mkdir(parents=True)
        yield folder

    async def steps(self) -> list[int]:
        return sorted(int(path.name) for path in self._folder.glob("*"))

    async def latest(self) -> Checkpoint | None:
        steps = await self.steps()
        return Checkpoint(steps[-1], self._folder / str(steps[-1])) if steps else None


@attrs.frozen(kw_only=True)
class Setting:
    """One way to run the loop."""

    steps: int = 5
    groups: int = 2
    samples: int = 2
    staleness: float = 0.0
    order: Order = Order.SUBMISSION
    window: int | None = None
    on_update: OnUpdate = OnUpdate.KEEP
    prompts: int = 7
    save_every: int = 0
    seconds: Callable[[Request], float] = lambda request: 1.0 + request.seed % 5
    step_seconds: float = 1.0


class World:
    """A loop and everything it touched."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting, self.folder = setting, folder
        self.tracker = SimulatedTracker()

    async def build(self) -> Trainer:
        setting, store = self.setting, MemoryRowStore()
        self.engine = SimulatedTraining(store, step_seconds=setting.step_seconds)
        self.rollout = SimulatedRollout(lambda r: Script(length=3, seconds=setting.seconds(r)))
        agent = SingleTurn(
            rollout=self.rollout,
            tokenizer=SimulatedTokenizer(),
            sampling=Sampling(max_new_tokens=8),
            seed=0,
        )
        player = Player(agent, SimulatedReward(), policy=RetryPolicy(), give_up_after=3)
        window = window_of(setting.order, window=setting.window)
        numbers = plan(groups=setting.groups, max_staleness=setting.staleness, window=window)
        self.rollouts = Rollouts(
            SimulatedPrompts(setting.prompts), player, open_gate(numbers), samples=setting.samples
        )
        objective = Objective(terms=(Term(name="policy", loss=Loss(function=ppo)),))
        learner = Learner(
            LearningSettings(),
            roles={POLICY: Role(engine=self.engine, objective=objective)},
            store=store,
            recipe=Recipe(estimators=(estimator("grpo"),)),
        )
        return Trainer(
            Schedule(
                steps=setting.steps, on_update=setting.on_update, save_every=setting.save_every
            ),
            rollouts=self.rollouts,
            learner=learner,
            rollout=self.rollout,
            transfer=SharedTransfer(self.rollout),
            checkpoints=cast(Any, FolderStore(self.folder)),
            tracker=self.tracker,
        )

    async def run(self, stop_after: float | None = None) -> RunReport:
        trainer = await self.build()
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, trainer.stop)
        return await trainer.run()

    async def crash(self, after: float) -> None:
        trainer = await self.build()
        run = asyncio.create_task(trainer.run())
        await asyncio.sleep(after)
        run.cancel()  # nothing is saved on the way out
        await asyncio.wait([run])

    @property
    def groups(self) -> list[list[int]]:
        """Groups trained by each optimizer step."""
        samples = self.setting.samples
        return [sorted({row // samples for row in rows}) for rows in self.engine.trained]

    @property
    def ages(self) -> list[int]:
        """For every trained token: version at use minus version that sampled it."""
        return [
            sample.step - 1 - version
            for sample in self.tracker.records
            for version in sample.versions[sample.prompt_length :]
        ]


def simulate(setting: Setting, folder: Path, **options: Any) -> tuple[World, RunReport]:
    world = World(setting, folder)
    return world, run(world.run(**options))


def test_on_policy_training_takes_prompts_in_order_and_every_token_is_fresh(tmp_path: Path) -> None:
    """F1 with K = 0: it makes progress, and no token is aged."""
    world, report = simulate(Setting(steps=20), tmp_path)
    assert report.finished
    assert report.step == 20
    assert world.groups == [[2 * step, 2 * step + 1] for step in range(20)]
    assert set(world.ages) == {0}


def test_one_version_of_staleness_overlaps_rollout_and_training(tmp_path: Path) -> None:
    """F1 with K = 1: tokens are at most one version old, and the run is faster."""

    async def timed(world: World) -> float:
        await world.run()
        return asyncio.get_running_loop().time()

    setting = Setting(steps=20, step_seconds=5.0, seconds=lambda request: 5.0)
    fresh = run(timed(World(setting, tmp_path / "0")))
    overlapped = World(attrs.evolve(setting, staleness=1.0), tmp_path / "1")
    assert run(timed(overlapped)) < 0.6 * fresh
    assert max(overlapped.ages) == 1


@settings(max_examples=60, deadline=None)
@given(
    staleness=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    order=st.sampled_from([Order.SUBMISSION, Order.COMPLETION]),
    on_update=st.sampled_from(list(OnUpdate)),
    groups=st.integers(1, 4),
    spread=st.integers(1, 40),
)
def test_no_schedule_ages_a_token_beyond_the_bound_or_loses_a_prompt(
    tmp_path_factory: pytest.TempPathFactory,
    staleness: float,
    order: Order,
    on_update: OnUpdate,
    groups: int,
    spread: int,
) -> None:
    """F1, F2: for any lengths, order and kind of update."""
    setting = Setting(
        steps=6,
        groups=groups,
        staleness=staleness,
        order=order,
        on_update=on_update,
        seconds=lambda request: 0.5 + request.seed % spread,
    )
    world, report = simulate(setting, tmp_path_factory.mktemp("run"))
    assert report.finished
    assert max(world.ages) <= -(-staleness // 1)
    trained = Counter(group for step in world.groups for group in step)
    assert set(trained.values()) == {1}
    assert world.rollouts.gate.ledger.balanced
    assert sum(trained.values()) == 6 * groups


def test_staleness_zero_equals_a_plain_sequential_loop(tmp_path: Path) -> None:
    """The oracle of on-policy training: generate all, grade all, train, publish."""
    setting = Setting(steps=6)
    world, _ = simulate(setting, tmp_path)

    async def sequential() -> list[list[tuple[int, ...]]]:
        source, tokenizer = SimulatedPrompts(setting.prompts), SimulatedTokenizer()
        engine = SimulatedRollout(lambda request: Script(length=3))
        agent = SingleTurn(
            rollout=engine, tokenizer=tokenizer, sampling=Sampling(max_new_tokens=8), seed=0
        )
        player = Player(agent, SimulatedReward(), policy=RetryPolicy(), give_up_after=3)
        steps = []
        for step in range(setting.steps):
            batch = []
            for place in range(setting.groups):
                number = step * setting.groups + place
                ticket = Ticket(
                    number=number, prompt=source.draw(), version=step, samples=setting.samples
                )
                group = await player.play(ticket)
                batch += [tuple(row.trajectory.tokens.tolist()) for row in group.rows]
            await engine.load_weights(Update(version=step + 1))
            steps.append(batch)
        return steps

    records = [
        [r.tokens for r in world.tracker.records if r.step == s + 1] for s in range(setting.steps)
    ]
    assert records == run(sequential())


@pytest.mark.parametrize("stop_after", [0.3, 2.0, 4.5, 9.0, 13.0])
@pytest.mark.parametrize("staleness", [0.0, 1.0, 2.0])
def test_an_interrupted_run_goes_on_where_it_stopped_and_trains_each_prompt_once(
    tmp_path: Path, stop_after: float, staleness: float
) -> None:
    """F7, H1 and the asynchronous half of O17: prompts in flight at a save are trained once."""
    setting = Setting(steps=8, staleness=staleness)
    first, report = simulate(setting, tmp_path / "run", stop_after=stop_after)
    assert not report.finished
    second, resumed = simulate(setting, tmp_path / "run")
    assert resumed.finished
    assert second.tracker.begun == [report.step]
    both = [group for step in second.groups for group in step]
    assert both == sorted(set(both))
    assert len(both) == 8 * setting.groups
    assert first.groups == second.groups[: len(first.groups)]
    prompts = [r.prompt_id for r in first.tracker.records + second.tracker.records]
    straight, _ = simulate(setting, tmp_path / "straight")
    assert prompts == [r.prompt_id for r in straight.tracker.records]


def test_a_run_that_is_resumed_after_its_end_does_nothing(tmp_path: Path) -> None:
    """H5: resuming twice is idempotent."""
    setting = Setting(steps=3)
    simulate(setting, tmp_path)
    world, report = simulate(setting, tmp_path)
    assert report.finished
    assert report.history == []
    assert world.tracker.records == []


@settings(max_examples=20, deadline=None)
@given(
    after=st.floats(0.1, 40.0), every=st.integers(1, 3), staleness=st.sampled_from([0.0, 1.0, 1.5])
)
def test_after_a_crash_at_any_moment_every_prompt_trains_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, after: float, every: int, staleness: float
) -> None:
    """H1, F2: the resumed run equals the one that never crashed."""
    setting = Setting(steps=8, staleness=staleness, save_every=every)
    folder = tmp_path_factory.mktemp("run")
    run(World(setting, folder / "crashed").crash(after))
    resumed, report = simulate(setting, folder / "crashed")
    straight, _ = simulate(setting, folder / "straight")
    assert report.finished
    assert resumed.groups == straight.groups
    trained = [group for step in resumed.groups for group in step]
    assert trained == sorted(set(trained))
    # Only what follows the crash can be compared by its tokens; on-policy it is bit for bit.
    if staleness == 0:
        last = [r.tokens for r in straight.tracker.records][-len(resumed.tracker.records) :]
        assert [r.tokens for r in resumed.tracker.records] == last[-len(resumed.tracker.records) :]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """H3, H5: only the last one is waited for; one that fails ends the run, as it was raised."""

    async def lasts(name: str, seconds: float, *, fails: bool = False) -> float:
        world = World(Setting(steps=6, save_every=1), tmp_path / name)
        trainer = await world.build()

        async def saved() -> None:
            await asyncio.sleep(seconds)
            if fails:
                raise CheckpointError("the disk is full")

        world.engine.saved = saved  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        await trainer.run()
        return asyncio.get_running_loop().time() - began

    at_once = run(lasts("at once", 0.0))
    assert run(lasts("aside", 0.75)) == pytest.approx(at_once + 0.75)
    with pytest.raises(CheckpointError, match="the disk is full"):
        run(lasts("full", 0.75, fails=True))
