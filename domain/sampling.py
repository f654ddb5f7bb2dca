"""How tokens are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from hexpo.domain.errors import WrongValue


def _within(
    low: float, high: float, *, open_low: bool = False
) -> Callable[[object, attrs.Attribute[Any], float], None]:
    def check(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not low <= value <= high or (open_low and value == low):  # NaN lies nowhere
            bracket = "(" if open_low else "["
            raise WrongValue(
                f"sampling.{attribute.name} is {value}; it must lie in {bracket}{low:g}, {high:g}]"
            )

    return check


@attrs.frozen(kw_only=True)
class Sampling:
    """Settings of one request. Log-probs are those of the distribution that these settings make
    (temperature and filters in): what the trainer must reproduce."""

    max_new_tokens: int = attrs.field(default=64, validator=_within(1, 2**31))
    """Budget of the answer, in tokens."""
    temperature: float = attrs.field(default=1.0, validator=_within(0.0, 100.0))
    """Logits are divided by it; 0 is greedy."""
    top_p: float = attrs.field(default=1.0, validator=_within(0.0, 1.0, open_low=True))
    """Keep the smallest set of tokens whose mass reaches it; 1 keeps all."""
    top_k: int = attrs.field(default=0, validator=_within(0, 2**31))
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = attrs.field(default=0.0, validator=_within(0.0, 1.0))
    """Drop tokens less likely than this share of the likeliest; 0 keeps all."""
    min_new_tokens: int = attrs.field(default=0, validator=_within(0, 2**31))
    """Stop ids and texts end an answer only from here on (benchmarks of fixed length)."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end an answer, besides the model's own; the id stays in the answer."""
    stop_texts: tuple[str, ...] = ()
    """Texts that end an answer; the tokens that made them stay in the answer."""

    @property
    def filters(self) -> bool:
        """Whether any token can be cut from the support."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0
