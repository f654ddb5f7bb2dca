"""From a configuration to an engine, or to a model that is only asked."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.fsdp.config import OF_SEVERAL_RANKS, Config
from hexpo.adapters.training.fsdp.critic import CriticRank
from hexpo.adapters.training.fsdp.engine import FsdpEngine
from hexpo.adapters.training.fsdp.foresight import ForesightRank
from hexpo.adapters.training.fsdp.frozen import FrozenScorer
from hexpo.adapters.training.fsdp.rank import Rank
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.transfer import Send
from hexpo.domain.errors import Unsupported
from hexpo.domain.seeds import seed_for


def require_alone(config: Config) -> None:
    """Raises Unsupported: a setting is one of several ranks."""
    usual = Config()
    if chosen := [n for n in OF_SEVERAL_RANKS if getattr(config, n) != getattr(usual, n)]:
        raise Unsupported(
            f"{', '.join(chosen)}: for training over ranks; raise training.ranks or remove it"
        )


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
    send: Send | None = None,
) -> FsdpEngine:
    """An engine that trains the policy's own module in place.

    Args: store: where the rows' tokens lie.
        tokenizer: written beside an exported model.
        temperature: that of the rollout; log-probs are those of what was sampled.
        total_steps: optimizer steps of the run, for falling learning rates.
        seed: of the adapters: how they begin, and their dropout.
        release: gives freed memory back; called after each step.
        send: the half of a transfer that stands beside the weights; None with a rollout here.
    Raises: MissingExtra, ModelError, Unsupported: the model or the setting does not fit.
    """
    require_alone(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "adapters"))  # which begin alike in every run of a seed
        rank = _rank(config, policy, temperature=temperature, seed=seed)
    return FsdpEngine(
        rank,
        config,
        policy=policy,
        store=store,
        tokenizer=tokenizer,
        total_steps=total_steps,
        release=release,
        send=send,
    )


def _rank(config: Config, policy: Policy, *, temperature: float, seed: int) -> Rank:
    if config.mtp_depths:
        return ForesightRank(policy, config, temperature=temperature, seed=seed)
    if config.value_head:
        return CriticRank(policy, config, seed=seed)
    return Rank(policy, config, temperature=temperature, seed=seed)


def build_frozen(
    config: Config, *, policy: Policy, store: RowStore, temperature: float, column: str
) -> FrozenScorer:
    """A scorer that fills `column` with the log-probs that a model gives to the sampled ids.

    Raises: ModelError, Unsupported: the model does not fit.
    """
    require_alone(config)
    if config.mtp_depths:
        raise Unsupported("a model that is only asked learns no heads: remove `mtp_depths`")
    return FrozenScorer(policy, config, column=column, store=store, temperature=temperature)
