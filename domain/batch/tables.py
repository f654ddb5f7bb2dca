"""What both tables of a batch need: names, declared kinds, and laying tables end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from hexpo.domain.batch.schema import Column
from hexpo.domain.errors import WrongBatch


def names_of(table: TensorDict) -> list[str]:
    """Column names, in the order in which they were written."""
    return [str(name) for name in table.keys()]


def column_of(table: TensorDict, name: str) -> Tensor:
    """A column that is there."""
    column = table.get(name)
    if not isinstance(column, Tensor):
        raise WrongBatch(f"column {name!r} is a {type(column).__name__}; a column is a tensor")
    return column


def columns_of(table: TensorDict) -> dict[str, Tensor]:
    """All columns by name."""
    return {name: column_of(table, name) for name in names_of(table)}


def table_of(columns: Mapping[str, Tensor], rows: int, what: str) -> TensorDict:
    """A table of so many rows. Raises WrongBatch: a column has another number of rows."""
    for name, tensor in columns.items():
        if tensor.dim() == 0 or tensor.shape[0] != rows:
            raise WrongBatch(
                f"{what} column {name!r} has shape {tuple(tensor.shape)}; its first axis must be"
                f" {rows}, the table's number of rows"
            )
    return TensorDict(dict(columns), [rows])


def rows_of(columns: Mapping[str, Tensor]) -> int:
    """How many rows the first column has; 0 where there is none."""
    return next((int(tensor.shape[0]) for tensor in columns.values() if tensor.dim()), 0)


def require_declared(table: TensorDict, declared: Mapping[str, Column], what: str) -> None:
    """Raises WrongBatch: a column that the schema lacks, or another dtype or trailing axes."""
    for name, tensor in columns_of(table).items():
        if name not in declared:
            raise WrongBatch(f"{what} column {name!r} is not in the schema; declare it first")
        column = declared[name]
        if tensor.dtype is not column.dtype:
            raise WrongBatch(f"{what} column {name!r} is {tensor.dtype}, declared {column.dtype}")
        trailing = tuple(tensor.shape[1:])
        fits = len(trailing) == len(column.trailing) and all(
            want is None or want == have
            for want, have in zip(column.trailing, trailing, strict=True)
        )
        if not fits:
            raise WrongBatch(
                f"{what} column {name!r} has trailing axes {trailing}, declared {column.trailing}"
            )


def end_to_end(tables: Sequence[TensorDict], what: str) -> TensorDict:
    """Rows of all tables, in order.

    Raises: WrongBatch: nothing is given, or the tables differ in columns, dtypes or trailing axes;
        torch would promote a dtype without a word.
    """
    if not tables:
        raise WrongBatch(f"nothing to concatenate: no {what} table was given")
    names = [set(names_of(table)) for table in tables]
    shared: set[str] = names[0].intersection(*names[1:])
    if differing := names[0].union(*names[1:]) - shared:
        raise WrongBatch(f"{what} tables differ in columns: {', '.join(sorted(differing))}")
    columns = {}
    for name in names_of(tables[0]):
        parts = [column_of(table, name) for table in tables]
        kinds = {(part.dtype, tuple(part.shape[1:])) for part in parts}
        if len(kinds) > 1:
            listed = ", ".join(sorted(f"{dtype} {list(axes)}" for dtype, axes in kinds))
            raise WrongBatch(f"{what} column {name!r} differs between tables: {listed}")
        columns[name] = torch.cat(parts)
    return TensorDict(columns, [sum(int(table.shape[0]) for table in tables)])


def places_of(index: Tensor | slice | Sequence[int], rows: int) -> Tensor:
    """(N,) int64 places that an index (places, a bool mask, a slice) names among so many rows."""
    if isinstance(index, slice):
        return torch.tensor(range(*index.indices(rows)), dtype=torch.int64)
    chosen = index if isinstance(index, Tensor) else torch.tensor(index)
    if not chosen.numel():
        return torch.zeros(0, dtype=torch.int64)
    return torch.arange(rows)[chosen]


def even_sizes(rows: int, parts: int) -> list[int]:
    """`parts` sizes that add up to `rows` and differ by at most one, larger ones first.

    Raises: WrongBatch: there are no parts.
    """
    if parts < 1:
        raise WrongBatch(f"cannot cut {rows} rows into {parts} parts; ask for at least one")
    each, more = divmod(rows, parts)
    return [each + (place < more) for place in range(parts)]
