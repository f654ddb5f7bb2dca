"""Multi-token heads: who has them, and that something trains them.

An option of the policy's training adapter (`mtp_depths`) makes them; terms that read `mtp` train
them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hexpo.infrastructure.config.fitting import is_fit
from hexpo.infrastructure.config.options import entry
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import Problem

DEPTHS = "mtp_depths"
"""The option."""
COLUMN, SERVICE = "mtp", "multi-token head"
"""What a term reads of the heads, and what it is said to need."""


def has_heads(config: RunConfig) -> bool:
    """Whether the policy is trained with multi-token heads beside it."""
    return bool(config.training.options.get(DEPTHS))


def problems(config: RunConfig) -> Iterator[Problem]:
    """Heads that nothing trains (M2)."""
    if has_heads(config) and not any(
        COLUMN in entry("term", term.loss.name).columns.tokens for term in config.algorithm.terms
    ):
        way = (
            "learning from given answers has no further terms; use 0"
            if is_fit(config)
            else "no term trains these heads; add {name: mtp, loss: mtp} to algorithm.terms, or"
            " use 0"
        )
        yield Problem(f"training.options.{DEPTHS}", f"{config.training.options[DEPTHS]}: {way}")
    for place, model in enumerate(config.models):
        if model.options.get(DEPTHS):
            yield Problem(
                f"models[{place}].options.{DEPTHS}",
                f"a {model.role.value} has no multi-token heads, the policy may; remove it",
            )
