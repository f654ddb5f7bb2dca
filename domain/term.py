"""One summand of an objective: its loss, what weighs its tokens, and its sum over some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.aggregate import Mode, Unit, aggregate, pair_weights
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import WrongColumn, WrongValue
from hexpo.domain.metrics import Measure, mean_of, total
from hexpo.domain.ragged import row_means
from hexpo.domain.signature import Needs, needs_of


@attrs.frozen(kw_only=True)
class Loss:
    """A loss function and its options."""

    function: Callable[..., Tensor]
    """Takes columns by name (see `signature`), returns one number a unit."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    unit: Unit = Unit.TOKEN
    measures: Callable[..., Mapping[str, Tensor]] | None = None
    """Takes what `function` takes, returns per-unit values whose means are metrics."""
    silent_at_zero_advantage: bool = False
    """Where the advantage is 0 its gradient is exactly 0, so that such a row need not be run."""

    @property
    def needs(self) -> Needs:
        """Columns of the function."""
        return needs_of(self.function)


@attrs.frozen(kw_only=True)
class Factor:
    """Multiplies each token's part of a term, but not the term's denominator. No gradient flows
    through it.

    Importance weights (`correction`) and gates that read the current policy (`masks`).
    """

    name: str
    function: Callable[..., Tensor]
    """Takes columns by name (see `signature`), returns (N,), one a token of the term."""
    options: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def needs(self) -> Needs:
        """Columns of the function."""
        return needs_of(self.function)


@attrs.frozen(kw_only=True)
class Split:
    """Reports a term's metrics for parts of its tokens too, such as those of each teacher."""

    column: str
    """Int64 token column; n at a token of the n-th of `names`."""
    names: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Term:
    """One summand."""

    name: str
    loss: Loss
    coefficient: float = 1.0
    """0: the loss is not taken, only measured."""
    mode: Mode = Mode.TOKEN_MEAN
    mask: str = "trained"
    """Bool token column: tokens that belong to this term, and count in its denominator only."""
    count: str = "trained"
    """Sequences column with the number of such tokens of each row."""
    constant: float | None = None
    """Divisor of `seq-mean-token-sum-norm`, in tokens."""
    factors: tuple[Factor, ...] = ()
    """Weights and gates; a row's number takes the mean over the row's tokens."""
    split: Split | None = None
    """Further metrics of parts of the tokens; token units only."""

    def __attrs_post_init__(self) -> None:
        if self.factors and self.loss.unit is Unit.PAIR:
            raise WrongValue(f"term {self.name!r} has pairs, which take no weights or gates")
        if self.split is not None and self.loss.unit is not Unit.TOKEN:
            raise WrongValue(f"term {self.name!r} is no term of tokens, so it has no parts of them")

    @property
    def token_columns(self) -> frozenset[str]:
        """Token columns of the loss, of its factors and of the split."""
        parts: tuple[Loss | Factor, ...] = (self.loss, *self.factors)
        names = frozenset(name for part in parts for name in part.needs.tokens)
        return names if self.split is None else names | {self.split.column}

    @property
    def sequence_columns(self) -> frozenset[str]:
        """Sequences columns of the loss and of its factors."""
        parts: tuple[Loss | Factor, ...] = (self.loss, *self.factors)
        return frozenset(name for part in parts for name in part.needs.sequences)


def evaluated(
    term: Term, columns: Mapping[str, Tensor], sequences: Sequences, weights_S: Tensor
) -> tuple[Tensor | None, dict[str, Measure]]:
    """A term's weighted sum, before its coefficient, and its metrics. The sum is None where the
    coefficient is 0: such a term is only measured."""
    keep_T = columns[term.mask]
    owner_T = columns["owner"][keep_T]
    arguments = _arguments(term, term.loss.needs, columns, sequences, keep_T)
    weights = _unit_weights(term, weights_S, owner_T, sequences)
    counted = weights > 0  # a dead row is left out, whatever its columns hold (A3, A4)
    parts = _parts(term, columns, keep_T)
    value, metrics = None, dict[str, Measure]()
    if term.coefficient != 0:
        terms = term.loss.function(**arguments, **term.loss.options)
        for factor in term.factors:
            needed = _arguments(term, factor.needs, columns, sequences, keep_T)
            factor_T = factor.function(**needed, **factor.options).detach()
            metrics |= _factor_metrics(f"{term.name}/{factor.name}", factor_T)
            if term.loss.unit is Unit.SEQUENCE:
                factor_T = row_means(factor_T, owner_T, rows=len(sequences))
            terms = torch.where(factor_T == 0, 0.0, terms * factor_T)
        value = aggregate(terms[counted], weights=weights[counted])
        metrics[f"loss/{term.name}"] = total(float(value.detach()))
        for name, is_part in parts.items():
            share = terms.detach()[is_part] * weights[is_part]
            metrics[f"loss/{term.name}/{name}"] = total(float(share[counted[is_part]].sum()))
    if term.loss.measures is not None:
        with torch.no_grad():
            measured = term.loss.measures(**arguments, **term.loss.options)
        for name, units in measured.items():
            units = units.detach()
            metrics[f"{term.name}/{name}"] = _mean(units[counted])
            for part, is_part in parts.items():
                metrics[f"{term.name}/{part}/{name}"] = _mean(units[counted & is_part])
    for part, is_part in parts.items():
        metrics[f"{term.name}/{part}/tokens"] = total(int((counted & is_part).sum()))
    return value, metrics


def _mean(units: Tensor) -> Measure:
    return mean_of(float(units.sum()), units.numel())


def _parts(term: Term, columns: Mapping[str, Tensor], keep_T: Tensor) -> dict[str, Tensor]:
    """Which of the term's tokens belong to each name of its split."""
    if term.split is None:
        return {}
    which = columns[term.split.column][keep_T]
    return {name: which == place for place, name in enumerate(term.split.names)}


def _unit_weights(term: Term, weights_S: Tensor, owner_T: Tensor, sequences: Sequences) -> Tensor:
    """The weight of each of the term's units."""
    match term.loss.unit:
        case Unit.TOKEN:
            return weights_S[owner_T]
        case Unit.SEQUENCE:
            return weights_S
        case Unit.PAIR:
            return pair_weights(weights_S, sequences["group"])


def _factor_metrics(name: str, factor_T: Tensor) -> dict[str, Measure]:
    """Means whose quotient mean^2 / mean_square is the effective share of the tokens."""
    tokens = factor_T.numel()
    return {
        f"{name}/mean": mean_of(float(factor_T.sum()), tokens),
        f"{name}/mean_square": mean_of(float(factor_T.square().sum()), tokens),
        f"{name}/zero_share": mean_of(float((factor_T == 0).sum()), tokens),
    }


def _arguments(
    term: Term,
    needs: Needs,
    columns: Mapping[str, Tensor],
    sequences: Sequences,
    keep_T: Tensor,
) -> dict[str, Tensor]:
    if missing := [name for name in needs.tokens if name not in columns]:
        raise WrongColumn(
            f"term {term.name!r} needs the token columns {', '.join(missing)},"
            f" which nobody provided; there are: {', '.join(sorted(columns))}"
        )
    tokens = {f"{name}_T": columns[name][keep_T] for name in needs.tokens}
    return tokens | {f"{name}_S": sequences[name] for name in needs.sequences}
