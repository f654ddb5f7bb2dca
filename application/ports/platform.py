"""Port: one kind of hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs


@attrs.frozen(kw_only=True)
class Health:
    """What `doctor` shows of a platform."""

    available: bool
    reason: str
    """Why not, or what was found."""
    facts: Mapping[str, str] = attrs.field(factory=dict)


class Platform(Protocol):
    """Device, thread and memory matters of one hardware kind; the only reader of its settings.

    Promises: nothing happens at import or at construction; `environment` is a pure answer and
    `prepare` is the one call that changes the process.
    """

    @property
    def device(self) -> str:
        """A torch device string."""
        ...

    @property
    def collective(self) -> str:
        """The communication backend (gloo, nccl, rccl, hccl)."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Variables that must be set before the process starts (threads, allocator); the launcher
        applies them and restarts itself once if any is missing."""
        ...

    def prepare(self) -> None:
        """Apply what can be set in a running process (thread counts, determinism)."""
        ...

    def peak_memory(self) -> int:
        """Largest memory use so far, in bytes (of the device; of the process on a CPU)."""
        ...

    def release(self) -> None:
        """Give freed memory back (between ragged steps)."""
        ...

    def health(self) -> Health:
        """Probe the hardware. May take a second."""
        ...
