"""How each part of a run is made from its configuration. The container says which needs which."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.trackers.wire import FanOut
from hexpo.application.agents import SingleTurn
from hexpo.application.evaluate import Evaluator
from hexpo.application.filtering import filter_by_length
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.learning import Learner
from hexpo.application.ports.agent import AgentLoop
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.reward import RewardFunction
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.tracker import Tracker
from hexpo.application.ports.training import TrainingEngine
from hexpo.application.ports.transfer import WeightTransfer
from hexpo.application.rollouts import Rollouts, unscored
from hexpo.application.train import Schedule, Trainer
from hexpo.domain.estimators import Estimator
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import open_gate
from hexpo.infrastructure import find
from hexpo.infrastructure.config.algorithm import admission_plan, updates
from hexpo.infrastructure.config.capabilities import rollout_problems
from hexpo.infrastructure.config.filtering import judge_of
from hexpo.infrastructure.config.load import refuse
from hexpo.infrastructure.config.schema import (
    Adapter,
    RunConfig,
)
from hexpo.infrastructure.config.sharing import platform_options, transfer_of
from hexpo.infrastructure.config.structure import structure
from hexpo.infrastructure.opened import Opened
from hexpo.infrastructure.runs import CHECKPOINTS

log = logging.getLogger(__name__)


def make(port: str, kind: str, options: Mapping[str, Any], **runtime: Any) -> Any:
    """Build one adapter: its `Config` from `options`, and what only a run knows by name.

    Raises: ConfigurationError: the options do not fit. Whatever the adapter's `build` raises.
    """
    module = find.adapter(port, kind)
    of = find.config_type(port, kind)
    if of is None:
        return module.build(**runtime)
    config, problems = structure(options, of, at=f"{port}/{kind} options")
    if config is None:
        raise refuse(problems)
    return module.build(config, **runtime)


def make_platform(config: RunConfig) -> Platform:
    """The hardware, its running process prepared."""
    platform: Platform = make("platform", config.platform.kind, platform_options(config))
    platform.prepare()
    return platform


def make_policy(config: RunConfig, platform: Platform) -> Policy:
    """The model that trainer and rollout share."""
    return load_policy(config.model.path, precision=config.model.precision, device=platform.device)


def make_tokenizer(config: RunConfig) -> Tokenizer:
    """The model's own tokenizer."""
    tokenizer: Tokenizer = make("tokenizers", "transformers", {}, reference=config.model.path)
    return tokenizer


def make_source(config: RunConfig, chosen: Adapter | None) -> PromptSource | None:
    """Prompts as they are in the data set; None where none are configured."""
    if chosen is None:
        return None
    source: PromptSource = make("prompts", chosen.kind, chosen.options, seed=config.run.seed)
    return source


def fit_source(
    config: RunConfig, source: PromptSource | None, tokenizer: Tokenizer
) -> PromptSource | None:
    """The prompts that are short enough; says how many were left out."""
    if source is None:
        return None
    filtered = filter_by_length(
        source, tokenizer, limit=config.data.max_prompt_tokens, on_long=config.data.on_long
    )
    if filtered.dropped:
        log.warning(
            "%d of %d prompts are longer than data.max_prompt_tokens = %d and are left out,"
            " first %s",
            len(filtered.dropped),
            len(filtered.dropped) + len(filtered.kept),
            config.data.max_prompt_tokens,
            filtered.dropped[0].id,
        )
    return filtered.kept


def make_reward(config: RunConfig, opened: Opened) -> RewardFunction:
    """The grader; its processes start with the first answer."""
    reward: RewardFunction = make("rewards", config.reward.kind, config.reward.options)
    return opened.keep(reward)


def make_store(config: RunConfig) -> RowStore:
    """Rows in this process's memory; in shared memory where other processes read them."""
    kind = "memory" if config.training.ranks == 1 else "mapped"
    store: RowStore = make("stores", kind, {})
    return store


def make_rollout(
    config: RunConfig,
    policy: Callable[[], Policy],
    tokenizer: Tokenizer,
    opened: Opened,
    replicas: Mapping[str, RolloutEngine],
) -> RolloutEngine:
    """The engine that generates: in this process, or all replicas as one.

    Args: policy: makes or gives the trainer's own; not called where engines have copies.
    """
    if replicas:
        return opened.keep(as_one(replicas))
    rollout: RolloutEngine = make(
        "rollout",
        config.rollout.engine,
        config.rollout.options,
        policy=policy(),
        tokenizer=tokenizer,
    )
    return opened.keep(rollout)


def as_one(replicas: Mapping[str, RolloutEngine]) -> RolloutEngine:
    """Several engines behind one port."""
    (only,) = replicas.values()
    return only


def training_options(config: RunConfig, columns: frozenset[str]) -> Mapping[str, Any]:
    """The backend's options; it keeps the model before training if a column needs it."""
    options = config.training.options
    of = find.config_type("training", config.training.backend)
    if "reference" in columns and of is not None and "reference" in attrs.fields_dict(of):
        return {**options, "reference": True}  # the objective says who is needed, not the user
    return options


def make_training(
    config: RunConfig,
    policy: Callable[[], Policy],
    store: RowStore,
    tokenizer: Tokenizer,
    platform: Platform,
    columns: frozenset[str],
    opened: Opened,
    ranks: TrainingEngine | None,
) -> TrainingEngine:
    """The engine that learns: in this process, or over its ranks."""
    if ranks is not None:
        return opened.keep(ranks)
    kind = transfer_of(config).kind
    sending = {} if kind == "shared" else {"send": find.adapter("transfer", kind).build_sender()}
    training: TrainingEngine = make(
        "training",
        config.training.backend,
        training_options(config, columns),
        policy=policy(),
        store=store,
        tokenizer=tokenizer,
        temperature=config.rollout.temperature,
        total_steps=updates(config) * config.run.steps,
        seed=config.run.seed,
        release=platform.release,
        **sending,
    )
    return opened.keep(training)


def make_transfer(
    config: RunConfig,
    training: TrainingEngine,
    rollout: RolloutEngine,
    replicas: Mapping[str, RolloutEngine],
    opened: Opened,
) -> WeightTransfer:
    """From the trainer to whoever generates."""
    kind = transfer_of(config).kind
    if kind == "shared":
        transfer: WeightTransfer = make("transfer", kind, {}, rollout=rollout)
        return transfer
    return opened.keep(make("transfer", kind, {}, training=training, replicas=replicas))


def make_checkpoints(config: RunConfig, folder: Path) -> CheckpointStore:
    """Saves of this run."""
    store: CheckpointStore = make(
        "checkpoints", config.checkpoint.kind, config.checkpoint.options,
        folder=folder / CHECKPOINTS,
    )  # fmt: skip
    return store


def make_tracker(config: RunConfig, folder: Path, console: object) -> Tracker:
    """All trackers as one."""
    return FanOut(
        [
            make("trackers", one.kind, one.options, folder=folder, console=console)
            for one in config.trackers
        ]
    )


def make_agent(
    config: RunConfig, rollout: RolloutEngine, tokenizer: Tokenizer, sampling: Sampling, stream: str
) -> AgentLoop:
    """How a prompt is played: one question, one answer."""
    return SingleTurn(
        rollout=rollout,
        tokenizer=tokenizer,
        sampling=sampling,
        seed=config.run.seed,
        stream=stream,
    )


def make_player(
    config: RunConfig, agent: AgentLoop, reward: RewardFunction, greedy: AgentLoop | None
) -> Player:
    """Plays and grades tickets."""
    policy = RetryPolicy(
        retries=config.rollout.retries, deadline_seconds=config.rollout.deadline_seconds
    )
    return Player(agent, reward, policy=policy, give_up_after=3, greedy=greedy)


def make_greedy_agent(
    config: RunConfig,
    rollout: RolloutEngine,
    tokenizer: Tokenizer,
    sampling: Sampling,
    estimators: Sequence[Estimator],
) -> AgentLoop | None:
    """Plays each prompt once at temperature 0, where an estimator compares with that."""
    if not any("greedy" in one.needs.sequences for one in estimators):
        return None
    best = attrs.evolve(sampling, temperature=0.0)
    return make_agent(config, rollout, tokenizer, best, "greedy")


def make_rollouts(config: RunConfig, source: PromptSource, player: Player) -> Rollouts:
    """Keeps finished groups coming."""
    judge, budget = judge_of(config)
    return Rollouts(
        source,
        player,
        open_gate(admission_plan(config)),
        samples=config.rollout.samples,
        judge=judge or unscored,
        filter_budget=budget,
    )


def make_evaluator(
    config: RunConfig, source: PromptSource | None, player: Player, rollout: RolloutEngine
) -> Evaluator | None:
    """Measures held-out prompts; None where there are none."""
    if source is None:
        return None
    chosen = config.evaluation
    return Evaluator(source, player, rollout, samples=chosen.samples)


def make_trainer(
    config: RunConfig,
    *,
    rollouts: Rollouts,
    learner: Learner,
    rollout: RolloutEngine,
    transfer: WeightTransfer,
    checkpoints: CheckpointStore,
    tracker: Tracker,
    evaluator: Evaluator | None,
) -> Trainer:
    """The loop. Raises ConfigurationError: the rollout engine cannot do what is asked of it."""
    if unable := list(rollout_problems(config, rollout.capabilities)):
        raise refuse(unable)
    schedule = Schedule(
        steps=config.run.steps,
        on_update=config.asynchrony.on_update,
        evaluate_every=config.evaluation.every,
        evaluate_first=config.evaluation.before,
        save_every=config.checkpoint.every,
    )
    return Trainer(
        schedule,
        rollouts=rollouts,
        learner=learner,
        rollout=rollout,
        transfer=transfer,
        checkpoints=checkpoints,
        tracker=tracker,
        evaluator=evaluator,
    )
