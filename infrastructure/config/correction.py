"""Weights, masks and gates against the sampler, and what is added to rewards, by configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.batch.assemble import Shaping
from hexpo.domain.correction.normalising import Normalising
from hexpo.domain.correction.resampling import Resampling, resampled
from hexpo.domain.correction.weights import stored
from hexpo.domain.estimators import Estimator
from hexpo.domain.masks.catalogue import MASKS
from hexpo.domain.masks.stored import Mask
from hexpo.domain.objective import Factor
from hexpo.infrastructure.config.options import entry, typed
from hexpo.infrastructure.config.schema import RunConfig


def factors_of(config: RunConfig) -> tuple[Factor, ...]:
    """Weights and gates of the policy term. Raises WrongValue: unknown name or option."""
    found = [(entry("correction", one.name), one.options) for one in config.algorithm.correction]
    return tuple(
        Factor(name=each.name, function=each.function, options=typed(each, options))
        for each, options in found
        if each.name not in MASKS
    )


def masks_of(config: RunConfig) -> tuple[Mask, ...]:
    """Masks of stored columns, in order. Raises WrongValue: unknown name or option."""
    found = [(entry("correction", one.name), one.options) for one in config.algorithm.correction]
    return tuple(
        Mask(function=each.function, options=typed(each, options))
        for each, options in found
        if each.name in MASKS
    )


def normalising_of(config: RunConfig, *, where: str) -> tuple[Estimator, ...]:
    """What makes the weights of `stored`, where it is chosen. Args: where: of which mask."""
    chosen = [one for one in config.algorithm.correction if one.name == stored.__name__]
    made = [typed(entry("correction", one.name), one.options) for one in chosen]
    return tuple(Estimator(function=Normalising(where=where, **options)) for options in made)


def resampling_of(config: RunConfig) -> tuple[Estimator, ...]:
    """What draws rows again, where `resampled` is chosen."""
    chosen = [one for one in config.algorithm.correction if one.name == resampled.__name__]
    made = [typed(entry("correction", one.name), one.options) for one in chosen]
    seed = config.run.seed
    return tuple(Estimator(function=Resampling(seed=seed, **options)) for options in made)


@attrs.frozen
class _Sum:
    """Reward shapings as one."""

    parts: tuple[Estimator, ...]

    def __call__(self, columns: Mapping[str, Tensor]) -> Tensor:
        made = [
            part.function(
                **{f"{name}_S": columns[name] for name in part.needs.sequences}, **part.options
            )
            for part in self.parts
        ]
        return torch.stack([one for one in made if isinstance(one, Tensor)]).double().sum(0)


def shaping_of(config: RunConfig) -> Shaping | None:
    """What is added to the outcome that estimators see; None where nothing is."""
    parts: list[Estimator] = []
    for chosen in config.algorithm.shaping:
        found = entry("shaping", chosen.name)
        options: dict[str, Any] = typed(found, chosen.options)
        parts.append(Estimator(function=found.function, options=options))
    return _Sum(tuple(parts)) if parts else None
