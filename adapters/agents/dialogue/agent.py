"""Settings of scripted conversations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from hexpo.application.agents import Dialogue
from hexpo.application.ports.agent import AgentCapabilities
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tokenizer import TurnTokenizer
from hexpo.domain.sampling import Sampling


@attrs.frozen(kw_only=True)
class Config:
    """Settings of a dialogue."""

    follow_ups: str = "follow_ups"
    """Field of the rows that holds what is said after each answer: a list of texts, or of
    `{role, content}`. A row without it has one turn."""
    weights: Mapping[str, float] = attrs.field(default=MappingProxyType({"user": 1.0, "tool": 1.0}))
    """What the words of each role count in a term on observations (`observation_nll`)."""


def capabilities(config: Config) -> AgentCapabilities:
    """Observations have a weight, or there are none."""
    return AgentCapabilities(observes=any(config.weights.values()))


def build(
    config: Config,
    *,
    rollout: RolloutEngine,
    tokenizer: TurnTokenizer,
    sampling: Sampling,
    seed: int,
    stream: str,
) -> Dialogue:
    """An agent loop that goes on as the rows say."""
    return Dialogue(
        rollout=rollout,
        tokenizer=tokenizer,
        sampling=sampling,
        seed=seed,
        stream=stream,
        field=config.follow_ups,
        weights=config.weights,
    )
