"""A row store in shared memory: every process of a node reads the rows where they lie.

Each `put` and `extend` makes one file; each `drop` makes a note. Both carry a time in their name,
so that every process reads them in one order. It pickles to the name of its folder.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import BinaryIO

import attrs
from tensordict import TensorDict
from torch import Tensor

from hexpo.adapters.stores.mapped.blocks import read_block, write_block
from hexpo.adapters.stores.mapped.mappings import Mappings
from hexpo.adapters.stores.mapped.spares import Spares
from hexpo.adapters.stores.wire import RowIndex
from hexpo.domain.batch import SCHEMA, Batch, Schema
from hexpo.domain.errors import WrongBatch

_PREFIX, _OWNED = "hexpo-rows-", "owned"
_BLOCK, _NOTE = ".rows", ".gone"
_SHARED = Path("/dev/shm")


@attrs.frozen(kw_only=True)
class Config:
    """Where the rows lie."""

    folder: str = ""
    """A folder of a file system in memory; empty: the system's shared memory."""
    spare_bytes: int = attrs.field(default=1 << 28, validator=attrs.validators.ge(0))
    """Memory of dropped rows that is kept, to be written over by later ones; 0 keeps none."""


def build(config: Config | None = None, *, schema: Schema = SCHEMA) -> MappedRowStore:
    """An empty store of its own folder, which ends with this process. What killed processes left
    in the same place is removed."""
    config = config or Config()
    default = _SHARED if _SHARED.is_dir() else Path(tempfile.gettempdir())
    place = Path(config.folder) if config.folder else default
    place.mkdir(parents=True, exist_ok=True)
    _clear_up(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    lock = (folder / _OWNED).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return MappedRowStore(folder, schema, lock, spare_bytes=config.spare_bytes)


def _clear_up(place: Path) -> None:
    """Remove folders whose owner has died: nobody holds their lock."""
    for folder in place.glob(f"{_PREFIX}*"):
        try:
            with (folder / _OWNED).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # it is owned, or is being made or removed


def _remove(folder: Path, lock: BinaryIO) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


class MappedRowStore:
    """Implements the RowStore port; may be used from any thread and, pickled, from any process of
    the node. Rows are valid in all of them as soon as the call that wrote them has returned.
    """

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        lock: BinaryIO | None = None,
        *,
        spare_bytes: int = Config().spare_bytes,
    ) -> None:
        """Args: lock: held by the process that owns the folder, and removes it."""
        self._folder, self._schema, self._spare_bytes = folder, schema, spare_bytes
        self._spares = Spares(folder, most_bytes=spare_bytes)
        self._mappings = Mappings(folder)
        self._index = RowIndex(schema)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._rows: dict[str, set[int]] = {}
        """Of each block, those that are not dropped."""
        self._end = None if lock is None else weakref.finalize(self, _remove, folder, lock)

    def __reduce__(self) -> tuple[object, ...]:
        return (_opened, (self._folder, self._schema, self._spare_bytes))

    def __len__(self) -> int:
        with self._lock:
            self._refresh()
            return len(self._index)

    @property
    def folder(self) -> Path:
        """Its name."""
        return self._folder

    def put(self, batch: Batch) -> None:
        """Take a batch's tokens, under the ids of its rows: one copy, into shared memory."""
        with self._lock:
            self._refresh()
            self._index.require_new(batch)
            rows = batch.sequences
            self._write(rows.ids, rows.lengths, batch.columns)

    def extend(self, ids: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add (T, ...) columns to rows that are here; `ids` in the tokens' order."""
        with self._lock:
            self._refresh()
            lengths = self._index.require_unwritten(ids, columns)
            self._write(ids, ids.new_tensor(lengths), columns)

    def get(self, ids: Tensor, columns: Collection[str]) -> TensorDict:
        """(T, ...) columns of the rows `ids`, end to end, in that order: a copy."""
        with self._lock:
            self._refresh()
            return self._index.get(ids, columns)

    def drop(self, ids: Tensor) -> None:
        """Free rows, in all processes; a file goes with the last of its rows."""
        with self._lock:
            self._refresh()
            rows: list[int] = ids.tolist()
            self._index.lengths_of(rows)
            note = self._folder / self._name(_NOTE)
            unfinished = note.with_suffix(".part")
            unfinished.write_text(json.dumps(rows))
            unfinished.replace(note)
            self._seen.add(note.name)
            for block in self._forget(rows):
                self._spares.keep(self._folder / block)
                self._leave(block)
            self._clear_notes()
            self._mappings.trim()

    def close(self) -> None:
        """Remove the folder, if it is this one's own. Safe to call twice."""
        if self._end is not None:
            self._end()

    def _name(self, ending: str) -> str:
        return f"{time.time_ns():020d}-{os.getpid()}-{next(self._numbers)}{ending}"

    def _write(self, ids: Tensor, lengths: Tensor, columns: Mapping[str, Tensor]) -> None:
        if len(ids):
            name = self._name(_BLOCK)
            path = self._folder / name
            write_block(path, ids, lengths, columns, spares=self._spares, mappings=self._mappings)
            self._adopt(name)

    def _refresh(self) -> None:
        """Take notice of what other processes wrote and dropped."""
        try:
            names = {name for name in os.listdir(self._folder) if name.endswith((_BLOCK, _NOTE))}
        except FileNotFoundError:
            raise WrongBatch(f"the row store {self._folder} is closed") from None
        removed = self._seen - names
        for name in removed:  # and its note perhaps too
            self._forget(list(self._rows.get(name, ())))
            self._leave(name)
        if removed:
            self._mappings.trim()
        for name in sorted(names - self._seen):
            if name.endswith(_NOTE):
                self._read_note(name)
            else:
                self._adopt(name)

    def _adopt(self, name: str) -> None:
        try:
            block = read_block(self._folder / name, self._mappings)
        except FileNotFoundError:
            return
        self._seen.add(name)
        self._index.add(block.ids, block.lengths, block.columns)
        self._rows[name] = set(block.ids)

    def _read_note(self, name: str) -> None:
        try:
            rows = json.loads((self._folder / name).read_text())
        except FileNotFoundError:
            return
        self._seen.add(name)
        self._forget(rows)

    def _forget(self, rows: list[int]) -> list[str]:
        """Rows are gone; gives the blocks that have none left."""
        self._index.drop(rows)
        gone, empty = set(rows), []
        for block, left in self._rows.items():
            if not left.isdisjoint(gone):
                left -= gone
                if not left:
                    empty.append(block)
        return empty

    def _leave(self, name: str) -> None:
        self._seen.discard(name)
        self._rows.pop(name, None)

    def _clear_notes(self) -> None:
        """A note is needed as long as there is an older block."""
        blocks = [name for name in self._seen if name.endswith(_BLOCK)]
        oldest = min(blocks, default="~")
        for name in [name for name in self._seen if name.endswith(_NOTE) and name < oldest]:
            (self._folder / name).unlink(missing_ok=True)
            self._seen.discard(name)


def _opened(folder: Path, schema: Schema, spare_bytes: int) -> MappedRowStore:
    """Another process's view of a store."""
    return MappedRowStore(folder, schema, spare_bytes=spare_bytes)
