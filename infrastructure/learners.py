"""How the models of a run are made and put together for learning: see `parts` for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.rollout.wire import RemoteRollout
from hexpo.adapters.training.wire import kept_columns
from hexpo.application.learning import POLICY, Learner, LearningSettings, Recipe, Role
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.training import TrainingEngine
from hexpo.application.residency import Residency
from hexpo.application.teaching import Teacher, Teachers
from hexpo.domain.distillation.teachers import SPOKEN
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.estimators import Estimator
from hexpo.domain.losses.supervised import OBSERVATION
from hexpo.domain.moving import Moving
from hexpo.domain.objective import Objective
from hexpo.infrastructure.config.algorithm import critic_objective, updates
from hexpo.infrastructure.config.capabilities import REFERENCE
from hexpo.infrastructure.config.choices import ModelRole
from hexpo.infrastructure.config.correction import shaping_of
from hexpo.infrastructure.config.model import shape_of
from hexpo.infrastructure.config.schema import FurtherModel, RunConfig, further_model
from hexpo.infrastructure.config.served import is_served, port_of
from hexpo.infrastructure.config.streaming import streams
from hexpo.infrastructure.config.teachers import routing_of, teachers_of
from hexpo.infrastructure.find import closest
from hexpo.infrastructure.opened import Opened
from hexpo.infrastructure.parts import configured, make


def columns_read(
    objective: Objective, estimators: Sequence[Estimator], choices: Sequence[Estimator]
) -> frozenset[str]:
    """Token columns that anything in the run reads, those of the model's last step included."""
    made = (*estimators, *choices)
    read = objective.token_columns | objective.statistics
    return read.union(*(one.needs.tokens for one in made))


def make_critic(
    config: RunConfig,
    store: RowStore,
    tokenizer: Tokenizer,
    platform: Platform,
    columns: frozenset[str],
    opened: Opened,
) -> TrainingEngine | None:
    """A second engine with a value head; None where nothing reads a value."""
    model = further_model(config, ModelRole.CRITIC)
    if model is None or "value" not in columns:
        return None
    critic: TrainingEngine = make(
        "training",
        model.backend,
        {**model.options, "value_head": True},
        policy=_load(config, model, platform),
        store=store,
        tokenizer=tokenizer,
        temperature=1.0,
        total_steps=updates(config) * config.run.steps,
        seed=config.run.seed,
        release=platform.release,
    )
    return opened.keep(critic)


def make_teacher(
    config: RunConfig,
    store: RowStore,
    tokenizer: Tokenizer,
    platform: Platform,
    columns: frozenset[str],
    prompts: PromptSource,
    served: Mapping[str, RemoteRollout],
) -> Scorer | None:
    """Frozen models that say how likely they find the ids, each for its own rows; None where
    nothing asks.

    Args: served: engines of the teachers that are not run beside the policy, by name.
    Raises: ConfigurationError: ids do not mean the same as the policy's (S7), or a teacher's
        source is none of the data's (S4).
    """
    chosen = teachers_of(config)
    if not chosen or not columns & SPOKEN:
        return None
    _require_sources(chosen, prompts)
    made = {
        name: _served(config, model, store, served[name])
        if is_served(model)
        else _teacher(config, model, store, tokenizer, platform)
        for name, model in chosen.items()
    }
    return Teachers(made, store=store)


def _require_sources(chosen: Mapping[str, FurtherModel], prompts: PromptSource) -> None:
    named = {source: name for name, model in chosen.items() for source in model.sources}
    if not named:
        return
    there = {row.source for row in prompts.rows()}
    for source, name in named.items():
        if source not in there:
            raise ConfigurationError(
                f"teacher {name!r} has the source {source!r}, which no prompt of data.train has"
                f"{closest(source, sorted(there))}"
            )


def _teacher(
    config: RunConfig,
    model: FurtherModel,
    store: RowStore,
    tokenizer: Tokenizer,
    platform: Platform,
) -> Teacher:
    require_same_ids(config, model, tokenizer)
    module, of = _adapter(model)
    teacher: Teacher = module.build_frozen(
        of,
        policy=_load(config, model, platform),
        store=store,
        temperature=config.rollout.temperature,
        column="teacher",
    )
    return teacher


def _served(
    config: RunConfig, model: FurtherModel, store: RowStore, engine: RemoteRollout
) -> Teacher:
    module, of = _adapter(model)
    teacher: Teacher = module.ServedScorer(
        engine,
        store=store,
        temperature=config.rollout.temperature,
        column="teacher",
        top_k=of.top_k,
        at_once=of.slots,
        vocabulary=shape_of(config.model.path).vocabulary,
    )
    return teacher


def _adapter(model: FurtherModel) -> tuple[ModuleType, Any]:
    """Who runs the model, and its settings."""
    return configured(port_of(model), model.backend, model.options, at="models options")


def require_same_ids(config: RunConfig, model: FurtherModel, tokenizer: Tokenizer) -> None:
    """Raises ConfigurationError: a teacher has another tokenizer than the policy (S7)."""
    theirs: Tokenizer = make("tokenizers", "transformers", {}, reference=model.path)
    if theirs.identity != tokenizer.identity:
        raise ConfigurationError(
            f"the teacher {model.path} has another tokenizer (or chat template) than the policy"
            f" {config.model.path}: it cannot score the policy's ids. Choose a teacher of the same"
            " family, and give both folders the same tokenizer files"
        )


def _load(config: RunConfig, model: FurtherModel, platform: Platform) -> Policy:
    return load_policy(
        model.path or config.model.path,
        precision=model.precision or config.model.precision,
        device=platform.device,
    )


def make_recipe(
    config: RunConfig,
    engine: TrainingEngine,
    critic: TrainingEngine | None,
    teacher: Scorer | None,
    columns: frozenset[str],
    estimators: tuple[Estimator, ...],
    choices: tuple[Estimator, ...],
) -> Recipe:
    """What is made of a batch, and who provides each scored column: the reference is a view of
    the trainer."""
    scorers: dict[str, Scorer] = {"old": engine, "entropy": engine, "squares": engine}
    if columns & REFERENCE:
        scorers |= dict.fromkeys(kept_columns("reference"), engine.view("reference"))
    if critic is not None:
        scorers["value"] = critic
    routing = None
    if teacher is not None:
        scorers |= dict.fromkeys(kept_columns("teacher"), teacher)
        routing = routing_of(config)
    return Recipe(estimators=estimators, choices=choices, scorers=scorers, routing=routing)


def make_learner(
    config: RunConfig,
    engine: TrainingEngine,
    critic: TrainingEngine | None,
    store: RowStore,
    objective: Objective,
    recipe: Recipe,
    moving: Moving,
    *,
    residency: Residency,
) -> Learner:
    """Turns a batch into the next version."""
    settings = LearningSettings(
        updates=1 if streams(config) else config.training.updates_per_batch,
        passes=config.training.epochs_per_batch,
        mask_cut=config.algorithm.mask_cut,
        components=tuple(
            recipe.estimators[-1].options.get("components", ()) if recipe.estimators else ()
        ),
        shaping=shaping_of(config),
        observes=any(term.mask == OBSERVATION for term in objective.terms),
    )
    roles = {POLICY: Role(engine=engine, objective=objective)}
    model = further_model(config, ModelRole.CRITIC)
    if critic is not None and model is not None:
        roles[model.role.value] = Role(engine=critic, objective=critic_objective(model))
    return Learner(
        settings, roles=roles, store=store, recipe=recipe, moving=moving, residency=residency
    )
