"""Beside the weights: broadcasts bucket after bucket; one is filled while the other travels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hexpo.adapters.models import checksum
from hexpo.adapters.transfer.collective.group import (
    END,
    FAILED,
    LISTING,
    Group,
    Meeting,
    in_words,
)
from hexpo.adapters.transfer.wire.buckets import Packer
from hexpo.adapters.transfer.wire.stream import whole
from hexpo.application.ports.transfer import Digest, Send, Update, Weight


class _Sender:
    """A group lives as long as its members do."""

    def __init__(self) -> None:
        self._group: Group | None = None

    def __call__(self, stream: Iterable[Weight], update: Update) -> Digest:
        meeting = Meeting.of(update.address)
        group = self._group
        if group is None or group.meeting != meeting:
            self._group = None
            group = self._group = Group(meeting, 0)
        try:
            with in_words(meeting, "exchange the weights"):
                return _Sending(group).run(stream)
        except BaseException:
            self._group = None
            raise


class _Sending:
    """One version on its way."""

    def __init__(self, group: Group) -> None:
        self._group, size = group, group.meeting.bucket
        self._memory = [group.memory(size), group.memory(size)]
        self._travels: list[Any] = [None, None]
        self._sent = 0

    def run(self, stream: Iterable[Weight]) -> Digest:
        digester = checksum.digester()
        packer = Packer(self._group.meeting.bucket, take=self._take, put=self._put, listing=LISTING)
        try:
            for name, tensor in whole(stream):
                packer.add(name, tensor)
                digester.add(name, tensor)  # behind the copy, which left it in the cache
            packer.flush()
        except BaseException:
            self._group.broadcast(self._group.words(FAILED, 0))
            raise
        self._group.broadcast(self._group.words(END, 0))
        for travel in self._travels:
            if travel is not None:
                travel.wait()
        return digester.digest

    def _take(self) -> Tensor:
        """The bucket that was sent before the last one."""
        travel = self._travels[self._sent % 2]
        if travel is not None:
            travel.wait()
        return self._memory[self._sent % 2]

    def _put(self, listing: bytes, used: int) -> None:
        group = self._group
        text = torch.frombuffer(bytearray(listing), dtype=torch.uint8).to(group.meeting.device)
        group.broadcast(group.words(len(listing), used))
        group.broadcast(text)
        self._travels[self._sent % 2] = group.start(self._memory[self._sent % 2][:used])
        self._sent += 1


def build_sender() -> Send:
    """A sender for one process."""
    return _Sender()
