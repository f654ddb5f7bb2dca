"""What a rank's process answers: meets the others, makes its backend, computes in one thread."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import attrs
import torch

from hexpo.adapters.training.backend import Abilities, Added, Gradient, Progress
from hexpo.adapters.training.host.worker import Worker
from hexpo.application.ports.cluster import Context
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import Metrics

_P = ParamSpec("_P")
_T = TypeVar("_T")

ENTRY = f"{__name__}:serve"


@attrs.frozen(kw_only=True, eq=False)
class Place:
    """What one rank is started with. Plain: it crosses processes."""

    rank: int
    ranks: int
    backend: str
    """`module:function`; called as `function(value, rank=, ranks=)` it gives a Backend."""
    value: Any
    store: RowStore
    """It pickles to its name."""
    send: tuple[str, Any] | None = None
    """`module:function` and its argument, which give a sender; None: nothing is ever sent."""
    communication: str = "gloo"
    """Backend of torch.distributed."""
    collective_seconds: float = 600.0
    """Longest wait for another rank."""


@attrs.frozen
class Address:
    """Where the ranks meet. Plain."""

    node: str
    host: str
    port: int


async def serve(place: Place, context: Context) -> RankService:
    """Entry: a rank that waits to be told where the others are."""
    return RankService(place, context)


def _named(dotted: str) -> Callable[..., Any]:
    module, _, name = dotted.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


class _Ranks:
    """Implements Group with torch.distributed's default group, on the CPU."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def largest(self, *values: int) -> tuple[int, ...]:
        """Together: of each value the largest."""
        import torch.distributed as dist

        found = torch.tensor(values)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return tuple(int(value) for value in found)


class RankService:
    """Calls come one after the other; all torch work runs in one thread of its own."""

    def __init__(self, place: Place, context: Context) -> None:
        self._place, self._context = place, context
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rank")
        self._meeting: Any = None
        self._worker: Worker | None = None

    async def _run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))

    async def listen(self) -> Address:
        """Hold the place where the ranks meet; only the first is asked."""
        return await self._run(self._listen)

    def _listen(self) -> Address:
        dist = _distributed()
        held = self._context.hold()
        port = held.getsockname()[1]
        self._meeting = dist.TCPStore(
            "127.0.0.1",
            port,
            self._place.ranks,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=held.detach(),
        )
        return Address(self._context.node, self._context.host, port)

    async def join(self, address: Address) -> Abilities:
        """Meet the others and make the backend. All ranks together."""
        return await self._run(self._join, address)

    def _join(self, address: Address) -> Abilities:
        dist = _distributed()
        place, bound = self._place, timedelta(seconds=self._place.collective_seconds)
        if self._meeting is None:
            host = "127.0.0.1" if address.node == self._context.node else address.host
            self._meeting = dist.TCPStore(
                host, address.port, is_master=False, timeout=bound, wait_for_workers=False
            )
        dist.init_process_group(
            place.communication,
            store=self._meeting,
            rank=place.rank,
            world_size=place.ranks,
            timeout=bound,
        )
        backend = _named(place.backend)(place.value, rank=place.rank, ranks=place.ranks)
        send = None if place.send is None else _named(place.send[0])(place.send[1])
        self._worker = Worker(backend, _Ranks(place.rank), place.store, send=send)
        abilities: Abilities = backend.abilities
        return abilities

    @property
    def _rank(self) -> Worker:
        if self._worker is None:
            raise EngineFailed(f"rank {self._place.rank} was not told to join the others")
        return self._worker

    async def accumulate(self, packed: bytes, applied: int, first: int) -> tuple[Added, int] | None:
        """See Worker."""
        return await self._run(self._rank.accumulate, packed, applied, first)

    async def score(self, packed: bytes, reference: bool) -> bool | None:  # noqa: FBT001  a message
        """See Worker."""
        return await self._run(self._rank.score, packed, reference)

    async def compute(self, packed: bytes) -> None:
        """See Worker."""
        await self._run(self._rank.compute, packed)

    async def finish(self, applied: int) -> tuple[Gradient, Metrics | None]:
        """See Worker."""
        return await self._run(self._rank.finish, applied)

    async def forget(self) -> None:
        """See Worker."""
        await self._run(self._rank.forget)

    async def save(self, folder: str) -> dict[str, int]:
        """See Worker."""
        return await self._run(self._rank.save, folder)

    async def snapshot(self) -> None:
        """See Worker."""
        await self._run(self._rank.snapshot)

    async def write(self, folder: str) -> dict[str, int]:
        """See Worker; beside whatever is computed."""
        return await asyncio.to_thread(self._rank.write, folder)

    async def load(self, folder: str, progress: Progress) -> bool | None:
        """See Worker."""
        return await self._run(self._rank.load, folder, progress)

    async def export(self, folder: str) -> None:
        """See Worker."""
        await self._run(self._rank.export, folder)

    async def base_digest(self) -> str:
        """See Worker."""
        return await self._run(self._rank.base_digest)

    async def send(self, update: Update) -> Digest | None:
        """See Worker."""
        return await self._run(self._rank.send, update)

    async def offload(self) -> None:
        """See Worker."""
        await self._run(self._rank.offload)

    async def onload(self) -> None:
        """See Worker."""
        await self._run(self._rank.onload)

    async def close(self) -> None:
        """Free everything and leave the group, without waiting for the others."""
        if self._worker is not None:
            await self._run(self._worker.close)
        self._worker = None
        self._thread.shutdown(wait=False, cancel_futures=True)


def _distributed() -> Any:
    """Its stubs lack what it exports."""
    return importlib.import_module("torch.distributed")
