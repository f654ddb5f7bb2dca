"""Inside an engine's process: takes part in the broadcasts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from hexpo.adapters.transfer.collective.group import END, FAILED, Group, Meeting, in_words
from hexpo.adapters.transfer.wire.buckets import unpacked
from hexpo.adapters.transfer.wire.endings import sender_failed
from hexpo.application.ports.transfer import Receive, Update
from hexpo.domain.errors import EngineFailed


class _Receiver:
    """A group lives as long as its members do."""

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._group: Group | None = None

    def __call__(self, update: Update, *, keep: bool = False) -> Iterator[tuple[str, Tensor]]:
        meeting = Meeting.of(update.address)
        if self._reader not in meeting.readers:
            raise EngineFailed(
                f"{self._reader} is not among the readers of version {update.version}"
                f" ({', '.join(meeting.readers)})"
            )
        if self._group is None or self._group.meeting != meeting:
            self._group = None
            self._group = Group(meeting, 1 + meeting.readers.index(self._reader))
        return unpacked(self._buckets(self._group, update.version), keep=keep)

    def _buckets(self, group: Group, version: int) -> Iterator[tuple[bytes, Tensor]]:
        whole = False
        memory = group.memory(group.meeting.bucket)
        try:
            while True:
                length, used = self._exchanged(group, group.words(0, 0)).tolist()
                if length in (END, FAILED):
                    break
                listing = self._exchanged(group, group.memory(length))
                data = self._exchanged(group, memory[:used])
                yield bytes(listing.cpu().numpy()), data
            if length == FAILED:
                raise sender_failed(self._reader, version)
            whole = True
        finally:
            if not whole:
                self._group = None

    def _exchanged(self, group: Group, tensor: Tensor) -> Tensor:
        with in_words(group.meeting, "exchange the weights"):
            group.broadcast(tensor)
        return tensor


def build_receiver(*, reader: str) -> Receive:
    """A receiver. Args: reader: the name that updates list it by."""
    return _Receiver(reader)
