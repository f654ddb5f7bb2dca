"""Inside an engine's process: reads buckets while they are written."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torch import Tensor

from hexpo.adapters.transfer.shared_memory.ring import HEAD, UNKNOWN, Files, Place, Ring, is_alive
from hexpo.adapters.transfer.wire.buckets import unpacked
from hexpo.adapters.transfer.wire.endings import sender_failed
from hexpo.adapters.transfer.wire.waiting import wait_until
from hexpo.application.ports.transfer import Receive, Update
from hexpo.domain.errors import EngineFailed

_LOOK_SECONDS = 0.05
"""How often a waiting receiver looks whether the sender lives."""


class _Receiver:
    """A ring stays mapped while its folder stays."""

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._files: Files | None = None

    def __call__(self, update: Update, *, keep: bool = False) -> Iterator[tuple[str, Tensor]]:
        place = Place.of(update.address)
        if self._files is None or str(self._files.folder) != place.folder:
            self._files = self._opened(place.folder)
        holds = keep and place.slots > 0
        buckets = self._buckets(Ring(self._files, place), update.version, holds=holds)
        return unpacked(buckets, keep=keep and not holds)

    def _opened(self, folder: str) -> Files:
        try:
            return Files(folder)
        except OSError as error:
            raise EngineFailed(
                f"{self._reader}: the weights' folder {folder} cannot be opened"
                f" ({error.strerror}); receivers must run on the sender's node"
            ) from error

    def _buckets(self, ring: Ring, version: int, *, holds: bool) -> Iterator[tuple[bytes, Tensor]]:
        place = ring.place
        number = place.readers.index(self._reader) if self._reader in place.readers else None
        if number is None and place.slots:
            raise EngineFailed(
                f"{self._reader} is not among the readers of version {version}"
                f" ({', '.join(place.readers)}); with `buckets = 0` it could read it later"
            )
        if number is not None:
            ring.join(number)
        count = 0
        while self._has_bucket(ring, place, count, version):
            slot = ring.slot(count)
            memory = ring.held(number, slot) if holds and number is not None else ring.memory(slot)
            length = int.from_bytes(bytes(memory[:8].tolist()), "little")
            yield bytes(memory[8 : 8 + length].numpy()), memory[HEAD:]
            count += 1
            self._require_present(ring, place, number, version)
            if number is not None:
                ring.confirm(number, count)

    def _has_bucket(self, ring: Ring, place: Place, count: int, version: int) -> bool:
        """Wait for bucket `count`; False: the version has no more."""
        looked = time.monotonic()

        def is_known() -> bool:
            nonlocal looked
            if ring.is_past:
                return True
            if ring.is_begun and (ring.written > count or ring.total != UNKNOWN):
                return True
            if time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                return ring.is_begun and not is_alive(ring.sender)
            return False

        awaited = f"{self._reader}: bucket {count} of version {version}"
        wait_until(is_known, bound_seconds=place.bound_seconds, awaited=awaited)
        self._require_present(ring, place, None, version)
        if ring.written > count:
            return True
        if ring.total != count:
            raise sender_failed(self._reader, version)
        return False

    def _require_present(self, ring: Ring, place: Place, number: int | None, version: int) -> None:
        if ring.is_past or (number is not None and ring.is_dropped(number)):
            raise EngineFailed(
                f"{self._reader} was too late for version {version}: its buckets were written over"
            )


def build_receiver(*, reader: str) -> Receive:
    """A receiver. Args: reader: the name that updates list it by."""
    return _Receiver(reader)
