"""What the columns of a batch are called, hold and mean.

A token column is of one of two kinds. *Predicted*: at i it speaks of choosing token i given the
tokens before it; at a sequence's first token it is 0 and means nothing. *Input*: at i it speaks
of token i as it is read. The label shift therefore exists in one place: the model's head.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import attrs
import torch


class Table(Enum):
    """The two tables of a batch."""

    SEQUENCES = "sequences"
    """A row is one trajectory."""
    TOKENS = "tokens"
    """A row is one token, all sequences end to end."""


class Kind(Enum):
    """What a token column speaks of; `ROW` for columns of the sequences table."""

    INPUT = "input"
    """Token i as it is read."""
    PREDICTED = "predicted"
    """The choice of token i given the tokens before it."""
    ROW = "row"
    """The whole trajectory."""


@attrs.frozen
class Column:
    """One column's declaration."""

    name: str
    table: Table
    kind: Kind
    dtype: torch.dtype
    trailing: tuple[int | None, ...] = ()
    """Sizes of the axes after the row axis; None is any size (top-k, layers, components)."""


def _row(name: str, dtype: torch.dtype, trailing: tuple[int | None, ...] = ()) -> Column:
    return Column(name, Table.SEQUENCES, Kind.ROW, dtype, trailing)


def _input(name: str, dtype: torch.dtype) -> Column:
    return Column(name, Table.TOKENS, Kind.INPUT, dtype)


def _predicted(
    name: str, dtype: torch.dtype = torch.float32, trailing: tuple[int | None, ...] = ()
) -> Column:
    return Column(name, Table.TOKENS, Kind.PREDICTED, dtype, trailing)


_COLUMNS = (
    # sequences: written when a trajectory is assembled
    _row("id", torch.int64),  # the sequence's name: never its place
    _row("group", torch.int64),  # the ticket that issued the prompt: equal for its samples only
    _row("length", torch.int64),  # tokens of prompt and answer together
    _row("prompt_length", torch.int64),  # tokens before the first answer
    _row("actions", torch.int64),  # tokens that the policy sampled
    _row("trained", torch.int64),  # action tokens left after every mask
    _row("score", torch.float64),  # outcome as graded; meaningless where `scored` is false
    _row("shaped", torch.float64),  # the outcome that estimators see, where rewards are shaped
    _row("greedy", torch.float64),  # outcome of the prompt's greedy answer; NaN where none
    _row("role", torch.int64),  # names the environment and the role in it
    _row("scored", torch.bool),  # unscored is a state, not a number
    _row("components", torch.float64, (None,)),  # reward components, NaN where absent
    _row("stop", torch.int64),  # a StopReason
    _row("admitted", torch.int64),  # policy version at which the prompt was admitted
    # sequences: written later
    _row("kept", torch.int64),  # trained tokens left after masks of stored columns
    _row("taught", torch.int64),  # tokens left that a teacher spoke of
    _row("observation", torch.int64),  # observed tokens that a term may learn
    _row("taught_by", torch.int64),  # place of the row's teacher; -1 where it has none
    _row("weights", torch.float64, (None,)),  # of one unit, for each term of the objective
    _row("advantage", torch.float32),  # of an outcome estimator; spread over the row's tokens
    _row("chosen", torch.bool),  # the better of its pair (group), or judged good
    _row("reference_point", torch.float32),  # of KTO: one number an optimizer step, in its rows
    # tokens: written when a trajectory is assembled
    _input("token", torch.int64),
    _input("position", torch.int64),
    _predicted("action", torch.bool),  # role: sampled by the policy
    _predicted("trained", torch.bool),  # role and every mask together: what losses select
    _predicted("behaviour"),  # log-prob under the policy that sampled the token, nats
    _predicted("version", torch.int64),  # policy version that sampled the token
    _predicted("reward"),  # token reward
    # tokens: one block per later writer
    _predicted("old"),  # log-prob under the proximal policy
    _predicted("reference"),  # log-prob under the reference
    _predicted("value"),  # critic's value of the state before token i
    _predicted("return"),  # the critic's target
    _predicted("advantage"),  # of a token estimator
    _predicted("squares"),  # sum of the squared probabilities at token i
    _predicted("kept", torch.bool),  # trained tokens left after masks of stored columns
    _predicted("entropy"),  # of the policy's distribution at token i, nats
    _predicted("correction"),  # importance weight against the sampler, made before the step
    _predicted("repeats"),  # how often its row is drawn again, made before the step
    _predicted("covariant", torch.bool),  # chosen by covariance over the whole step
    _predicted("teacher"),  # log-prob under the row's teacher; NaN where it gave none
    _predicted("teacher_topk", trailing=(None,)),  # its log-probs of the ids it kept
    _predicted("teacher_ids", torch.int64, (None,)),  # those ids
    _predicted("taught", torch.bool),  # trained (or kept) tokens that a teacher spoke of
    _predicted("taught_by", torch.int64),  # of the token's row
    _predicted("reference_topk", trailing=(None,)),  # the reference's log-probs of its likeliest
    _predicted("reference_ids", torch.int64, (None,)),  # those ids
    _predicted("observation", torch.bool),  # tool and user tokens that a term may learn
    _predicted("observation_weight"),  # of the token's role in that term
)


@attrs.frozen
class Schema:
    """The declared columns of both tables."""

    sequences: Mapping[str, Column]
    tokens: Mapping[str, Column]

    @staticmethod
    def of(*columns: Column) -> Schema:
        """Build a schema from declarations. A name may stand in each table once."""

        def declared(table: Table) -> Mapping[str, Column]:
            return MappingProxyType({each.name: each for each in columns if each.table is table})

        return Schema(declared(Table.SEQUENCES), declared(Table.TOKENS))

    def with_columns(self, *columns: Column) -> Schema:
        """This schema and some more columns (a teacher's top-k, an environment's own)."""
        return Schema.of(*self.sequences.values(), *self.tokens.values(), *columns)

    def __reduce__(self) -> tuple[object, ...]:  # mapping proxies do not pickle
        return (Schema.of, (*self.sequences.values(), *self.tokens.values()))


SCHEMA = Schema.of(*_COLUMNS)
"""The columns that hexpo itself reads and writes."""
