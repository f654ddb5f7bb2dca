"""Buckets in files that sender and receivers map, and the words that steer them.

Buckets lie in slots, which are used again and again. The sender takes any slot that all readers
are through with and of which none holds a tensor; `control` says in which one a bucket lies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import EngineFailed

HEAD = 1 << 18
"""Bytes before a bucket's data: the length of its listing, and the listing."""
_CONTROL, _DATA = "control", "buckets"
MOST_SLOTS = 64
_ATTEMPT, _WRITTEN, _TOTAL, _SENDER, _PLACES = range(5)
_CONFIRMED, _PROCESS, _DROPPED, _HOLDS = range(4)
_WORDS, _WORDS_A_READER = _PLACES + MOST_SLOTS, _HOLDS + MOST_SLOTS
_COUNT_BITS = 32

UNKNOWN, FAILED = -1, -2
"""Instead of a total: still sending; the sender failed."""


@attrs.frozen(kw_only=True)
class Place:
    """Where a ring is: an update's address, typed."""

    folder: str
    attempt: int
    """Counts up with each transfer: whoever still works on an older one learns of it."""
    bucket: int
    """Bytes of data in a bucket."""
    slots: int
    """Slots to begin with; 0: a bucket each, so that a version can be read later."""
    readers: tuple[str, ...]
    """Who reads while it is sent."""
    bound_seconds: float
    """Longest single wait."""

    @staticmethod
    def of(address: Mapping[str, Any]) -> Place:
        """Raises EngineFailed: the update was made by another transfer."""
        try:
            return Place(**{**address, "readers": tuple(address["readers"])})
        except (KeyError, TypeError) as error:
            raise EngineFailed(
                "the update was made by another transfer than shared_memory: sender, receivers and"
                " driver must be of one kind"
            ) from error

    @property
    def address(self) -> dict[str, Any]:
        """Plain."""
        return {**attrs.asdict(self), "readers": list(self.readers)}


def create(folder: Path, *, readers: Sequence[str], bucket: int, slots: int) -> None:
    """Make a ring's files. Raises EngineFailed: the folder's file system has no room for them."""
    folder.mkdir(parents=True, exist_ok=True)
    _reserve(folder / _CONTROL, 8 * (_WORDS + _WORDS_A_READER * len(readers)))
    _reserve(folder / _DATA, slots * (HEAD + bucket))


def _reserve(path: Path, size: int) -> None:
    """Memory is taken now: later its lack would end the process by a signal."""
    with path.open("a+b") as file:
        if size <= file.seek(0, os.SEEK_END):
            return
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise EngineFailed(
                f"{path.parent} has no room for {size / 2**20:.0f} MiB of weights"
                f" ({error.strerror}): give the transfer's `folder` another file system, or a"
                " smaller `bucket_mib`"
            ) from error


class Files:
    """A ring's files, mapped once for all attempts."""

    def __init__(self, folder: str) -> None:
        """Raises OSError: they are not here."""
        self.folder = Path(folder)
        with (self.folder / _CONTROL).open("r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._map: mmap.mmap | None = None

    def memory(self, start: int, end: int, gone: Callable[[], object] | None = None) -> Tensor:
        """(end - start,) uint8; the file grows where it must. Args: gone: called when the tensor
        and all of its views are."""
        if self._map is None or end > len(self._map):
            path = self.folder / _DATA
            _reserve(path, end)
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
        buffer = (ctypes.c_ubyte * (end - start)).from_buffer(self._map, start)
        if gone is not None:
            # Storage that views share keeps the buffer, and nothing else does.
            weakref.finalize(buffer, gone).atexit = False
        return torch.frombuffer(buffer, dtype=torch.uint8)


class Ring:
    """One attempt in a ring. Words are 64 bits and written at once, each by one process only."""

    def __init__(self, files: Files, place: Place) -> None:
        self.place, self._files, self._words = place, files, files.words

    # ---- the sender's words ----

    def begin(self) -> None:
        """Start the attempt."""
        words = self._words
        words[_WRITTEN], words[_TOTAL], words[_SENDER] = 0, UNKNOWN, os.getpid()
        words[_ATTEMPT] = self.place.attempt

    def put(self, bucket: int, slot: int) -> None:
        """A bucket is there, with all before it."""
        self._words[_PLACES + bucket % MOST_SLOTS] = slot
        self._words[_WRITTEN] = bucket + 1

    def end(self, total: int) -> None:
        """All are there, or FAILED."""
        self._words[_TOTAL] = total

    def drop(self, reader: int) -> None:
        """A reader that is too late: its slots are written over."""
        self._words[_of(reader, _DROPPED)] = self.place.attempt

    # ---- what readers see ----

    @property
    def is_begun(self) -> bool:
        return self._words[_ATTEMPT] == self.place.attempt

    @property
    def is_past(self) -> bool:
        """A later attempt has begun."""
        return self._words[_ATTEMPT] > self.place.attempt

    @property
    def written(self) -> int:
        return self._words[_WRITTEN]

    @property
    def total(self) -> int:
        """Buckets of the version; UNKNOWN or FAILED."""
        return self._words[_TOTAL]

    @property
    def sender(self) -> int:
        return self._words[_SENDER]

    def slot(self, bucket: int) -> int:
        """Where a bucket lies that is written and not confirmed."""
        return self._words[_PLACES + bucket % MOST_SLOTS] if self.place.slots else bucket

    def is_dropped(self, reader: int) -> bool:
        return self._words[_of(reader, _DROPPED)] == self.place.attempt

    # ---- the readers' words ----

    def join(self, reader: int) -> None:
        """A reader is there. What an earlier process held under its name died with it."""
        if self.process(reader) != os.getpid():
            for slot in range(MOST_SLOTS):
                self._words[_of(reader, _HOLDS) + slot] = 0
        self._words[_of(reader, _PROCESS)] = os.getpid()
        self.confirm(reader, 0)

    def confirm(self, reader: int, count: int) -> None:
        """So many buckets are read. Says of which attempt, as an older one may still be read."""
        self._words[_of(reader, _CONFIRMED)] = self.place.attempt << _COUNT_BITS | count

    def held(self, reader: int, slot: int) -> Tensor:
        """(HEAD + bucket,) uint8: a slot's memory, which the reader holds until this tensor and
        all views of it are gone."""
        word = _of(reader, _HOLDS) + slot
        self._words[word] = 1
        return self._memory(slot, partial(self._words.__setitem__, word, 0))

    # ---- what the sender sees of them ----

    def confirmed(self, reader: int) -> int | None:
        """What it read of the present attempt; None: it has not come yet."""
        word = self._words[_of(reader, _CONFIRMED)]
        attempt, count = word >> _COUNT_BITS, word & ((1 << _COUNT_BITS) - 1)
        return count if attempt == self.place.attempt else None

    def process(self, reader: int) -> int:
        """Id of the process that last joined as this reader; 0: none has."""
        return self._words[_of(reader, _PROCESS)]

    def is_held(self, reader: int, slot: int) -> bool:
        """Also what is left of an older attempt."""
        return bool(self._words[_of(reader, _HOLDS) + slot])

    # ---- memory ----

    def memory(self, slot: int) -> Tensor:
        """(HEAD + bucket,) uint8."""
        return self._memory(slot)

    def _memory(self, slot: int, gone: Callable[[], object] | None = None) -> Tensor:
        stride = HEAD + self.place.bucket
        return self._files.memory(slot * stride, (slot + 1) * stride, gone)


def _of(reader: int, word: int) -> int:
    return _WORDS + _WORDS_A_READER * reader + word


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
