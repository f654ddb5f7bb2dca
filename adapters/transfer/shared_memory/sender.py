"""Beside the weights: writes buckets, and waits for the slowest reader's slot."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from hexpo.adapters.transfer.shared_memory.ring import FAILED, HEAD, Files, Place, Ring, is_alive
from hexpo.adapters.transfer.wire.buckets import Packer
from hexpo.adapters.transfer.wire.stream import whole
from hexpo.adapters.transfer.wire.waiting import wait_until
from hexpo.application.ports.transfer import Digest, Send, Update, Weight
from hexpo.domain.digest import Digester
from hexpo.domain.errors import EngineFailed

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
"""How often a waiting sender looks whether readers live."""
_PATIENCE = 0.5
"""Share of the bound that the sender waits for a reader; readers wait for it all the bound."""


class _Sender:
    """A ring stays mapped while its folder stays."""

    def __init__(self) -> None:
        self._files: Files | None = None

    def __call__(self, stream: Iterable[Weight], update: Update) -> Digest:
        place = Place.of(update.address)
        if self._files is None or str(self._files.folder) != place.folder:
            self._files = Files(place.folder)
        ring = Ring(self._files, place)
        ring.begin()
        try:
            return _Sending(ring).run(stream)
        except BaseException:
            ring.end(FAILED)
            raise


class _Sending:
    """One version on its way."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._written = ring, 0
        self._late: set[int] = set()

    def run(self, stream: Iterable[Weight]) -> Digest:
        digester = Digester()
        packer = Packer(self._ring.place.bucket, take=self._take, put=self._put, listing=HEAD - 8)
        for name, tensor in whole(stream):
            packer.add(name, tensor)
            digester.add(name, tensor)  # behind the copy, which left it in the cache
        packer.flush()
        self._ring.end(self._written)
        return digester.digest

    def _take(self) -> Tensor:
        """The next slot, once all readers are through with it, or given up."""
        place = self._ring.place
        if place.slots and self._written >= place.slots and place.readers:
            self._wait_for_readers(self._written - place.slots + 1)
            if len(self._late) == len(place.readers):
                raise EngineFailed(
                    f"no replica reads the weights: {', '.join(place.readers)} are late or gone"
                )
        return self._ring.memory(self._written)[HEAD:]

    def _put(self, listing: bytes, used: int) -> None:
        head = self._ring.memory(self._written)[:HEAD]
        length = len(listing).to_bytes(8, "little")
        text = torch.frombuffer(bytearray(length + listing), dtype=torch.uint8)
        head[: len(text)].copy_(text)
        self._written += 1
        self._ring.put(self._written)

    def _wait_for_readers(self, count: int) -> None:
        """Until all have read so many buckets; one that is gone or too late is waited for no
        more."""
        ring, place = self._ring, self._ring.place
        looked = time.monotonic()

        def behind() -> set[int]:
            readers = set(range(len(place.readers))) - self._late
            return {reader for reader in readers if (ring.confirmed(reader) or 0) < count}

        def is_through() -> bool:
            nonlocal looked
            waited_for = behind()
            if not waited_for or time.monotonic() - looked < _LOOK_SECONDS:
                return not waited_for
            looked = time.monotonic()
            processes = {ring.process(reader) for reader in waited_for} - {0}
            return len(processes) == len(waited_for) and not any(map(is_alive, processes))

        with contextlib.suppress(EngineFailed):
            wait_until(is_through, bound_seconds=place.bound_seconds * _PATIENCE, awaited="readers")
        for reader in behind():
            log.warning("%s reads no more weights: going on without it", place.readers[reader])
            self._late.add(reader)
            ring.drop(reader)


def build_sender() -> Send:
    """A sender for one process."""
    return _Sender()
