"""Teachers that a rollout engine serves, each in a process of its own.

Such an engine's adapter has `SERVE`, the entry of its process, `ServedScorer`, and
`cannot_teach(config, *, temperature, longest, wide)`, which says before anything starts why an
engine of these settings cannot score a run's answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from hexpo.domain.errors import HexpoError
from hexpo.infrastructure.config.choices import ModelRole
from hexpo.infrastructure.config.model import shape_of
from hexpo.infrastructure.config.schema import FurtherModel, RunConfig
from hexpo.infrastructure.config.structure import Problem, structure
from hexpo.infrastructure.find import adapter, names
from hexpo.infrastructure.technologies import require


def is_served(model: FurtherModel) -> bool:
    """Whether an engine answers for it; else a training backend runs it beside the policy."""
    if model.role is not ModelRole.TEACHER or model.backend not in names("rollout"):
        return False
    return hasattr(adapter("rollout", model.backend), "SERVE")


def port_of(model: FurtherModel) -> str:
    """The port whose adapter runs it."""
    return "rollout" if is_served(model) else "training"


def problems(config: RunConfig, *, wide: bool) -> Iterator[Problem]:
    """What the engines would not do. Args: wide: likeliest ids are asked for."""
    for place, model in enumerate(config.models):
        if is_served(model):
            key = f"models[{place}]"
            yield from _missing(model, key)
            yield from _unable(config, model, key, wide=wide)
            yield from _too_small(config, model, key)


def _missing(model: FurtherModel, key: str) -> Iterator[Problem]:
    if model.options.get("python"):  # installed in an environment of its own
        return
    try:
        require(f"rollout/{model.backend}")
    except HexpoError as error:
        yield Problem(f"{key}.backend", str(error))


def _unable(config: RunConfig, model: FurtherModel, key: str, *, wide: bool) -> Iterator[Problem]:
    module = adapter("rollout", model.backend)
    settings, _ = structure(model.options, module.Config)
    if settings is None:
        return  # listed elsewhere
    reasons = module.cannot_teach(
        settings, temperature=config.rollout.temperature, longest=_longest(config), wide=wide
    )
    for option, reason in reasons.items():
        yield Problem(f"{key}.options.{option}" if option else f"{key}.backend", reason)


def _too_small(config: RunConfig, model: FurtherModel, key: str) -> Iterator[Problem]:
    """It reads every id that the policy samples, and an answer of full length."""
    try:
        theirs, ours = shape_of(str(model.path)), shape_of(config.model.path)
    except HexpoError:
        return  # listed elsewhere
    if theirs.vocabulary and ours.vocabulary and theirs.vocabulary < ours.vocabulary:
        yield Problem(
            f"{key}.path",
            f"{model.path} has {theirs.vocabulary} ids and the policy {ours.vocabulary}: it cannot"
            " read all that are sampled; choose a teacher of the same family",
        )
    if theirs.context is not None and theirs.context <= _longest(config):
        yield Problem(
            f"{key}.path",
            f"{model.path} reads {theirs.context} tokens, and scoring {_longest(config)} of prompt"
            f" and answer takes room for one more; use rollout.max_new_tokens="
            f"{max(1, theirs.context - 1 - config.data.max_prompt_tokens)} or less",
        )


def _longest(config: RunConfig) -> int:
    return config.data.max_prompt_tokens + config.rollout.max_new_tokens
