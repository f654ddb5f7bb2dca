"""The driver's side: a row store of its own, and a thread for each process that asks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import secrets
import socket
import socketserver
import threading
from collections.abc import Collection, Mapping
from multiprocessing import AuthenticationError, connection
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from hexpo.adapters.stores.served.client import RemoteRowStore
from hexpo.adapters.stores.served.messages import packed, plain, tensors
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import SCHEMA, Batch, Sequences
from hexpo.domain.errors import IllegalTransition, WrongBatch

_POLL = 0.05
"""Seconds between two looks whether serving has ended."""


def build(*, rows: RowStore) -> ServedRowStore:
    """A store that serves nobody yet. Args: rows: holds them; may be used from any thread."""
    return ServedRowStore(rows)


class ServedRowStore:
    """Implements the RowStore port by another one. Pickled, it becomes a client of this process."""

    def __init__(self, rows: RowStore) -> None:
        self._rows, self._key = rows, secrets.token_bytes(32)
        self._server: _Server | None = None

    def __reduce__(self) -> tuple[object, ...]:
        if self._server is None:
            raise IllegalTransition("the row store serves nobody yet: call listen(host) first")
        host, port = self._server.server_address[:2]
        return (RemoteRowStore, (str(host), int(port), self._key))

    def listen(self, host: str) -> None:
        """Serve whoever has the key. Args: host: this node's address, as the others reach it.
        Safe to call twice."""
        if self._server is None:
            self._server = _Server(host, self._rows, self._key)

    def put(self, batch: Batch) -> None:
        """Take a batch's tokens, under the ids of its rows."""
        self._rows.put(batch)

    def get(self, ids: Tensor, columns: Collection[str]) -> TensorDict:
        """(T, ...) columns of the rows `ids`, end to end, in that order."""
        return self._rows.get(ids, columns)

    def extend(self, ids: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add (T, ...) columns to rows that are here; `ids` in the tokens' order."""
        self._rows.extend(ids, columns)

    def drop(self, ids: Tensor) -> None:
        """Free rows."""
        self._rows.drop(ids)

    async def close(self) -> None:
        """Hang up on everybody. Safe to call twice."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.end)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size = True, 512

    def __init__(self, host: str, rows: RowStore, key: bytes) -> None:
        super().__init__((host, 0), _Answering)
        self.rows, self.key = rows, key
        self.open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        for each in tuple(self.open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Answering(socketserver.BaseRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        """Answer until the other end hangs up, or does not know the key."""
        self.server.open.add(self.request)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = connection.Connection(os.dup(self.request.fileno()))
        with line, contextlib.suppress(EOFError, OSError, AuthenticationError):
            connection.deliver_challenge(line, self.server.key)
            connection.answer_challenge(line, self.server.key)
            while True:
                line.send_bytes(self._answer(line.recv_bytes()))
        self.server.open.discard(self.request)

    def _answer(self, question: bytes) -> bytes:
        method, arguments = pickle.loads(question)
        try:
            return packed((False, getattr(self, f"_{method}")(*arguments)))
        except WrongBatch as error:
            return packed((True, error))

    def _put(self, sequences: Mapping[str, Any], schema: Any, columns: Mapping[str, Any]) -> None:
        rows = Sequences.of(tensors(sequences), SCHEMA if schema is None else schema)
        self.server.rows.put(Batch.of(rows, tensors(columns)))

    def _get(self, ids: list[int], columns: list[str]) -> tuple[int, dict[str, Any]]:
        found = self.server.rows.get(_ids(ids), columns)
        return found.shape[0], plain({name: found[name] for name in columns})

    def _extend(self, ids: list[int], columns: Mapping[str, Any]) -> None:
        self.server.rows.extend(_ids(ids), tensors(columns))

    def _drop(self, ids: list[int]) -> None:
        self.server.rows.drop(_ids(ids))


def _ids(ids: list[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64)
