"""A run's processes, tried before hours are spent: each gets its place, all ranks add up one
number, one engine gives one answer. Nothing is trained, and nothing is left."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import attrs

from hexpo.adapters.rollout.wire import connect
from hexpo.adapters.training.backend import Abilities
from hexpo.adapters.training.host import start as start_ranks
from hexpo.application.ports.cluster import Context
from hexpo.application.ports.rollout import Request, RolloutEngine
from hexpo.domain.errors import EngineFailed
from hexpo.domain.trajectory import Message
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.container import Container, container_of
from hexpo.infrastructure.processes import Processes, make_cluster

SEAT = f"{__name__}:seat"
SUM = f"{__name__}:one_sum"
QUESTION = "1 + 1 = ?"
TOKENS = 8
"""Longest answer."""


@attrs.frozen(kw_only=True)
class Trial:
    """One thing that was tried."""

    name: str
    passed: bool
    seconds: float
    found: str
    """What was found, or what failed and what to do."""


async def preflight(config: RunConfig, *, bound_seconds: float) -> AsyncIterator[Trial]:
    """Try placement, communication and generation, in this order, up to the first that fails.

    Args: config: checked already. bound_seconds: longest time of each.
    Returns: each trial when it has ended. Failures are values.
    """
    with tempfile.TemporaryDirectory(prefix="hexpo-preflight-") as folder:
        container = container_of(config, Path(folder))
        trying = _Trying(config, Path(folder), container, bound_seconds)
        for name, work in (
            ("placement", trying.place),
            ("one all-reduce", trying.add_up),
            ("one generation", trying.answer),
        ):
            trial = await _tried(name, work, bound_seconds)
            yield trial
            if not trial.passed:
                return


async def _tried(name: str, work: Callable[[], Awaitable[str]], bound: float) -> Trial:
    began = time.perf_counter()
    passed, found = False, ""
    try:
        async with asyncio.timeout(bound):
            passed, found = True, await work()
    except TimeoutError:
        found = f"not done after {bound:g} s; give it longer with --bound, or look at its logs"
    except Exception as error:  # noqa: BLE001  the failure is what is shown
        found = f"{type(error).__name__}: {error}"
    return Trial(name=name, passed=passed, seconds=time.perf_counter() - began, found=found)


class _Trying:
    """The processes of one configuration; each trial ends what it started."""

    def __init__(
        self, config: RunConfig, folder: Path, container: Container, bound_seconds: float
    ) -> None:
        self._config, self._folder, self._container = config, folder, container
        self._bound = bound_seconds

    @property
    def _processes(self) -> Processes:
        processes: Processes = self._container.processes()
        return processes

    async def place(self) -> str:
        """Every process where it would run, doing nothing."""
        processes = self._processes
        wanted = [
            *processes.rank_specs(),
            *processes.replica_specs(),
            *processes.teacher_specs(),
        ]
        if not wanted:
            return "all in this process"
        cluster = make_cluster(self._config, self._folder)
        try:
            seats = [attrs.evolve(spec, entry=SEAT, value=None) for spec in wanted]
            started = await cluster.start(seats)
            nodes = Counter([await process.call("node") for process in started])
        finally:
            await cluster.close()
        places = ", ".join(f"{count} on {node}" for node, count in nodes.items())
        return f"{len(wanted)} processes: {places}"

    async def add_up(self) -> str:
        """All ranks meet as for training, and each gives its number."""
        ranks = self._config.training.ranks
        if ranks == 1:
            return "one rank: nothing to exchange"
        platform = self._container.platform()
        launch = attrs.evolve(
            self._processes.launch(), backend=SUM, value=platform.device, send=None
        )
        settings = attrs.evolve(self._processes.host_config(), collective_seconds=self._bound)
        cluster = make_cluster(self._config, self._folder)
        try:
            engine = await start_ranks(
                settings,
                launch,
                cluster=cluster,
                store=await self._processes.shared_store(cluster),
                tokenizer=self._container.tokenizer(),
            )
            await engine.close()
        finally:
            await cluster.close()
            await self._container.opened().close()
        return f"{ranks} ranks by {platform.collective}"

    async def answer(self) -> str:
        """One engine, as the run would start it."""
        first = self._processes.replica_specs()[:1]
        if not first:
            try:
                return await self._ask(self._container.rollout())
            finally:
                await self._container.opened().close()
        cluster = make_cluster(self._config, self._folder)
        try:
            (process,) = await cluster.start(first)
            engine = await connect(process)
            return await self._ask(engine)
        finally:
            await cluster.close()

    async def _ask(self, engine: RolloutEngine) -> str:
        tokenizer = self._container.tokenizer()
        sampling = attrs.evolve(self._container.sampling(), max_new_tokens=TOKENS)
        prompt = tokenizer.render([Message("user", QUESTION)])
        began = time.perf_counter()
        made = await engine.generate(
            Request(id="preflight", prompt=tuple(prompt), sampling=sampling, seed=0)
        )
        seconds = time.perf_counter() - began
        if not len(made.tokens):
            raise EngineFailed("the engine gave an empty answer")
        return (
            f"{len(made.tokens)} tokens in {seconds:.2f} s by {self._config.rollout.engine}:"
            f" {tokenizer.decode(made.tokens.tolist())!r}"
        )


async def seat(value: None, context: Context) -> Seat:
    """Entry: a process that only says where it is."""
    return Seat(context)


class Seat:
    """Answers one question."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def node(self) -> str:
        """Its host name."""
        return self._context.node


def one_sum(device: str, *, rank: int, ranks: int) -> Summed:
    """In the place of a backend: one all-reduce. Raises EngineFailed: the sum is wrong."""
    import torch
    import torch.distributed as dist

    number = torch.tensor([float(rank + 1)], device=device)
    dist.all_reduce(number)
    if (got := float(number)) != (wanted := ranks * (ranks + 1) / 2):
        raise EngineFailed(f"rank {rank}: the all-reduce gave {got:g}, not {wanted:g}")
    return Summed()


class Summed:
    """A backend that can do nothing more."""

    abilities = Abilities(
        packs=False,
        scores=frozenset(),
        has_reference=False,
        micro_tokens=1,
        max_skipped_steps=1,
    )

    def close(self) -> None:
        """Nothing is held."""
