"""One question, one answer."""

from __future__ import annotations

from hexpo.application.agents import SingleTurn
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.domain.sampling import Sampling


def build(
    *, rollout: RolloutEngine, tokenizer: Tokenizer, sampling: Sampling, seed: int, stream: str
) -> SingleTurn:
    """An agent loop that asks once."""
    return SingleTurn(
        rollout=rollout, tokenizer=tokenizer, sampling=sampling, seed=seed, stream=stream
    )
