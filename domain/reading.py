"""A function that reads other columns than those that its parameters name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hexpo.domain.catalogue import did_you_mean
from hexpo.domain.errors import WrongValue
from hexpo.domain.signature import needs_of


@attrs.frozen
class Reading:
    """A function with some of its columns renamed: `Reading(grpo, {"group": "proposal"})` compares
    rows of one proposal, `Reading(kl_term, {"reference": "teacher"})` draws to the teacher.

    It has the signature of the function with the other names, so that what asks for columns
    finds the ones that will be read.
    """

    function: Callable[..., Any]
    columns: Mapping[str, str]
    """Names that the function has, without their axes, and the columns to read in their place."""

    def __attrs_post_init__(self) -> None:
        needs = needs_of(self.function)
        known = {*needs.tokens, *needs.sequences}
        for name in self.columns:
            if name not in known:
                raise WrongValue(
                    f"{getattr(self.function, '__name__', self.function)} reads no column"
                    f" {name!r}{did_you_mean(name, known)}"
                )

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self.function)
        read: dict[str, inspect.Parameter] = {}
        for parameter in signature.parameters.values():
            name = self._read(parameter.name)
            read.setdefault(name, parameter.replace(name=name))
        return signature.replace(parameters=list(read.values()))

    def __call__(self, **arguments: Any) -> Any:
        parameters = inspect.signature(self.function).parameters
        return self.function(
            **{
                name: arguments[self._read(name)]
                for name in parameters
                if self._read(name) in arguments
            }
        )

    def _read(self, parameter: str) -> str:
        column, _, axes = parameter.rpartition("_")
        if axes in {"T", "S"} and column in self.columns:
            return f"{self.columns[column]}_{axes}"
        return parameter
