"""Training of a policy in one process, in plain torch; the place where FSDP2 ranks will stand."""

from __future__ import annotations

from collections.abc import Callable

from hexpo.adapters.models.lora import Lora
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.fsdp.config import Config, Schedule
from hexpo.adapters.training.fsdp.engine import FsdpEngine
from hexpo.adapters.training.fsdp.rank import Rank
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer

__all__ = ["Config", "FsdpEngine", "Lora", "Schedule", "build"]


def build(
    config: Config,
    *,
    policy: Policy,
    store: RowStore,
    tokenizer: Tokenizer,
    temperature: float,
    total_steps: int,
    seed: int,
    release: Callable[[], None] = lambda: None,
) -> FsdpEngine:
    """An engine that trains the policy's own module in place.

    Args: store: where the rows' tokens lie.
        tokenizer: written beside an exported model.
        temperature: that of the rollout; log-probs are those of what was sampled.
        total_steps: optimizer steps of the run, for falling learning rates.
        seed: of the adapters' dropout.
        release: gives freed memory back; called after each step.
    Raises: MissingExtra, ModelError, Unsupported: the model or the setting does not fit.
    """
    rank = Rank(policy, config, temperature=temperature, seed=seed)
    return FsdpEngine(
        rank,
        config,
        policy=policy,
        store=store,
        tokenizer=tokenizer,
        total_steps=total_steps,
        release=release,
    )
