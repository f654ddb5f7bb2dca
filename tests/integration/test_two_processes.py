"""The trainer in this process, the rollout in another one: a cluster, a transfer and the loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from hexpo.adapters.cluster import local
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.rollout.wire import RemoteRollout, connect
from hexpo.application.agreeing import Probe, ProbeSettings
from hexpo.application.ports.cluster import Process, Resources
from hexpo.application.ports.rollout import PauseMode, Request
from hexpo.application.ports.transfer import Digest, Send, Update, Weight
from hexpo.application.train import RunReport
from hexpo.domain.errors import EngineFailed
from hexpo.domain.sampling import Sampling
from hexpo.domain.tolerance import TOLERANCES
from hexpo.domain.trajectory import StopReason
from hexpo.entrypoints.library import Run, build
from hexpo.infrastructure.config.schema import Adapter
from hexpo.infrastructure.parts import make
from hexpo.infrastructure.serve import rollout_specs, sender_of

TRANSFERS = {
    "shared_memory": lambda folder: {"bucket_mib": 1},
    "disk": lambda folder: {"folder": str(folder / "weights")},
    "collective": lambda folder: {"bucket_mib": 1},
}


class Sending:
    """A training engine with a sender beside its weights."""

    def __init__(self, engine: Any, policy: Policy, send: Send) -> None:
        self._engine, self._policy, self._send = engine, policy, send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _stream(self) -> Iterator[Weight]:
        for name in self._policy.names():
            tensor = self._policy.weight(name)
            yield Weight(name=name, shape=tuple(tensor.shape), tensor=tensor)

    async def send(self, update: Update) -> Digest:
        return await asyncio.to_thread(self._send, self._stream(), update)


@attrs.frozen(eq=False)
class Elsewhere:
    """A run whose rollout is in another process."""

    run: Run
    process: Process
    rollout: RemoteRollout
    transfer: Any


@asynccontextmanager
async def elsewhere(run: Run, kind: str = "shared_memory") -> AsyncIterator[Elsewhere]:
    """Start the other process and put it into the run's container."""
    container, config = run.container, run.config
    options = TRANSFERS[kind](run.folder)
    specs = rollout_specs(
        config,
        container.platform(),
        replicas=1,
        transfer=Adapter(kind=kind, options=options),
        needs=Resources(cpus=1),
        environment={"OMP_NUM_THREADS": "1"},
    )
    cluster = local.build(local.Config(oversubscribe=True), folder=run.folder)
    try:
        (process,) = await cluster.start(specs)
        rollout = await connect(process)
        training = Sending(container.training(), container.policy(), sender_of(kind))
        transfer = make(
            "transfer", kind, options, training=training, replicas={process.name: rollout}
        )
        container.rollout.override(rollout)
        container.training.override(training)
        container.transfer.override(transfer)
        try:
            yield Elsewhere(run, process, rollout, transfer)
        finally:
            await transfer.close()
            await rollout.close()
    finally:
        await cluster.close()


def trained(
    run: Run, play: Callable[[Elsewhere], Awaitable[Any]] | None = None, *, kind: str
) -> RunReport:
    async def whole() -> RunReport:
        async with elsewhere(run, kind) as other:
            report = await run.train_async()
            if play is not None:
                await play(other)
            return report

    return asyncio.run(asyncio.wait_for(whole(), 100))


UNTIMED = ("reward/mean", "loss/policy", "train/gradient_norm", "tokens/generated")


@pytest.mark.parametrize("kind", list(TRANSFERS))
def test_a_rollout_in_another_process_gives_the_same_run_bit_for_bit(
    tiny: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    """C1, G1: on-policy, the place of the rollout is no matter: weights, ids, seeds are right."""
    here = build(tiny, "run.steps=3", folder=tmp_path / "here").train()
    run = build(tiny, "run.steps=3", folder=tmp_path / "there")
    there = trained(run, kind=kind)
    for one, other in zip(here.history, there.history, strict=True):
        assert {key: one[key] for key in UNTIMED} == {key: other[key] for key in UNTIMED}
    assert not [path for path in Path("/dev/shm").glob(f"hexpo-weights-{os.getpid()}-*")]


def test_generation_runs_ahead_in_the_other_process_within_the_bound(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """F1, G1: max_staleness 1; afterwards the replica computes what the trainer computes."""
    run = build(tiny, "run.steps=5", "asynchrony.max_staleness=1", folder=tmp_path / "run")

    async def probe(other: Elsewhere) -> None:
        container = run.container
        settings = ProbeSettings(tolerance=TOLERANCES[container.policy().precision.dtype])
        checked = Probe(
            settings,
            trainer=container.training(),
            store=container.store(),
            replicas=lambda: {other.process.name: other.rollout},
            prompts=[(5, 6, 7), (8, 9)],
        )
        await checked.check(5)

    async def whole() -> RunReport:
        async with elsewhere(run) as other:
            report = await run.container.trainer().run()
            await probe(other)
            await run.container.opened().close()
            return report

    report = asyncio.run(asyncio.wait_for(whole(), 100))
    assert report.finished
    assert [step["schedule/age_max"] for step in report.history] == [0, 1, 1, 1, 1]


def test_a_replica_that_is_killed_reaches_the_driver_with_its_cause(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """O3, F5: kill -9 while it generates; every waiting call gets the cause, at once."""
    run = build(tiny, folder=tmp_path / "run")
    long = Request(
        id="long",
        prompt=(5, 6, 7),
        sampling=Sampling(max_new_tokens=200, min_new_tokens=200),
        seed=0,
    )

    async def whole() -> None:
        async with elsewhere(run) as other:
            assert (await other.rollout.generate(long)).stop is StopReason.LENGTH
            await other.rollout.pause(PauseMode.KEEP)
            waiting = asyncio.ensure_future(other.rollout.generate(long))
            await asyncio.sleep(0.1)
            os.kill(other.process.pid, signal.SIGKILL)
            with pytest.raises(EngineFailed, match=r"rollout-0.*SIGKILL"):
                await asyncio.wait_for(waiting, 10)
            with pytest.raises(EngineFailed, match=r"rollout-0 failed \(.*SIGKILL"):
                await asyncio.wait_for(other.transfer.transfer(1), 10)
            await run.container.opened().close()

    asyncio.run(asyncio.wait_for(whole(), 100))
