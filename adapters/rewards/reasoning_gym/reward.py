"""Runs reasoning-gym's graders in processes."""

from __future__ import annotations

import re
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hexpo.domain.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from hexpo.adapters.rewards.wire.reward import PooledReward


class Extract(Enum):
    """What of the answer's text is graded."""

    LAST_INTEGER = "last_integer"
    """The last number, if it is whole: `7`, `-7`, `1,000`, `7.0`; a text ending on 3.5 has none."""
    LAST_LINE = "last_line"
    """The last line that is not empty."""
    WHOLE = "whole"
    """All of it, without blanks at the ends."""
    REGEX = "regex"
    """The last match of `pattern`: its first group if it has one."""


@attrs.frozen(kw_only=True)
class Config:
    """How the answer is read, and how strictly it is graded."""

    extract: Extract = Extract.WHOLE
    """What of the answer's text is graded; a text without it is graded as no answer."""
    pattern: str | None = None
    """The regular expression of `extract: regex`."""
    partial_credit: bool = True
    """Keep the task's scores between 0 and 1; many tasks give them for a longer answer that
    holds the right one (17 for 7 is worth 0.5). False: below 1 is 0."""
    bound_seconds: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    """How long one sample may take before its process is stopped."""
    workers: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    """How many samples are graded at the same time, each in a process of its own."""


def build(config: Config) -> PooledReward:
    """A reward for rows of `prompts/reasoning_gym`, which carry their entry.

    The component `extracted` says whether the text held an answer. A row of another source is
    `Failed(UNSUPPORTED)`.

    Raises: MissingExtra: reasoning-gym is not installed.
        ConfigurationError: `pattern` without `extract: regex`, or the other way round, or broken.
    """
    if find_spec("reasoning_gym") is None:
        raise MissingExtra("rewards/reasoning_gym needs reasoning-gym: pip install 'hexpo[demo]'")
    _check_pattern(config)
    from hexpo.adapters.rewards.wire.process import GraderFile
    from hexpo.adapters.rewards.wire.reward import PooledReward

    grader = GraderFile(
        name="rewards/reasoning_gym",
        file=Path(__file__).with_name("grader.py"),
        options={
            "extract": config.extract.value,
            "pattern": config.pattern,
            "partial_credit": config.partial_credit,
        },
        bound_seconds=config.bound_seconds,
    )
    return PooledReward(grader, workers=config.workers)


def _check_pattern(config: Config) -> None:
    if (config.extract is Extract.REGEX) != (config.pattern is not None):
        raise ConfigurationError(
            "rewards/reasoning_gym: `pattern` and `extract: regex` go together; set both or none"
        )
    try:
        re.compile(config.pattern or "")
    except re.error as error:
        raise ConfigurationError(
            f"rewards/reasoning_gym: `pattern` {config.pattern!r} is no regular expression: {error}"
        ) from error
