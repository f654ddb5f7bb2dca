"""How each part of a run is made from its configuration. The container says which needs which."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.trackers.wire import FanOut
from hexpo.application.agreeing import Probe
from hexpo.application.evaluate import Beside, Evaluator
from hexpo.application.filtering import filter_by_length, first_of
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.learning import Learner
from hexpo.application.ports.agent import AgentLoop
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.reward import RewardFunction
from hexpo.application.ports.rollout import PauseMode, RolloutEngine
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.tracker import Tracker
from hexpo.application.ports.transfer import Update, WeightTransfer
from hexpo.application.replicas import Replicas
from hexpo.application.residency import Residency
from hexpo.application.rollouts import REFILLS, Rollouts, unscored
from hexpo.application.schedule import Schedule, Side
from hexpo.application.train import Trainer
from hexpo.domain.estimators import Estimator
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import open_gate
from hexpo.infrastructure import find
from hexpo.infrastructure.config.algorithm import admission_plan
from hexpo.infrastructure.config.capabilities import rollout_problems
from hexpo.infrastructure.config.filtering import curriculum_of, judge_of
from hexpo.infrastructure.config.fitting import is_fit
from hexpo.infrastructure.config.load import refuse
from hexpo.infrastructure.config.model import shape_of
from hexpo.infrastructure.config.schema import (
    Adapter,
    RunConfig,
)
from hexpo.infrastructure.config.sharing import platform_options
from hexpo.infrastructure.config.streaming import streams
from hexpo.infrastructure.config.structure import Problem, structure
from hexpo.infrastructure.opened import Opened
from hexpo.infrastructure.runs import CHECKPOINTS

log = logging.getLogger(__name__)


def configured(
    port: str, kind: str, options: Mapping[str, Any], *, at: str = ""
) -> tuple[ModuleType, Any]:
    """One adapter, and its `Config` from `options`; None where it takes none.

    Args: at: where the options stand, for messages.
    Raises: ConfigurationError: the options do not fit.
    """
    module, of = find.adapter(port, kind), find.config_type(port, kind)
    if of is None:
        return module, None
    config, problems = structure(options, of, at=at or f"{port}/{kind} options")
    if config is None:
        raise refuse(problems)
    return module, config


def make(port: str, kind: str, options: Mapping[str, Any], **runtime: Any) -> Any:
    """Build one adapter: its `Config` from `options`, and what only a run knows by name.

    Raises: ConfigurationError: the options do not fit. Whatever the adapter's `build` raises.
    """
    module, config = configured(port, kind, options)
    return module.build(**runtime) if config is None else module.build(config, **runtime)


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
    options = chosen.options
    if is_fit(config) and "needs_truth" in options:
        options = {**options, "needs_truth": False}  # nothing compares an answer with one
    source: PromptSource = make("prompts", chosen.kind, options, seed=config.run.seed)
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
            "%d of %d prompts are longer than data.max_prompt_tokens = %d and are left out (%s);"
            " data.max_prompt_tokens=%d keeps them all",
            len(filtered.dropped),
            len(filtered.dropped) + len(filtered.kept),
            config.data.max_prompt_tokens,
            first_of(filtered.dropped),
            max(row.length for row in filtered.dropped),
        )
    return filtered.kept


def make_reward(config: RunConfig, opened: Opened) -> RewardFunction:
    """The grader; its processes start with the first answer. Raises ConfigurationError: none."""
    if config.reward is None:
        raise refuse([Problem("reward.kind", "missing: nothing says what an answer is worth")])
    if config.reward.kind == "model":
        _require_its_tokenizer(config, str(config.reward.options.get("path")))
    reward: RewardFunction = make("rewards", config.reward.kind, config.reward.options)
    return opened.keep(reward)


def _require_its_tokenizer(config: RunConfig, path: str) -> None:
    """A reward model reads the policy's ids (S7). Raises ConfigurationError: they mean others."""
    theirs: Tokenizer = make("tokenizers", "transformers", {}, reference=path)
    if theirs.identity != make_tokenizer(config).identity:
        message = (
            f"{path} has another tokenizer (or chat template) than the policy {config.model.path}:"
            " it cannot score the policy's ids"
        )
        raise refuse([Problem("reward.options.path", message)])


def make_store(config: RunConfig) -> RowStore:
    """Rows in this process's memory; in shared memory where other processes of this machine read
    them; served where other machines may."""
    is_shared = config.training.ranks > 1
    is_near = config.cluster.kind == "local"
    store: RowStore = make("stores", "mapped" if is_shared and is_near else "memory", {})
    if is_shared and not is_near:
        store = make("stores", "served", {}, rows=store)
    return store


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
    """How a prompt is played."""
    chosen = config.rollout.agent
    agent: AgentLoop = make(
        "agents", chosen.kind, chosen.options,
        rollout=rollout, tokenizer=tokenizer, sampling=sampling, seed=config.run.seed,
        stream=stream,
    )  # fmt: skip
    return agent


def make_player(
    config: RunConfig, agent: AgentLoop, reward: RewardFunction, greedy: AgentLoop | None
) -> Player:
    """Plays and grades tickets."""
    policy = RetryPolicy(
        retries=config.rollout.retries, deadline_seconds=config.rollout.deadline_seconds
    )
    return Player(
        agent,
        reward,
        policy=policy,
        give_up_after=3,
        greedy=greedy,
        vocabulary=shape_of(config.model.path).vocabulary,
        engine="" if config.rollout.replicas else config.rollout.engine,
    )


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
    limits = admission_plan(config)
    return Rollouts(
        source,
        player,
        open_gate(limits),
        samples=config.rollout.samples,
        judge=judge or unscored,
        refill_budget=max(REFILLS, limits.groups),
        filter_budget=budget,
        curriculum=curriculum_of(config, source),
    )


def make_evaluator(
    config: RunConfig,
    source: PromptSource | None,
    player: Player,
    rollout: RolloutEngine,
    examinee: RolloutEngine,
    *,
    reward: RewardFunction,
    tokenizer: Tokenizer,
    sampling: Sampling,
) -> Evaluator | None:
    """Measures held-out prompts; None where there are none. Args: examinee: who answers."""
    if source is None:
        return None

    def on_lease(engine: RolloutEngine) -> Player:
        agent = make_agent(config, engine, tokenizer, sampling, "evaluate")
        return make_player(config, agent, reward, None)

    async def refresh() -> None:
        await examinee.pause(PauseMode.ABORT)
        await examinee.load_weights(Update(version=rollout.version))
        await examinee.resume()

    beside = None
    if isinstance(rollout, Replicas) and config.evaluation.side is Side.LEASE:
        beside = Beside(lessor=rollout, player=on_lease)
    return Evaluator(
        source,
        player,
        examinee,
        samples=config.evaluation.samples,
        beside=beside,
        refresh=None if examinee is rollout else refresh,
    )


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
    residency: Residency,
    probe: Callable[[], Probe],
) -> Trainer:
    """The loop. Raises ConfigurationError: the rollout engine cannot do what is asked of it."""
    if unable := list(rollout_problems(config, rollout.capabilities)):
        raise refuse(unable)
    schedule = Schedule(
        steps=config.run.steps,
        on_update=config.asynchrony.on_update,
        parts=config.training.updates_per_batch if streams(config) else 1,
        evaluate_every=config.evaluation.every,
        evaluate_first=config.evaluation.before,
        side=config.evaluation.side,
        probe_every=config.rollout.probe_every,
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
        residency=residency,
        probe=probe() if config.rollout.probe_every else None,
        gauges=rollout.metrics if isinstance(rollout, Replicas) else dict,
    )
