"""Composes the loop's own use cases with simulated engines, and runs them in virtual time."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.adapters.simulated.lengths import Lengths
from hexpo.adapters.simulated.timed import TimedTraining
from hexpo.adapters.simulated.world import SimulatedReward
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.transfer.shared import SharedTransfer
from hexpo.application.agents import SingleTurn
from hexpo.application.continuing import OnUpdate
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.learning import POLICY, Learner, LearningSettings, Recipe, Role
from hexpo.application.ports.checkpoints import Checkpoint
from hexpo.application.residency import Mover, Residency
from hexpo.application.rollouts import Rollouts
from hexpo.application.schedule import Schedule
from hexpo.application.train import Trainer
from hexpo.application.turns import Rule
from hexpo.domain.advantages.catalogue import estimator
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import Order, Plan, open_gate, plan, window_of
from hexpo.domain.schedule.residency import Part, Resident
from hexpo.domain.schedule.switching import should_train
from hexpo.domain.trajectory import Message
from hexpo.infrastructure.forecast.measuring import Forecast, TimedPrompts, Watcher

_MOST_IDS = 64
"""Ids of the longest answer: enough to say which version sampled which part of it."""
_ANY_AGE = 1 << 30


@attrs.frozen(kw_only=True)
class Workload:
    """What is trained, on whatever devices."""

    groups: int
    """Prompts of a publication."""
    samples: int
    """Answers a prompt."""
    lengths: Lengths
    updates: int = 1
    """Optimizer steps of a publication."""
    prompt_tokens: int = 0
    grade_seconds: float = 0.0


@attrs.frozen(kw_only=True)
class Costs:
    """What it costs on the devices that are there."""

    replicas: int
    rollout: RolloutSpeed
    training: TrainingCost
    load_seconds: float = 0.0
    """Between a pause and the moment when every replica has the new weights."""
    switch_seconds: float | None = None
    """From generating to training and back, where both take turns on the same devices."""


@attrs.frozen(kw_only=True)
class Choice:
    """What a user may choose."""

    max_staleness: float = 0.0
    order: Order = Order.SUBMISSION
    window: int | None = None
    on_update: OnUpdate = OnUpdate.KEEP
    parts: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """A batch is trained in so many parts, each as soon as its groups are there."""
    old_pass: bool = False
    """Score the batch before its first optimizer step (`proximal: stored`)."""
    rule: Rule = should_train
    """When shared devices stop generating."""
    drops_stale: bool = True
    """False: order of completion trains whatever is finished, however old: no setting of this
    library, for a comparison with systems that bound only what is in flight."""

    def plan(self, groups: int) -> Plan:
        """The gate's numbers."""
        window = window_of(self.order, window=self.window)
        numbers = plan(groups=groups, max_staleness=self.max_staleness, window=window)
        return numbers if self.drops_stale else attrs.evolve(numbers, max_age=_ANY_AGE)


class _Nowhere:
    """A checkpoint store that keeps nothing."""

    @asynccontextmanager
    async def write(self, step: int) -> AsyncIterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)

    async def steps(self) -> list[int]:
        return []

    async def latest(self) -> Checkpoint | None:
        return None


class _OneId:
    """A tokenizer for prompts that are only counted."""

    identity, stop_ids, vocabulary = "forecast", (0,), 2

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (1,)

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def save(self, folder: Path) -> None:
        """Nothing to save."""


def forecast(
    workload: Workload,
    costs: Costs,
    choice: Choice,
    *,
    steps: int = 20,
    warmup: int = 4,
    seed: int = 0,
) -> Forecast:
    """Play a run in virtual time and measure its steps after the first `warmup` ones.

    Raises: WrongValue: a window that cannot keep the staleness.
    """
    return run(_play(workload, costs, choice, steps=steps + warmup, warmup=warmup, seed=seed))


def _residency(costs: Costs) -> Residency:
    """Both sides on the same devices, where a switch has a cost: a quarter of it each time that
    one of them goes or comes."""
    if costs.switch_seconds is None:
        return Residency()

    async def move() -> None:
        await asyncio.sleep((costs.switch_seconds or 0.0) / 4)

    residents = (
        Resident(name="rollout", part=Part.ROLLOUT, group="all"),
        Resident(name=POLICY, part=Part.POLICY, group="all"),
    )
    mover = Mover(out=move, into=move)
    return Residency(residents, {"rollout": mover, POLICY: mover})


async def _play(
    workload: Workload, costs: Costs, choice: Choice, *, steps: int, warmup: int, seed: int
) -> Forecast:
    grain = max(1, -(-workload.lengths.longest // _MOST_IDS))
    fleet = SimulatedFleet(
        FleetSettings(
            replicas=costs.replicas,
            speed=costs.rollout,
            load_seconds=costs.load_seconds,
            grain=grain,
            prompt_tokens=workload.prompt_tokens,
        ),
        workload.lengths,
    )
    store = MemoryRowStore()
    training = TimedTraining(
        store, costs.training, grain=grain, prompt_tokens=workload.prompt_tokens
    )
    prompts = TimedPrompts(1 << 30)
    watcher = Watcher(fleet, training, prompts)
    numbers = choice.plan(workload.groups)
    agent = SingleTurn(
        rollout=fleet,
        tokenizer=_OneId(),
        sampling=Sampling(max_new_tokens=-(-workload.lengths.longest // grain)),
        seed=seed,
    )
    player = Player(
        agent,
        SimulatedReward(seconds=workload.grade_seconds),
        policy=RetryPolicy(deadline_seconds=1e9),
        give_up_after=3,
    )
    trainer = Trainer(
        Schedule(
            steps=steps,
            on_update=choice.on_update,
            parts=choice.parts,
        ),
        rollouts=Rollouts(prompts, player, open_gate(numbers), samples=workload.samples),
        learner=_learner(workload, choice, training, store),
        rollout=fleet,
        transfer=SharedTransfer(fleet),
        checkpoints=_Nowhere(),
        tracker=watcher,
        residency=_residency(costs),
        rule=choice.rule,
    )
    await trainer.run()
    return watcher.forecast(warmup=warmup, groups=numbers.groups, capacity=numbers.capacity)


def _learner(
    workload: Workload, choice: Choice, training: TimedTraining, store: MemoryRowStore
) -> Learner:
    objective = Objective(
        terms=(Term(name="policy", loss=Loss(function=ppo)),),
        proximal=Proximal.STORED if choice.old_pass else Proximal.BEHAVIOUR,
    )
    return Learner(
        LearningSettings(updates=max(1, round(workload.updates / choice.parts))),
        roles={POLICY: Role(engine=training, objective=objective)},
        store=store,
        recipe=Recipe(estimators=(estimator("grpo"),), scorers={"old": training}),
    )
