"""What becomes of groups whose scores are all equal, by configuration."""

from __future__ import annotations

import attrs

from hexpo.application.rollouts import FlatJudge
from hexpo.domain.shaping.groups import Flat
from hexpo.infrastructure.config.ranges import within
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import Problem, structure


@attrs.frozen(kw_only=True)
class Filtering:
    """Options of `algorithm.zero_variance`."""

    least: float = attrs.field(default=0.0, validator=within(0))
    """Scores that differ by no more are equal."""
    budget: int = attrs.field(default=64, validator=within(0))
    """Groups that a step may ask for in the place of filtered ones."""


def filtering_of(config: RunConfig) -> tuple[Filtering, list[Problem]]:
    """The options, and what is wrong with them."""
    given = config.algorithm.zero_variance.options
    made, problems = structure(given, Filtering, at="algorithm.zero_variance.options")
    return made or Filtering(), problems


def judge_of(config: RunConfig) -> tuple[FlatJudge | None, int]:
    """Who drops flat groups, if anyone, and how many further groups a step may ask for."""
    treatment, (options, _) = config.algorithm.zero_variance.treatment, filtering_of(config)
    if treatment is Flat.KEEP:
        return None, 0
    budget = options.budget if treatment is Flat.RESAMPLE else 0
    return FlatJudge(least=options.least), budget
