"""Prompts by how often they are solved: a running pass rate for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs
import torch
from torch import Generator

from hexpo.domain.checks import require_within
from hexpo.domain.errors import WrongValue


@attrs.frozen(kw_only=True)
class PassRates:
    """The running pass rate of each prompt that was asked: part of the checkpoint."""

    decay: float = 0.7
    """How much of the old rate stays when a prompt was asked again."""
    unknown: float = 0.5
    """Taken for a prompt that was never asked."""
    rates: Mapping[str, float] = MappingProxyType({})
    """By prompt id."""

    def __attrs_post_init__(self) -> None:
        require_within(0.0, 1.0, decay=self.decay, unknown=self.unknown)

    def of(self, prompt: str) -> float:
        """The rate of one prompt, in 0 to 1."""
        return self.rates.get(prompt, self.unknown)

    def after(self, passed: Mapping[str, float]) -> PassRates:
        """With a step's results.

        Args: passed: share of each asked prompt's scored samples that passed; a prompt without a
            scored sample is left out by the caller.
        Raises: WrongValue: a share outside 0 to 1; names the prompt.
        """
        rates = dict(self.rates)
        for prompt, share in passed.items():
            if not 0 <= share <= 1:
                raise WrongValue(f"the pass rate of prompt {prompt!r} is {share}; not in 0 to 1")
            old = rates.get(prompt)
            rates[prompt] = share if old is None else self.decay * old + (1 - self.decay) * share
        return attrs.evolve(self, rates=MappingProxyType(rates))

    def __reduce__(self) -> tuple[object, ...]:  # mapping proxies do not pickle
        return (_rebuilt, (self.decay, self.unknown, dict(self.rates)))


def in_band(
    prompts: Sequence[str], rates: PassRates, *, low: float = 0.0, high: float = 1.0
) -> list[bool]:
    """Which prompts have a rate in [low, high]; those never asked always are.

    Raises: WrongValue: the band is empty or leaves 0 to 1.
    """
    require_within(0.0, 1.0, band_low=low, band_high=high)
    require_within(low, 1.0, band_high=high)
    return [name not in rates.rates or low <= rates.of(name) <= high for name in prompts]


def draw(
    prompts: Sequence[str],
    rates: PassRates,
    *,
    count: int,
    generator: Generator,
    floor: float = 0.05,
) -> list[int]:
    """Places of `count` different prompts, drawn where success is least certain.

    weight = max(p (1 - p), floor), p the running rate

    Args: generator: the only source of chance. floor: keeps every prompt reachable.
    Raises: WrongValue: more are asked for than there are.
    """
    if not 0 <= count <= len(prompts):
        raise WrongValue(f"cannot draw {count} different prompts of {len(prompts)}")
    if count == 0:
        return []
    chances = [rates.of(name) for name in prompts]
    weights = torch.tensor(chances, dtype=torch.float64)
    weights = (weights * (1 - weights)).clamp(min=floor)
    drawn = torch.multinomial(weights, count, replacement=False, generator=generator)
    return [int(place) for place in drawn.tolist()]


def _rebuilt(decay: float, unknown: float, rates: dict[str, float]) -> PassRates:
    return PassRates(decay=decay, unknown=unknown, rates=MappingProxyType(rates))
