"""What the chosen adapters can do, against what the configuration asks of them.

An adapter that cannot do everything says so by a function `capabilities(config)` beside its
`build`; it is a pure answer, known before anything is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from hexpo.application.continuing import OnUpdate
from hexpo.application.ports.agent import AgentCapabilities
from hexpo.application.ports.rollout import RolloutCapabilities
from hexpo.domain.batch.schema import SCHEMA
from hexpo.domain.catalogue import Entry, find
from hexpo.domain.errors import HexpoError
from hexpo.domain.kl.catalogue import ELSEWHERE, KL_ESTIMATORS
from hexpo.domain.kl.term import Target
from hexpo.domain.objective import HEAD_STATISTICS
from hexpo.infrastructure.config import lora
from hexpo.infrastructure.config.choices import ModelRole, Placement
from hexpo.infrastructure.config.drawing import training_sampling
from hexpo.infrastructure.config.foresight import COLUMN, SERVICE, has_heads
from hexpo.infrastructure.config.options import ADAPTERS
from hexpo.infrastructure.config.schema import RunConfig, further_model
from hexpo.infrastructure.config.structure import Problem, structure
from hexpo.infrastructure.find import adapter
from hexpo.infrastructure.technologies import require

ASSEMBLED = frozenset(
    {
        "id", "group", "length", "prompt_length", "actions", "trained", "score", "scored",
        "components", "stop", "admitted", "token", "position", "action", "behaviour", "version",
        "reward", "owner", "role", "greedy",
    }
)  # fmt: skip
"""Columns that every batch has when it is made."""

REFERENCE = frozenset({"reference", "reference_topk", "reference_ids", "reference_logprobs"})
"""What the model before training says of a token."""

MADE = REFERENCE | {
    "policy", "entropy", "squares", "old", "advantage", "weights", "covariant", "correction",
    "repeats", "policy_logprobs", "policy_reference_topk",
}  # fmt: skip
"""Columns that the policy's engine, its reference view, an estimator or a choice makes."""

ALWAYS = frozenset(
    {
        "reference", "scoring pass", "greedy baseline", "role", "whole step",
        "whole-step covariance", "sum of squared probabilities",
        "distributions over the vocabulary", "log-probs of the same top-k",
    }
)  # fmt: skip
"""What every run can provide beside columns; it does so where something asks for it."""


DISTRIBUTIONS: Mapping[str, frozenset[Target]] = MappingProxyType(
    {
        "full": frozenset({Target.REFERENCE}),
        "full_top_k": frozenset({Target.REFERENCE, Target.TEACHER}),
    }
)
"""Whose distributions a KL estimator can be given: the reference lies beside the policy, a teacher
keeps its likeliest ids, and the policies of the past kept none."""


REASONS: Mapping[str, str] = MappingProxyType(
    {
        "column prediction": "the column prediction of a value head, and a policy has a"
        " distribution in its place (a critic of models minimises its own loss)",
        "observation mask": "an observation mask, tokens of tools and users in later turns: choose"
        " an agent whose episodes have them (rollout.agent: dialogue)",
        SERVICE: "a multi-token head: set training.options.mtp_depths to 1 or more",
    }
)
"""Why what is missing cannot be had."""


def provided(config: RunConfig) -> frozenset[str]:
    """Columns that something in this run fills or makes."""
    found = ASSEMBLED | MADE
    if further_model(config, ModelRole.CRITIC) is not None:
        found |= {"value", "return"}
    if further_model(config, ModelRole.TEACHER) is not None:
        found |= {"teacher", "teacher_topk", "teacher_ids", "policy_topk", "taught_by"}
    if has_heads(config):
        found |= {COLUMN}
    if _observes(config):
        found |= {"observation", "observation_weight"}
    return found


def lacking(config: RunConfig, found: Entry) -> list[str]:
    """Columns and services that a function reads and that nothing in this run provides."""
    columns = [*found.columns.tokens, *found.columns.sequences]
    there = provided(config)
    unknown = [name for name in columns if name not in there]
    roles = {model.role.value for model in config.models}
    if ModelRole.TEACHER.value in roles:
        roles |= {"teacher's top-k"}
    if has_heads(config):
        roles |= {SERVICE}
    if _observes(config):
        roles |= {"observation mask"}
    services = sorted(found.needs - ALWAYS - roles)
    if config.algorithm.advantage.options.get("components"):
        services = [name for name in services if name != "reward components"]
    return [REASONS.get(one, one) for one in services or [_column(name) for name in unknown]]


def _column(name: str) -> str:
    """A column that is lacking; where hexpo knows none of that name, with the nearest ones."""
    known = SCHEMA.tokens.keys() | SCHEMA.sequences.keys() | HEAD_STATISTICS
    near = [] if name in known else difflib.get_close_matches(name, sorted(known), n=2)
    return f"column {name}" + (f" (did you mean {' or '.join(near)}?)" if near else "")


def lacking_for_kl(config: RunConfig) -> list[str]:
    """The same for the KL."""
    kl = config.algorithm.kl
    found = find(kl.estimator, KL_ESTIMATORS, what="KL estimator", elsewhere=ELSEWHERE)
    has_target = kl.target.value in provided(config)
    missing = [] if has_target else [f"column {kl.target.value}"]
    if found.wide and kl.target not in DISTRIBUTIONS[found.name]:
        fitting = ", ".join(sorted(target.value for target in DISTRIBUTIONS[found.name]))
        missing.append(f"the target's distribution (there is that of: {fitting})")
    return [*sorted(found.needs - ALWAYS), *missing]


def problems(config: RunConfig) -> Iterator[Problem]:
    """Options that the chosen adapters would not honour (M2), and technologies not installed."""
    yield from _missing_extras(config)
    yield from _rollout(config)
    yield from lora.problems(config)


def rollout_capabilities(config: RunConfig) -> RolloutCapabilities | None:
    """What the chosen rollout engine declares; None where it does not say so before it is made."""
    options = config.rollout.options
    found: RolloutCapabilities | None = _declared("rollout", config.rollout.engine, options)
    return found


def _observes(config: RunConfig) -> bool:
    """Whether the chosen agent says that its episodes hold what others say."""
    agent = config.rollout.agent
    able: AgentCapabilities | None = _declared("agents", agent.kind, agent.options)
    return able is not None and able.observes


def _rollout(config: RunConfig) -> Iterator[Problem]:
    able = rollout_capabilities(config)
    if able is not None:
        yield from rollout_problems(config, able)


def rollout_problems(config: RunConfig, able: RolloutCapabilities) -> Iterator[Problem]:
    """What is asked of a rollout engine and it cannot do."""
    engine, asked = config.rollout.engine, config.asynchrony
    if able.pause_modes and asked.on_update.pause_mode not in able.pause_modes:
        fitting = [one.value for one in OnUpdate if one.pause_mode in able.pause_modes]
        known = ", ".join(fitting)
        yield Problem(
            "asynchrony.on_update",
            f"rollout engine {engine} cannot {asked.on_update.value}; it can {known}",
        )
    has_its_own_weights = able.overlap or config.rollout.replicas > 0
    if asked.placement is Placement.STREAMING and not has_its_own_weights:
        yield Problem(
            "asynchrony.placement",
            f"streaming: rollout engine {engine} reads the trainer's live weights with these"
            " options and cannot generate while they change; use separate, or give it a process of"
            " its own (rollout.replicas=1)",
        )
    elif asked.max_staleness > 0 and not has_its_own_weights:
        yield Problem(
            "asynchrony.max_staleness",
            f"{asked.max_staleness:g}: rollout engine {engine} reads the trainer's live weights"
            " with these options and cannot generate while they change; use 0, or give it a"
            " process of its own (rollout.replicas=1)",
        )
    if config.training.options.get("sent") == "adapters" and not able.adapters:
        yield Problem(
            "training.options.sent",
            f"adapters: rollout engine {engine} takes whole weights; use merged",
        )
    if training_sampling(config).stop_texts and not able.stop_texts:
        yield Problem("rollout.sampling.stop_texts", f"rollout engine {engine} knows stop ids only")


def _missing_extras(config: RunConfig) -> Iterator[Problem]:
    elsewhere = {"rollout"} if config.rollout.options.get("python") else set[str]()
    for key, port, kind in chosen_adapters(config):
        if port in elsewhere:  # installed in an environment of its own
            continue
        try:
            require(f"{port}/{kind}")
        except HexpoError as error:
            yield Problem(key, str(error))


def chosen_adapters(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Key, port and kind of every adapter that the configuration names."""
    for slot in ADAPTERS:
        value: Any = config
        for name in slot.key.split("."):
            value = getattr(value, name.removesuffix("[]"), None)
        sections = list(value) if slot.key.endswith("[]") else [value]
        for place, section in enumerate(sections):
            if section is not None:
                key = slot.key.replace("[]", f"[{place}]")
                yield f"{key}.{slot.by}", slot.of, getattr(section, slot.by)


def _declared(port: str, kind: str, options: Mapping[str, Any]) -> Any:
    module = adapter(port, kind)
    declare = getattr(module, "capabilities", None)
    if not callable(declare):
        return None
    config_type = getattr(module, "Config", None)
    if config_type is None:
        return declare()
    config, _ = structure(options, config_type)
    return declare(config) if config is not None else None
