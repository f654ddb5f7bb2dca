"""Engines of two ranks for the contract of training: both processes are started once, and each
engine is made anew inside them. They import this module by its name, PYTHONPATH tells where."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.adapters.cluster import local
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.stores import mapped
from hexpo.adapters.training import fsdp, host
from hexpo.adapters.training.backend import Abilities
from hexpo.adapters.training.fsdp.ranks import Model, RankBackend, open_rank
from hexpo.adapters.training.host.calls import Ranks
from hexpo.adapters.training.host.service import Address, Place, RankService
from hexpo.adapters.training.host.worker import Worker
from hexpo.application.ports.cluster import Context, Death, Process, ProcessSpec, Resources

RANKS = 2


# ---- what the contract computes ----


def paid(*, policy_T: Tensor, reward_T: Tensor) -> Tensor:
    """A separable loss whose value is the token's reward."""
    return reward_T * (policy_T - policy_T.detach() + 1)


def broken(*, policy_T: Tensor) -> Tensor:
    raise RuntimeError("broken loss")


def spread(*, reward_T: Tensor, owner_T: Tensor, trained_S: Tensor, scale: float) -> Any:
    return {"advantage": scale * (reward_T + trained_S[owner_T] + 0 * owner_T)}


# ---- in the children ----


class _Parkable(RankBackend):
    """Says that its device is not the host's, so that it may be taken away. Its disk is slow where
    a file named `slow` lies."""

    @property
    def abilities(self) -> Abilities:
        return attrs.evolve(super().abilities, device="pretended")

    def snapshot(self) -> Callable[[Path], dict[str, int]]:
        write = super().snapshot()

        def slowly(folder: Path) -> dict[str, int]:
            written = write(folder)
            while (folder / "slow").exists():
                time.sleep(0.01)
            return written

        return slowly


class Several:
    """Ranks of several engines in one process, which meet once."""

    def __init__(self, place: Place, context: Context) -> None:
        self._first = RankService(place, context)
        self._place, self._context = place, context
        self._services: dict[int, RankService] = {}

    async def listen(self) -> Address:
        return await self._first.listen()

    async def meet(self, address: Address) -> None:
        await self._first.join(address)

    async def open(self, number: int, model: Model, store: Any) -> Abilities:
        """Another engine's rank. All together."""
        service = RankService(attrs.evolve(self._place, store=store), self._context)
        backend = await service._run(
            open_rank, model, rank=self._place.rank, ranks=self._place.ranks
        )
        backend.__class__ = _Parkable
        service._worker = Worker(backend, _group_of(self._first), store, send=None)
        self._services[number] = service
        return backend.abilities  # type: ignore[no-any-return]

    async def of(self, number: int, method: str, arguments: Any) -> Any:
        return await getattr(self._services[number], method)(*arguments)

    async def end(self, number: int) -> None:
        await self._services.pop(number).close()

    async def close(self) -> None:
        await self._first.close()


def _group_of(service: RankService) -> Any:
    return service._rank._group


class _Idle:
    """The backend of the first service, which only meets."""

    abilities = Abilities(
        packs=True,
        scores=frozenset(),
        has_reference=False,
        micro_tokens=1,
        max_skipped_steps=1,
    )

    def close(self) -> None:
        pass


def idle(_: None, *, rank: int, ranks: int) -> _Idle:
    return _Idle()


async def serve(place: Place, context: Context) -> Several:
    torch.set_num_threads(1)
    return Several(place, context)


# ---- in the test's process ----


class Loop:
    """An event loop in a thread of its own, which all engines and calls share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(100)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class _Sub:
    """One engine's rank as a process."""

    def __init__(self, process: Process, number: int, rank: int) -> None:
        self.name, self.pid = f"rank-{rank}", process.pid
        self._process, self._number = process, number
        self._death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()

    async def call(self, method: str, *arguments: Any, **_: Any) -> Any:
        return await self._process.call("of", self._number, method, arguments)

    async def death(self) -> Death:
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        if not self._death.done():
            self._death.set_result(Death(name=self.name, cause="stopped", expected=True))
            await self._process.call("end", self._number)


class Pair:
    """Two processes, in which any number of engines is made, one after the other."""

    def __init__(self, run: Loop) -> None:
        self._run, self._number = run, 0
        self._folder = tempfile.TemporaryDirectory(prefix="hexpo-contract-")
        self.folder = self._folder.name
        settings = local.Config(oversubscribe=True)
        self._cluster = local.build(settings, folder=Path(self.folder))
        self._processes = run(self._start())

    async def _start(self) -> list[Process]:
        here = Path(__file__).parent
        specs = [
            ProcessSpec(
                name=f"contract-{rank}",
                entry="training_engines:serve",
                value=Place(
                    rank=rank,
                    ranks=RANKS,
                    backend="training_engines:idle",
                    value=None,
                    store=None,  # type: ignore[arg-type]
                    collective_seconds=60,
                ),
                needs=Resources(cpus=1),
                environment={
                    "OMP_NUM_THREADS": "1",
                    "OMP_WAIT_POLICY": "passive",
                    "PYTHONPATH": str(here),
                },
            )
            for rank in range(RANKS)
        ]
        processes = list(await self._cluster.start(specs))
        address = await processes[0].call("listen")
        await asyncio.gather(*(process.call("meet", address) for process in processes))
        return processes

    def open(
        self, config: fsdp.Config, model: Path, tokenizer: Any
    ) -> tuple[host.RankedEngine, mapped.MappedRowStore]:
        """Another engine, with a store of its own."""
        self._number += 1
        store = mapped.build(mapped.Config(folder=self._folder.name))
        value = Model(
            config=config,
            path=str(model),
            precision=Precision.FP32,
            temperature=0.8,
            total_steps=10,
            seed=4,
        )
        return self._run(self._open(value, store, tokenizer)), store

    async def _open(self, value: Model, store: Any, tokenizer: Any) -> host.RankedEngine:
        number = self._number
        asked = [process.call("open", number, value, store) for process in self._processes]
        abilities = await asyncio.gather(*asked)
        subs = [_Sub(process, number, rank) for rank, process in enumerate(self._processes)]
        ranks = Ranks(subs, grace_seconds=3)
        return host.RankedEngine(ranks, abilities[0], tokenizer=tokenizer, sends=False)

    def close(self) -> None:
        """End both."""
        self._run(self._cluster.close())
        self._folder.cleanup()
