"""A process group of one sender and its readers, apart from every other group of the processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import EngineFailed, Unsupported

LISTING = 1 << 18
"""Most bytes of a bucket's listing."""
END, FAILED = -1, -2
"""Instead of a listing's length."""


@attrs.frozen(kw_only=True)
class Meeting:
    """Where a group meets: an update's address, typed."""

    host: str
    port: int
    """Of the store that the driver holds."""
    group: str
    """A new one after each failure and each change of readers."""
    readers: tuple[str, ...]
    """In the order of their ranks, from 1."""
    backend: str
    device: str
    bucket: int
    """Bytes."""
    bound_seconds: float

    @staticmethod
    def of(address: Mapping[str, Any]) -> Meeting:
        """Raises EngineFailed: the update was made by another transfer."""
        try:
            return Meeting(**{**address, "readers": tuple(address["readers"])})
        except (KeyError, TypeError) as error:
            raise EngineFailed(
                "the update was made by another transfer than collective: sender, receivers and"
                " driver must be of one kind"
            ) from error

    @property
    def address(self) -> dict[str, Any]:
        """Plain."""
        return {**attrs.asdict(self), "readers": list(self.readers)}


class Group:
    """Broadcasts from rank 0. Every call but `start` blocks until the data is there."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        """Meets the others. Raises EngineFailed: not all come within the bound."""
        import torch.distributed as dist

        self.meeting, self._options = meeting, dist.BroadcastOptions()
        self._options.rootRank = 0
        bound = timedelta(seconds=meeting.bound_seconds)
        with in_words(meeting, "meet"):
            store = dist.TCPStore(  # type: ignore[attr-defined]
                meeting.host, meeting.port, is_master=False, timeout=bound, wait_for_workers=False
            )
            own = dist.PrefixStore(meeting.group, store)  # type: ignore[attr-defined]
            self._group = _made(meeting, own, rank, bound)

    def start(self, tensor: Tensor) -> Any:
        """Begin a broadcast; `wait` of what it gives ends it."""
        return self._group.broadcast([tensor], self._options)

    def broadcast(self, tensor: Tensor) -> None:
        """One that is waited for."""
        self.start(tensor).wait()

    def memory(self, size: int) -> Tensor:
        """(size,) uint8 where the group's backend wants it."""
        return torch.empty(size, dtype=torch.uint8, device=self.meeting.device)

    def words(self, *values: int) -> Tensor:
        """(2,) int64."""
        return torch.tensor(values, dtype=torch.int64, device=self.meeting.device)


def _made(meeting: Meeting, store: Any, rank: int, bound: timedelta) -> Any:
    import torch.distributed as dist

    size = 1 + len(meeting.readers)
    if meeting.backend == "gloo":
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        here = _address_towards(meeting.host)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=here)]
        options._timeout = bound
        return dist.ProcessGroupGloo(store, rank, size, options)
    if meeting.backend in ("nccl", "rccl") and hasattr(dist, "ProcessGroupNCCL"):
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = bound
        return dist.ProcessGroupNCCL(store, rank, size, options)
    raise Unsupported(
        f"transfer/collective: this torch has no backend {meeting.backend!r}; gloo is always there"
    )


def _address_towards(host: str) -> str:
    """This node's own address on the way to the driver: others reach it there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
        return address


@contextmanager
def in_words(meeting: Meeting, what: str) -> Iterator[None]:
    """Errors of the backend as the port's."""
    import torch.distributed as dist

    try:
        yield
    except (dist.DistError, RuntimeError, OSError) as error:
        raise EngineFailed(
            f"the trainer and {', '.join(meeting.readers)} could not {what} within"
            f" {meeting.bound_seconds:g} s: {str(error).splitlines()[0][:300]}"
        ) from error
