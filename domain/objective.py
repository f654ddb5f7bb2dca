"""An objective is a sum of named terms, each with its own coefficient, mask and denominator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.aggregate import Mode, Unit, aggregate, row_weights
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import MissingCount, WrongColumn
from hexpo.domain.metrics import Measure, mean_of, total
from hexpo.domain.signature import Needs, needs_of

HEAD_STATISTICS = frozenset({"policy", "entropy"})
"""Columns that the model's last step makes for the current policy, with their gradients."""


class Proximal(Enum):
    """Which policy `old` is."""

    CURRENT = "current"
    """The current one, gradient stopped: exact where a batch makes one optimizer step."""
    STORED = "stored"
    """The column `old`, scored before the first step of a batch that makes several."""
    BEHAVIOUR = "behaviour"
    """The policy that sampled (bypass): no scoring pass, and staleness is clipped with it."""


@attrs.frozen(kw_only=True)
class Loss:
    """A loss function and its options."""

    function: Callable[..., Tensor]
    """Takes columns by name (see `signature`), returns one number a unit."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    unit: Unit = Unit.TOKEN
    measures: Callable[..., Mapping[str, Tensor]] | None = None
    """Takes what `function` takes, returns per-unit values whose means are metrics."""

    @property
    def needs(self) -> Needs:
        """Columns of the function."""
        return needs_of(self.function)


@attrs.frozen(kw_only=True)
class Term:
    """One summand."""

    name: str
    loss: Loss
    coefficient: float = 1.0
    mode: Mode = Mode.TOKEN_MEAN
    mask: str = "trained"
    """Bool token column: tokens that belong to this term, and count in its denominator only."""
    count: str = "trained"
    """Sequences column with the number of such tokens of each row."""
    constant: float | None = None
    """Divisor of `seq-mean-token-sum-norm`, in tokens."""


@attrs.frozen(kw_only=True)
class Objective:
    """What one optimizer step minimises."""

    terms: tuple[Term, ...]
    proximal: Proximal = Proximal.CURRENT

    @property
    def token_columns(self) -> frozenset[str]:
        """Stored token columns that the terms read, masks included."""
        names = {name for term in self.terms for name in term.loss.needs.tokens}
        names |= {term.mask for term in self.terms}
        if "old" in names and self.proximal is not Proximal.STORED:
            names.discard("old")
            if self.proximal is Proximal.BEHAVIOUR:
                names.add("behaviour")
        return frozenset(names - HEAD_STATISTICS - {"owner"})

    @property
    def sequence_columns(self) -> frozenset[str]:
        """Columns of the sequences table that the terms read."""
        return frozenset(name for term in self.terms for name in term.loss.needs.sequences)

    @property
    def statistics(self) -> frozenset[str]:
        """Head statistics that the terms read."""
        names = {name for term in self.terms for name in term.loss.needs.tokens}
        return frozenset(names & HEAD_STATISTICS)

    @property
    def separable(self) -> bool:
        """Whether each token's gradient depends on that token alone, so that a head may make the
        loss and its gradient chunk by chunk in one pass."""
        return all(
            term.loss.unit is Unit.TOKEN and "owner" not in term.loss.needs.tokens
            for term in self.terms
        )

    def weigh(self, step: Sequences) -> Sequences:
        """The table of the whole optimizer step with `weights` (S, terms) float64: to be called
        once, before any split into ranks or micro-batches (A1, A6, A7)."""
        columns = [
            row_weights(
                trained_S=step[term.count],
                group_S=step["group"],
                mode=term.mode,
                unit=term.loss.unit,
                constant=term.constant,
            )
            for term in self.terms
        ]
        return step.with_columns(weights=torch.stack(columns, dim=1))

    def evaluate(
        self, columns: Mapping[str, Tensor], sequences: Sequences
    ) -> tuple[Tensor, dict[str, Measure]]:
        """The loss of some tokens: a weighted sum, to be added to that of all other parts.

        Args: columns: (N, ...) each, of selected tokens only, in order; `owner` (N,) int64 is the
                place of each token's row in `sequences`, and the head statistics carry gradient.
            sequences: the rows' table, with `weights` from `weigh`.
        Returns: a scalar, and metrics with their reductions.
        Raises: MissingCount: `weigh` was not called. WrongColumn: a column is missing.
        """
        if "weights" not in sequences:
            raise MissingCount("the rows have no `weights`: call Objective.weigh on the whole step")
        columns = self._with_old(columns)
        loss: Tensor = columns["policy"].new_zeros(())
        metrics: dict[str, Measure] = {}
        for place, term in enumerate(self.terms):
            keep = columns[term.mask]
            arguments = self._arguments(term, columns, sequences, keep)
            terms = term.loss.function(**arguments, **term.loss.options)
            weights = sequences["weights"][:, place]
            if term.loss.unit is Unit.TOKEN:
                weights = weights[columns["owner"][keep]]
            value = aggregate(terms, weights=weights)
            loss = loss + term.coefficient * value
            metrics[f"loss/{term.name}"] = total(float(value.detach()))
            if term.loss.measures is not None:
                with torch.no_grad():
                    measured = term.loss.measures(**arguments, **term.loss.options)
                for name, units in measured.items():
                    metrics[f"{term.name}/{name}"] = mean_of(float(units.sum()), units.numel())
        return loss, metrics

    def _with_old(self, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        match self.proximal:
            case Proximal.CURRENT:
                return {**columns, "old": columns["policy"].detach()}
            case Proximal.BEHAVIOUR if "behaviour" in columns:
                return {**columns, "old": columns["behaviour"]}
            case _:
                return columns

    @staticmethod
    def _arguments(
        term: Term, columns: Mapping[str, Tensor], sequences: Sequences, keep: Tensor
    ) -> dict[str, Tensor]:
        needs = term.loss.needs
        if missing := [name for name in needs.tokens if name not in columns]:
            raise WrongColumn(
                f"term {term.name!r} needs the token columns {', '.join(missing)},"
                f" which nobody provided; there are: {', '.join(sorted(columns))}"
            )
        tokens = {f"{name}_T": columns[name][keep] for name in needs.tokens}
        return tokens | {f"{name}_S": sequences[name] for name in needs.sequences}
