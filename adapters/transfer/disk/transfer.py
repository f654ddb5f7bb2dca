"""The driver's part: settings and the folder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from hexpo.adapters.transfer.wire.driver import Build


@attrs.frozen(kw_only=True)
class Config:
    """Settings of the transfer through files."""

    folder: str = ""
    """A folder that trainer and replicas all see: a path, or any URL that fsspec knows. Empty: one
    of this machine's temporary folders, removed in the end."""
    bucket_mib: int = attrs.field(default=512, validator=attrs.validators.ge(1))
    """Size of a file, and of what a sender or a receiver holds beside the weights."""
    keep: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    """Versions that stay, the newest ones."""
    bound_seconds: float = attrs.field(default=600.0, validator=attrs.validators.gt(0))
    """Longest transfer."""


class _Rendezvous:
    overlaps = False

    def __init__(self, config: Config) -> None:
        self._config = config
        self._own: tempfile.TemporaryDirectory[str] | None = None

    def open(self, version: int, readers: Sequence[str]) -> Mapping[str, Any]:
        """The same folder each time."""
        config, folder = self._config, self._config.folder
        if not folder:
            self._own = self._own or tempfile.TemporaryDirectory(prefix="hexpo-weights-")
            folder = self._own.name
        return {"folder": folder, "keep": config.keep, "bucket": config.bucket_mib * 2**20}

    def failed(self) -> None:
        """A cut version has no index, and its next attempt starts afresh."""

    def close(self) -> None:
        """The newest versions stay in a folder that the user named."""
        if self._own is not None:
            self._own.cleanup()
            self._own = None


build = Build(_Rendezvous)
"""A transfer through a folder."""
