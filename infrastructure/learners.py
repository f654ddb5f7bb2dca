"""How the models of a run are made and put together for learning: see `parts` for the others."""

from __future__ import annotations

from collections.abc import Sequence

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Policy
from hexpo.application.learning import POLICY, Learner, LearningSettings, Recipe, Role
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.training import TrainingEngine
from hexpo.application.residency import Residency
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.estimators import Estimator
from hexpo.domain.moving import Moving
from hexpo.domain.objective import Objective
from hexpo.infrastructure import find
from hexpo.infrastructure.config.algorithm import critic_objective, updates
from hexpo.infrastructure.config.correction import shaping_of
from hexpo.infrastructure.config.load import refuse
from hexpo.infrastructure.config.schema import (
    FurtherModel,
    ModelRole,
    RunConfig,
    further_model,
)
from hexpo.infrastructure.config.structure import structure
from hexpo.infrastructure.opened import Opened
from hexpo.infrastructure.parts import make


def columns_read(
    objective: Objective, estimators: Sequence[Estimator], choices: Sequence[Estimator]
) -> frozenset[str]:
    """Token columns that anything in the run reads."""
    made = (*estimators, *choices)
    return objective.token_columns.union(*(one.needs.tokens for one in made))


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
) -> Scorer | None:
    """A frozen model that says how likely it finds the sampled ids; None where nothing asks.

    Raises: ConfigurationError: its ids do not mean the same as the policy's (S7).
    """
    model = further_model(config, ModelRole.TEACHER)
    if model is None or "teacher" not in columns:
        return None
    theirs: Tokenizer = make("tokenizers", "transformers", {}, reference=model.path)
    if theirs.identity != tokenizer.identity:
        raise ConfigurationError(
            f"the teacher {model.path} has another tokenizer (or chat template) than the policy"
            f" {config.model.path}: it cannot score the policy's ids. Choose a teacher of the same"
            " family, and give both folders the same tokenizer files"
        )
    module = find.adapter("training", model.backend)
    of, problems = structure(model.options, module.Config, at="models options")
    if of is None:
        raise refuse(problems)
    teacher: Scorer = module.build_frozen(
        of,
        policy=_load(config, model, platform),
        store=store,
        temperature=config.rollout.temperature,
        column="teacher",
    )
    return teacher


def _load(config: RunConfig, model: FurtherModel, platform: Platform) -> Policy:
    return load_policy(
        model.path or config.model.path,
        precision=model.precision or config.model.precision,
        device=platform.device,
    )


def make_recipe(
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
    if "reference" in columns:
        scorers["reference"] = engine.view("reference")
    if critic is not None:
        scorers["value"] = critic
    if teacher is not None:
        scorers["teacher"] = teacher
    return Recipe(estimators=estimators, choices=choices, scorers=scorers)


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
        updates=config.training.updates_per_batch,
        passes=config.training.epochs_per_batch,
        mask_cut=config.algorithm.mask_cut,
        components=tuple(recipe.estimators[-1].options.get("components", ())),
        shaping=shaping_of(config),
    )
    roles = {POLICY: Role(engine=engine, objective=objective)}
    model = further_model(config, ModelRole.CRITIC)
    if critic is not None and model is not None:
        roles[model.role.value] = Role(engine=critic, objective=critic_objective(model))
    return Learner(
        settings, roles=roles, store=store, recipe=recipe, moving=moving, residency=residency
    )
