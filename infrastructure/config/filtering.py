"""What becomes of groups whose scores are all equal, by configuration."""

from __future__ import annotations

import attrs

from hexpo.application.curriculum import Band, Curriculum
from hexpo.application.ports.prompts import PromptSource
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
    hardest: float = attrs.field(default=0.0, validator=within(0, 1))
    """A prompt whose running pass rate is below is asked no more, but for `revisit`."""
    easiest: float = attrs.field(default=1.0, validator=within(0, 1))
    """A prompt whose running pass rate is above is asked no more, but for `revisit`."""
    passed: float = 1.0
    """Score from which an answer has passed."""
    decay: float = attrs.field(default=0.7, validator=within(0, 1))
    """How much of a prompt's pass rate stays when it is asked again."""
    revisit: float = attrs.field(default=0.05, validator=within(0, 1))
    """Share of the epochs in which a prompt is asked all the same."""


def filtering_of(config: RunConfig) -> tuple[Filtering, list[Problem]]:
    """The options, and what is wrong with them."""
    given = config.algorithm.zero_variance.options
    made, problems = structure(given, Filtering, at="algorithm.zero_variance.options")
    if made is not None and made.hardest > made.easiest:
        key = "algorithm.zero_variance.options.hardest"
        message = f"{made.hardest:g} is above easiest = {made.easiest:g}: no prompt would stay"
        problems = [*problems, Problem(key, message)]
    return made or Filtering(), problems


def curriculum_of(config: RunConfig, source: PromptSource) -> Curriculum | None:
    """Who passes over prompts by their pass rates; None where every rate is welcome."""
    options, _ = filtering_of(config)
    if options.hardest <= 0 and options.easiest >= 1:
        return None
    return Curriculum(
        source,
        Band(
            hardest=options.hardest,
            easiest=options.easiest,
            passed=options.passed,
            decay=options.decay,
            revisit=options.revisit,
            seed=config.run.seed,
        ),
    )


def judge_of(config: RunConfig) -> tuple[FlatJudge | None, int]:
    """Who drops flat groups, if anyone, and how many further groups a step may ask for."""
    treatment, (options, _) = config.algorithm.zero_variance.treatment, filtering_of(config)
    if treatment is Flat.KEEP:
        return None, 0
    budget = options.budget if treatment is Flat.RESAMPLE else 0
    return FlatJudge(least=options.least), budget
