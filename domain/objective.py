"""An objective is a sum of named terms, each with its own coefficient, mask and denominator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType

import attrs
import torch
from torch import Tensor

from hexpo.domain.aggregate import Unit, row_weights
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import MissingCount
from hexpo.domain.metrics import Measure
from hexpo.domain.term import Factor, Loss, Split, Term, evaluated

__all__ = [
    "DISTRIBUTIONS",
    "HEAD_STATISTICS",
    "KEPT_IDS",
    "WHOLE",
    "Factor",
    "Loss",
    "Objective",
    "Proximal",
    "Split",
    "Term",
]

KEPT_IDS: Mapping[str, str] = MappingProxyType(
    {"policy_topk": "teacher_ids", "policy_reference_topk": "reference_ids"}
)
"""Head statistics (T, K), log-probs that the policy gives to kept ids; and the ids' columns."""

WHOLE = frozenset({"policy_logprobs", "reference_logprobs"})
"""Head statistics (T, V): whole distributions. They exist for a chunk of tokens at a time."""

DISTRIBUTIONS = WHOLE | KEPT_IDS.keys()
"""Head statistics with an axis of ids."""

HEAD_STATISTICS = DISTRIBUTIONS | {"policy", "entropy", "prediction", "mtp"}
"""Columns that the model's last step makes for the current model, with their gradients.

`prediction` is the scalar of a critic or a reward model, `policy_topk` (T, K) the log-probs that
the policy gives to the ids that a teacher kept, `reference_logprobs` (T, V) the reference's, a
constant, `mtp` the mean log-prob of the multi-token heads. An engine refuses those that it cannot
make.
"""


class Proximal(Enum):
    """Which policy `old` is."""

    CURRENT = "current"
    """The current one, gradient stopped: exact where a batch makes one optimizer step."""
    STORED = "stored"
    """The column `old`, scored before the first step of a batch that makes several."""
    BEHAVIOUR = "behaviour"
    """The policy that sampled (bypass): no scoring pass, and staleness is clipped with it."""


@attrs.frozen(kw_only=True)
class Objective:
    """What one optimizer step minimises."""

    terms: tuple[Term, ...] = attrs.field(validator=attrs.validators.min_len(1))
    proximal: Proximal = Proximal.CURRENT

    @property
    def token_columns(self) -> frozenset[str]:
        """Stored token columns that the terms read, masks included."""
        names = {name for term in self.terms for name in term.token_columns}
        names |= {term.mask for term in self.terms}
        names |= {KEPT_IDS[name] for name in names & KEPT_IDS.keys()}
        if "old" in names and self.proximal is not Proximal.STORED:
            names.discard("old")
            if self.proximal is Proximal.BEHAVIOUR:
                names.add("behaviour")
        return frozenset(names - HEAD_STATISTICS - {"owner"})

    @property
    def sequence_columns(self) -> frozenset[str]:
        """Columns of the sequences table that the terms read, beside those of `weigh`."""
        return frozenset(name for term in self.terms for name in term.sequence_columns)

    @property
    def statistics(self) -> frozenset[str]:
        """Head statistics that the terms read."""
        names = {name for term in self.terms for name in term.token_columns}
        return frozenset(names & HEAD_STATISTICS)

    @property
    def separable(self) -> bool:
        """Whether each token's gradient depends on that token alone, so that a head may make the
        loss and its gradient chunk by chunk in one pass."""
        return all(
            term.loss.unit is Unit.TOKEN and "owner" not in term.token_columns
            for term in self.terms
        )

    @property
    def compares(self) -> tuple[int, ...]:
        """Places of the terms that read distributions."""
        return tuple(
            place for place, term in enumerate(self.terms) if term.token_columns & DISTRIBUTIONS
        )

    @property
    def foresees(self) -> tuple[int, ...]:
        """Places of the terms that read a multi-token head."""
        return tuple(place for place, term in enumerate(self.terms) if "mtp" in term.token_columns)

    def take(self, places: Sequence[int], rows: Sequences) -> tuple[Objective, Sequences]:
        """Some of the terms, and weighed rows with the weights of these terms."""
        terms = tuple(self.terms[place] for place in places)
        weights = rows["weights"][:, list(places)]
        return attrs.evolve(self, terms=terms), rows.with_columns(weights=weights)

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

    def silent(self, rows: Sequences) -> Tensor:
        """(S,) bool: rows that surely add nothing to the gradient, by the advantage of the row.

        They may be left out after `weigh`, which has counted them in every denominator.
        """
        pulling = [term for term in self.terms if term.coefficient != 0]
        if "advantage" in rows and all(term.loss.silent_at_zero_advantage for term in pulling):
            return rows["advantage"] == 0
        return torch.zeros(len(rows), dtype=torch.bool)

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
        values: list[Tensor] = []
        metrics: dict[str, Measure] = {}
        for place, term in enumerate(self.terms):
            weights_S = sequences["weights"][:, place]
            value, measured = evaluated(term, columns, sequences, weights_S)
            metrics |= measured
            if value is not None:
                values.append(term.coefficient * value)
        return sum(values[1:], start=values[0]) if values else torch.zeros(()), metrics

    def _with_old(self, columns: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        match self.proximal:
            case Proximal.CURRENT if "policy" in columns:
                return {**columns, "old": columns["policy"].detach()}
            case Proximal.BEHAVIOUR if "behaviour" in columns:
                return {**columns, "old": columns["behaviour"]}
            case _:
                return columns
