"""Models beside the policy, and everything that only has a meaning with one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hexpo.domain.correction.resampling import resampled
from hexpo.domain.correction.weights import stored
from hexpo.domain.distillation.teachers import SPOKEN
from hexpo.domain.errors import HexpoError
from hexpo.domain.shaping.groups import Flat
from hexpo.infrastructure.config import served, teachers
from hexpo.infrastructure.config.algorithm import (
    critic_objective,
    estimators_of,
    objective_of,
)
from hexpo.infrastructure.config.choices import KLPlace, ModelRole
from hexpo.infrastructure.config.filtering import filtering_of
from hexpo.infrastructure.config.model import shape_of
from hexpo.infrastructure.config.moving import moving_of
from hexpo.infrastructure.config.schema import FurtherModel, RunConfig
from hexpo.infrastructure.config.structure import Problem, structure
from hexpo.infrastructure.find import config_type


def further_models(config: RunConfig) -> Iterator[Problem]:
    """Each has a role of its own, something that reads it, and options that its backend takes."""
    if config.training.options.get("value_head"):
        yield Problem(
            "training.options.value_head",
            "the policy has a distribution, not a value: remove it, and add a critic to models",
        )
    yield from teachers.problems(config, objective_of(config))
    times = Counter(model.role for model in config.models)
    for place, model in enumerate(config.models):
        key = f"models[{place}]"
        if times[model.role] > 1 and model.role is not ModelRole.TEACHER:
            yield Problem(f"{key}.role", f"{model.role.value} stands {times[model.role]} times")
        if model.role is ModelRole.TEACHER and model.path is None:
            yield Problem(
                f"{key}.path", "a teacher is another model than the policy: give its path"
            )
        if model.role not in _read_roles(config):
            yield Problem(
                f"{key}.role",
                f"nothing in algorithm reads a {model.role.value}; remove the model, or choose"
                " something that does (see hexpo algorithms)",
            )
        yield from _files(model, key)
        yield from _options(model, key)


def _files(model: FurtherModel, key: str) -> Iterator[Problem]:
    """Its model is there."""
    if model.path is not None:
        try:
            shape_of(model.path)
        except HexpoError as error:
            yield Problem(f"{key}.path", str(error))


def _options(model: FurtherModel, key: str) -> Iterator[Problem]:
    try:
        of = config_type(served.port_of(model), model.backend)
    except HexpoError as error:
        yield Problem(f"{key}.backend", str(error))
        return
    if of is not None:
        yield from structure(model.options, of, at=f"{key}.options")[1]
    if model.role is ModelRole.CRITIC:
        try:
            critic_objective(model)
        except HexpoError as error:
            yield Problem(f"{key}.loss", str(error))


def _read_roles(config: RunConfig) -> set[ModelRole]:
    made = estimators_of(config)
    tokens = objective_of(config).token_columns.union(*(one.needs.tokens for one in made))
    columns = {"value": ModelRole.CRITIC, **dict.fromkeys(SPOKEN, ModelRole.TEACHER)}
    return {role for name, role in columns.items() if name in tokens}


def one_correction(config: RunConfig) -> Iterator[Problem]:
    """Weights that are stored have one column."""
    for name in (stored.__name__, resampled.__name__):
        times = sum(one.name == name for one in config.algorithm.correction)
        if times > 1:
            yield Problem("algorithm.correction", f"{name} stands {times} times; use it once")


def sequence_advantages(config: RunConfig) -> Iterator[Problem]:
    """A loss with one number a row gets one advantage a row."""
    reads = "advantage" in objective_of(config).sequence_columns
    if reads and estimators_of(config)[-1].per_token:
        yield Problem(
            "algorithm.loss.name",
            f"{config.algorithm.loss.name} takes one advantage a row, and"
            f" {config.algorithm.advantage.name} (with its KL in the reward, if any) makes one a"
            " token; choose gspo_token or another loss, or an estimator of outcomes",
        )


def components(config: RunConfig) -> Iterator[Problem]:
    """Reward components are named where an estimator reads them."""
    made = estimators_of(config)[-1]
    if "components" in made.needs.sequences and not made.options.get("components"):
        yield Problem(
            "algorithm.advantage.options.components",
            f"{config.algorithm.advantage.name} adds up reward components: name them, as the"
            " grader does, such as [correct, format]",
        )


def controllers(config: RunConfig) -> Iterator[Problem]:
    """A controller has a coefficient to move."""
    moving = moving_of(config)
    if moving.kl is not None and config.algorithm.kl.where is KLPlace.NONE:
        yield Problem(
            "algorithm.controllers", "adaptive_kl has no KL to move; set algorithm.kl.where"
        )


def zero_variance(config: RunConfig) -> Iterator[Problem]:
    """Equal scores can only be found in a group, and options are known."""
    key, chosen = "algorithm.zero_variance", config.algorithm.zero_variance
    _, problems = filtering_of(config)
    yield from problems
    if chosen.treatment is not Flat.KEEP and config.rollout.samples < 2:
        yield Problem(
            f"{key}.treatment",
            f"{chosen.treatment.value} compares the scores of a prompt's answers, and"
            f" rollout.samples is {config.rollout.samples}; use keep, or more samples",
        )
