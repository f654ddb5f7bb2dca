"""The engine under test, in this process."""

from __future__ import annotations

from typing import Any

from hexpo.adapters.models.policy import Policy
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, FsdpEngine, build


def engine_of(
    model: Policy, *, temperature: float = 1.0, **settings: Any
) -> tuple[FsdpEngine, MemoryRowStore]:
    """An engine and the store that it reads. Args: settings: of its `Config`."""
    store = MemoryRowStore()
    engine = build(
        Config(**{"learning_rate": 1e-2, **settings}),
        policy=model,
        store=store,
        tokenizer=None,  # type: ignore[arg-type]
        temperature=temperature,
        total_steps=10,
        seed=1,
    )
    return engine, store
