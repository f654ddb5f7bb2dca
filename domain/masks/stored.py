"""Masks and choices of stored columns, as estimators of a token column of their own.

A column is written once: what masks leave of `trained` is the column `kept`, and the terms of the
objective select and count by it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.masks.restrict import spread
from hexpo.domain.seeds import seed_for
from hexpo.domain.signature import needs_of

KEPT = "kept"
"""Tokens that are left of `trained`, and how many they are in each row."""


@attrs.frozen(kw_only=True)
class Mask:
    """A function of stored columns that says which tokens stay, and its options."""

    function: Callable[..., Tensor]
    """Takes columns by name, of the tokens that are still there; returns (N,) bool."""
    options: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Narrowing:
    """Masks one after the other: each sees what those before it left.

    Called with the (T,) columns of a whole optimizer step; gives `kept`.
    """

    masks: tuple[Mask, ...]

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature([mask.function for mask in self.masks], "trained_T")

    def __call__(self, **arguments: Tensor) -> dict[str, Tensor]:
        kept_T = arguments["trained_T"]
        for mask in self.masks:
            chosen_N = mask.function(**_selected(mask.function, arguments, kept_T), **mask.options)
            kept_T = spread(chosen_N, kept_T)
        return {KEPT: kept_T}


@attrs.frozen(kw_only=True)
class Covariant:
    """The tokens that `clip_cov` and `kl_cov` treat apart, chosen over a whole optimizer step.

    Called with its (T,) columns; gives `covariant`. A draw depends on the run's seed and on the
    rows alone.
    """

    function: Callable[..., Tensor]
    """`top_covariance` or `drawn_covariance`."""
    where: str = "trained"
    """The mask of the tokens that may be chosen."""
    seed: int = 0

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature([self.function], f"{self.where}_T", "id_S")

    def __call__(self, **arguments: Tensor) -> dict[str, Tensor]:
        where_T, options = arguments[f"{self.where}_T"], dict[str, Any]()
        if "generator" in needs_of(self.function).options:
            first = int(arguments["id_S"].min()) if arguments["id_S"].numel() else 0
            seed = seed_for(self.seed, "covariance", first)
            options["generator"] = torch.Generator().manual_seed(seed)
        chosen_N = self.function(**_selected(self.function, arguments, where_T), **options)
        return {"covariant": spread(chosen_N, where_T)}


def _signature(functions: Sequence[Callable[..., Tensor]], *added: str) -> inspect.Signature:
    """All columns that the functions read, and some more."""
    names = dict.fromkeys(added)
    for function in functions:
        needs = needs_of(function)
        names |= dict.fromkeys(f"{name}_T" for name in needs.tokens)
        names |= dict.fromkeys(f"{name}_S" for name in needs.sequences)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(name, keyword) for name in names])


def _selected(
    function: Callable[..., Tensor], arguments: Mapping[str, Tensor], where_T: Tensor
) -> dict[str, Tensor]:
    needs = needs_of(function)
    tokens = {f"{name}_T": arguments[f"{name}_T"][where_T] for name in needs.tokens}
    return tokens | {f"{name}_S": arguments[f"{name}_S"] for name in needs.sequences}
