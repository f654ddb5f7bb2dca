"""The driver's part: settings, and the store where a group meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import attrs

from hexpo.adapters.transfer.collective.group import Meeting
from hexpo.adapters.transfer.wire.driver import Build


@attrs.frozen(kw_only=True)
class Config:
    """Settings of the transfer by broadcast."""

    host: str = "127.0.0.1"
    """The driver's own address, as trainer and replicas reach it."""
    backend: str = "gloo"
    """The platform's: gloo (processors), nccl, rccl."""
    device: str = "cpu"
    """Where buckets lie; that of the backend."""
    bucket_mib: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    """Size of a bucket; a sender holds two, a receiver one."""
    bound_seconds: float = attrs.field(default=120.0, validator=attrs.validators.gt(0))
    """Longest transfer, and longest wait for another process."""


class _Rendezvous:
    """One group for as long as the readers are the same and nobody failed."""

    overlaps = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store: Any = None
        self._group, self._readers = "", tuple[str, ...]()

    def open(self, version: int, readers: Sequence[str]) -> Mapping[str, Any]:
        """Holds the store's port from the first time on."""
        import torch.distributed as dist

        config, names = self._config, tuple(readers)
        bound = timedelta(seconds=config.bound_seconds)
        if self._store is None:
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                config.host, 0, is_master=True, timeout=bound, wait_for_workers=False
            )
        if not self._group or names != self._readers:
            self._group, self._readers = uuid4().hex, names
        return Meeting(
            host=config.host,
            port=self._store.port,
            group=self._group,
            readers=names,
            backend=config.backend,
            device=config.device,
            bucket=config.bucket_mib * 2**20,
            bound_seconds=config.bound_seconds,
        ).address

    def failed(self) -> None:
        """A group that lost a member, or its place, is not met again."""
        self._group = ""

    def close(self) -> None:
        """Give the port back."""
        self._store = None


build = Build(_Rendezvous)
"""A transfer by broadcast."""
