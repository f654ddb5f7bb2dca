"""What row stores share: the index of rows, and its refusals."""

from hexpo.adapters.stores.wire.index import RowIndex

__all__ = ["RowIndex"]
