"""How answers are drawn, in training and in evaluations.

Temperature and budget are keys of their own; everything else of the domain's `Sampling` stands
under `sampling`, checked against that class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from hexpo.domain.sampling import Sampling
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import Problem, structure

KEYS = ("temperature", "max_new_tokens")
"""Settings of `Sampling` that are keys of the rollout section."""


def training_sampling(config: RunConfig) -> Sampling:
    """How answers are drawn in training."""
    return Sampling(**_common(config), **_typed(config.rollout.sampling))


def evaluation_sampling(config: RunConfig) -> Sampling:
    """As in training, but for what the evaluation names."""
    return attrs.evolve(training_sampling(config), **_typed(config.evaluation.sampling))


def problems(config: RunConfig) -> Iterator[Problem]:
    """Unknown settings and values out of range."""
    for at, given, own in (
        ("rollout.sampling", config.rollout.sampling, KEYS),
        ("evaluation.sampling", config.evaluation.sampling, ()),
    ):
        for name in own:
            if name in given:
                yield Problem(f"{at}.{name}", f"is a key of its own: write rollout.{name}")
        rest = {name: value for name, value in given.items() if name not in own}
        yield from structure(rest, Sampling, at=at)[1]


def _common(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config.rollout, name) for name in KEYS}


def _typed(given: Mapping[str, Any]) -> dict[str, Any]:
    made, _ = structure(given, Sampling)
    return {name: getattr(made, name) for name in given} if made is not None else {}
