"""What a served row store is in another process: each call is a question over the network."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Collection, Mapping
from multiprocessing import AuthenticationError, connection
from typing import Any

from tensordict import TensorDict
from torch import Tensor

from hexpo.adapters.stores.served.messages import packed, plain, tensors
from hexpo.domain.batch import SCHEMA, Batch, Schema
from hexpo.domain.batch.tables import table_of
from hexpo.domain.errors import EngineFailed


class RemoteRowStore:
    """Implements the RowStore port; may be used from any thread, one call at a time. Connects when
    it is first asked."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        """Args: key: who has it may ask."""
        self._address, self._key = (host, port), key
        self._lock = threading.Lock()
        self._connection: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        return (RemoteRowStore, (*self._address, self._key))

    def put(self, batch: Batch) -> None:
        """Send a batch's rows."""
        rows = batch.sequences
        schema: Schema | None = None if rows.schema is SCHEMA else rows.schema
        self._ask("put", plain(rows.columns), schema, plain(batch.columns))

    def get(self, ids: Tensor, columns: Collection[str]) -> TensorDict:
        """(T, ...) columns of the rows `ids`, end to end, in that order."""
        length, found = self._ask("get", ids.tolist(), sorted(columns))
        return table_of(tensors(found), length, "tokens")

    def extend(self, ids: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add (T, ...) columns to rows that are there; `ids` in the tokens' order."""
        self._ask("extend", ids.tolist(), plain(columns))

    def drop(self, ids: Tensor) -> None:
        """Free rows."""
        self._ask("drop", ids.tolist())

    def close(self) -> None:
        """Hang up. Safe to call twice."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Raises: what the store raised. EngineFailed: nobody answers there."""
        question = packed((method, arguments))
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = connection.Client(self._address, authkey=self._key)
                self._connection.send_bytes(question)
                answer = self._connection.recv_bytes()
            except (OSError, EOFError, AuthenticationError) as error:
                self._connection = None
                host, port = self._address
                raise EngineFailed(
                    f"the driver's row store at {host}:{port} does not answer ({error}); is the"
                    " driver alive, and may this node reach it?"
                ) from error
        failed, value = pickle.loads(answer)
        if failed:
            raise value
        return value
