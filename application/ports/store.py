"""Port: where the rows' tokens lie."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from tensordict import TensorDict
from torch import Tensor

from hexpo.domain.batch import Batch


class RowStore(Protocol):
    """Holds token columns by row id, so that rows go to engines without passing the driver.

    Promises: a column is written once for a row and never changed; a row is valid until dropped.
    Raises: WrongBatch: an unknown id, a column that is missing or written twice.
    """

    def put(self, batch: Batch) -> None:
        """Take a batch's tokens, under the ids of its rows."""
        ...

    def get(self, ids: Tensor, columns: Collection[str]) -> TensorDict:
        """(T, ...) columns of the rows `ids`, end to end, in that order."""
        ...

    def extend(self, ids: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add (T, ...) columns to rows that are here; `ids` in the tokens' order."""
        ...

    def drop(self, ids: Tensor) -> None:
        """Free rows."""
        ...
