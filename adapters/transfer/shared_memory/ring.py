"""A ring of buckets in files that sender and receivers map, and the words that steer it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import EngineFailed

HEAD = 1 << 18
"""Bytes before a bucket's data: the length of its listing, and the listing."""
_CONTROL, _DATA = "control", "buckets"
_WORDS, _WORDS_A_READER = 8, 3
_ATTEMPT, _WRITTEN, _TOTAL, _SENDER = range(4)
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
    """Buckets of the ring; 0: one after the other, so that a version can be read later."""
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
        self._data = torch.empty(0, dtype=torch.uint8)

    def memory(self, start: int, end: int) -> Tensor:
        """(end - start,) uint8; the file grows where it must."""
        if end > len(self._data):
            path = self.folder / _DATA
            _reserve(path, end)
            with path.open("r+b") as file:
                self._data = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)
        return self._data[start:end]


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

    def put(self, written: int) -> None:
        """So many buckets are there."""
        self._words[_WRITTEN] = written

    def end(self, total: int) -> None:
        """All are there, or FAILED."""
        self._words[_TOTAL] = total

    def drop(self, reader: int) -> None:
        """A reader that is too late: its slots are written over."""
        self._words[_WORDS + _WORDS_A_READER * reader + 2] = self.place.attempt

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

    # ---- the readers' words ----

    def join(self, reader: int) -> None:
        """A reader is there."""
        self._words[_WORDS + _WORDS_A_READER * reader + 1] = os.getpid()
        self.confirm(reader, 0)

    def confirm(self, reader: int, count: int) -> None:
        """So many buckets are read. Says of which attempt, as an older one may still be read."""
        word = self.place.attempt << _COUNT_BITS | count
        self._words[_WORDS + _WORDS_A_READER * reader] = word

    def confirmed(self, reader: int) -> int | None:
        """What it read of the present attempt; None: it has not come yet."""
        word = self._words[_WORDS + _WORDS_A_READER * reader]
        attempt, count = word >> _COUNT_BITS, word & ((1 << _COUNT_BITS) - 1)
        return count if attempt == self.place.attempt else None

    def process(self, reader: int) -> int:
        """Id of the process that last joined as this reader; 0: none has."""
        return self._words[_WORDS + _WORDS_A_READER * reader + 1]

    def is_dropped(self, reader: int) -> bool:
        return self._words[_WORDS + _WORDS_A_READER * reader + 2] == self.place.attempt

    # ---- memory ----

    def memory(self, number: int) -> Tensor:
        """(HEAD + bucket,) uint8: the memory of a bucket."""
        stride = HEAD + self.place.bucket
        slot = number % self.place.slots if self.place.slots else number
        return self._files.memory(slot * stride, (slot + 1) * stride)


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
