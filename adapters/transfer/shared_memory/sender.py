"""Beside the weights: writes buckets, and waits for slots that readers are through with."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from hexpo.adapters.models import checksum
from hexpo.adapters.models.kernels.memory import copy_past_cache
from hexpo.adapters.transfer.shared_memory.ring import (
    FAILED,
    HEAD,
    MOST_SLOTS,
    Files,
    Place,
    Ring,
    is_alive,
)
from hexpo.adapters.transfer.wire.buckets import Packer
from hexpo.adapters.transfer.wire.stream import whole
from hexpo.adapters.transfer.wire.waiting import wait_until
from hexpo.application.ports.transfer import Digest, Send, Update, Weight
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
        self._slots, self._slot = ring.place.slots, 0
        self._lies_in: dict[int, int] = {}
        """The last bucket of each slot."""
        self._late: set[int] = set()

    def run(self, stream: Iterable[Weight]) -> Digest:
        digester = checksum.digester()
        packer = Packer(
            self._ring.place.bucket,
            take=self._take,
            put=self._put,
            listing=HEAD - 8,
            copy=copy_past_cache,
        )
        for name, tensor in whole(stream):
            packer.add(name, tensor)
            digester.add(name, tensor)  # behind the copy, which left it in the cache
        packer.flush()
        self._ring.end(self._written)
        return digester.digest

    def _take(self) -> Tensor:
        """The next slot, once all readers are through with it, or given up."""
        self._slot = self._free_slot() if self._ring.place.slots else self._written
        return self._ring.memory(self._slot)[HEAD:]

    def _put(self, listing: bytes, used: int) -> None:
        head = self._ring.memory(self._slot)[:HEAD]
        length = len(listing).to_bytes(8, "little")
        text = torch.frombuffer(bytearray(length + listing), dtype=torch.uint8)
        head[: len(text)].copy_(text)
        self._ring.put(self._written, self._slot)
        self._lies_in[self._slot] = self._written
        self._written += 1

    def _free_slot(self) -> int:
        """Waits for it; a reader that is gone or too late is waited for no more."""
        ring, place = self._ring, self._ring.place
        looked = time.monotonic()
        slot, behind = self._freest()

        def is_through() -> bool:
            nonlocal slot, behind, looked
            slot, behind = self._freest()
            if not behind or time.monotonic() - looked < _LOOK_SECONDS:
                return not behind
            looked = time.monotonic()
            processes = {ring.process(reader) for reader in behind} - {0}
            return len(processes) == len(behind) and not any(map(is_alive, processes))

        while behind:
            with contextlib.suppress(EngineFailed):
                bound = place.bound_seconds * _PATIENCE
                wait_until(is_through, bound_seconds=bound, awaited="readers")
            for reader in behind:
                log.warning("%s reads no more weights: going on without it", place.readers[reader])
                self._late.add(reader)
                ring.drop(reader)
            if len(self._late) == len(place.readers):
                raise EngineFailed(
                    f"no replica reads the weights: {', '.join(place.readers)} are late or gone"
                )
            slot, behind = self._freest()
        return slot

    def _freest(self) -> tuple[int, set[int]]:
        """A slot, and the readers that must still let go of it.

        There is one slot more where nothing but tensors that readers hold is in the way: they may
        need the next bucket before they are through with the last.
        """
        readers = set(range(len(self._ring.place.readers))) - self._late
        read = {reader: self._ring.confirmed(reader) or 0 for reader in readers}

        def in_the_way(slot: int) -> set[int]:
            last = self._lies_in.get(slot, -1)
            return {r for r in readers if read[r] <= last or self._ring.is_held(r, slot)}

        while True:
            slot = min(range(self._slots), key=lambda slot: len(in_the_way(slot)))
            behind = in_the_way(slot)
            reading = {reader for reader in behind if read[reader] < self._written}
            if not behind or reading or self._slots == MOST_SLOTS:
                return slot, reading or behind
            self._slots += 1


def build_sender() -> Send:
    """A sender for one process."""
    return _Sender()
