"""What a researcher's function needs, read from its signature.

A keyword-only parameter named `<column>_T` is a token column and `<column>_S` a sequences
column: `policy_T` is the log-prob of each token under the current policy, `score_S` the outcome
of each row. Everything else is an option. So adding a loss is one function, and two tensors
cannot be swapped unnoticed: each is passed by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hexpo.domain.errors import WrongValue


@attrs.frozen
class Needs:
    """Columns and options that a function takes."""

    tokens: tuple[str, ...]
    """Names of token columns, without the `_T`."""
    sequences: tuple[str, ...]
    """Names of sequences columns, without the `_S`."""
    options: Mapping[str, Any]
    """Other parameters and their defaults; `inspect.Parameter.empty` where one must be given."""


def needs_of(function: Callable[..., Any]) -> Needs:
    """Read a function's needs. Raises WrongValue for positional or variadic parameters."""
    tokens, sequences, options = [], [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            raise WrongValue(
                f"{_place(function)}: parameter {name!r} must be keyword-only and have a name:"
                " columns are read from the signature; name each one, like score_S or policy_T"
            )
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise WrongValue(
                f"{_place(function)}: parameter {name!r} must be keyword-only, so that no two"
                " columns can be swapped; put a * before the first"
            )
        if name.endswith("_T"):
            tokens.append(name.removesuffix("_T"))
        elif name.endswith("_S"):
            sequences.append(name.removesuffix("_S"))
        else:
            options[name] = parameter.default
    return Needs(tuple(tokens), tuple(sequences), options)


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"
