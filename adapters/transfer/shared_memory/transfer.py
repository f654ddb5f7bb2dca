"""The driver's part: settings, the ring's files, and their end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs

from hexpo.adapters.transfer.shared_memory.ring import MOST_SLOTS, Place, create, is_alive
from hexpo.adapters.transfer.wire.driver import Build

_PREFIX = "hexpo-weights-"
_SHARED = Path("/dev/shm")


@attrs.frozen(kw_only=True)
class Config:
    """Settings of the transfer through shared memory."""

    folder: str = ""
    """Where the buckets lie; empty: the system's shared memory, else its temporary folder."""
    bucket_mib: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    """Size of a bucket."""
    buckets: int = attrs.field(
        default=2, validator=[attrs.validators.ge(0), attrs.validators.le(MOST_SLOTS)]
    )
    """Buckets of the ring: sender and readers work on different ones; more are made where engines
    hold what they read. 0 keeps the whole version until the next one, so that a replica can read
    it later (a lease, a return after fencing)."""
    bound_seconds: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    """Longest transfer; half of it is the longest wait for a reader."""


class _Rendezvous:
    """One ring for as long as the readers are the same."""

    overlaps = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self._home = Path(config.folder) if config.folder else _shared_folder()
        self._ring: Path | None = None
        self._readers: tuple[str, ...] = ()
        self._attempt = 0
        _remove_orphans(self._home)

    def open(self, version: int, readers: Sequence[str]) -> Mapping[str, Any]:
        """An address in the present ring, or in a new one where readers changed."""
        config, names = self._config, tuple(readers)
        if self._ring is None or names != self._readers:
            self.close()
            self._ring = self._home / f"{_PREFIX}{os.getpid()}-{uuid4().hex[:8]}"
            self._readers = names
            size = config.bucket_mib * 2**20
            create(self._ring, readers=names, bucket=size, slots=config.buckets)
        self._attempt += 1
        return Place(
            folder=str(self._ring),
            attempt=self._attempt,
            bucket=config.bucket_mib * 2**20,
            slots=config.buckets,
            readers=names,
            bound_seconds=config.bound_seconds,
        ).address

    def failed(self) -> None:
        """The next attempt's number ends whatever still runs."""

    def close(self) -> None:
        """Remove the ring; whoever has it mapped may read on."""
        if self._ring is not None:
            shutil.rmtree(self._ring, ignore_errors=True)
            self._ring = None


def _shared_folder() -> Path:
    return _SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir())


def _remove_orphans(home: Path) -> None:
    """Rings of processes that ended without closing them."""
    for ring in home.glob(f"{_PREFIX}*-*"):
        owner = ring.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not is_alive(int(owner)):
            shutil.rmtree(ring, ignore_errors=True)


build = Build(_Rendezvous)
"""A transfer on this node."""
