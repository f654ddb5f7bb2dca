"""How a mask takes effect: it narrows `trained`, and the rows' counts follow (A2)."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.batch import Batch
from hexpo.domain.checks import require_same_axes
from hexpo.domain.ragged import row_counts


def restrict(batch: Batch, keep_T: Tensor) -> Batch:
    """The same batch with `trained` narrowed to `keep_T`, in both tables.

    Args: keep_T: (T,) bool over all tokens of the batch; what it says of others is of no matter.
    Raises: WrongColumn: axes differ.
    """
    require_same_axes(trained=batch.tokens["trained"], keep=keep_T)
    trained_T = batch.tokens["trained"] & keep_T
    counts_S = row_counts(batch.owner[trained_T], rows=len(batch))
    return Batch.of(
        batch.sequences.with_columns(trained=counts_S), {**batch.tokens, "trained": trained_T}
    )


def spread(selected_N: Tensor, where_T: Tensor) -> Tensor:
    """(T,) bool: a mask of the tokens selected by `where_T`, put back in its place.

    Args: selected_N: (N,) bool, one for each true place of `where_T` (T,).
    """
    return where_T.masked_scatter(where_T, selected_N)
