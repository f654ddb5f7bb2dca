"""What a receiver says when it was not its fault."""

from __future__ import annotations

from hexpo.domain.errors import EngineFailed

_BLAME = "the sender failed while it sent version"


def sender_failed(reader: str, version: int) -> EngineFailed:
    """A receiver's error for the failure of its sender."""
    return EngineFailed(f"{reader}: {_BLAME} {version}")


def is_consequence(error: BaseException) -> bool:
    """Whether the sender's own error is the one to show (O5)."""
    return isinstance(error, EngineFailed) and _BLAME in str(error)
