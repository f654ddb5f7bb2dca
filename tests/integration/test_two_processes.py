"""The trainer in this process, the rollout in another one: a cluster, a transfer and the loop."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hexpo.application.agreeing import Probe, ProbeSettings
from hexpo.application.ports.rollout import PauseMode, Request
from hexpo.application.schedule import RunReport
from hexpo.domain.errors import EngineFailed
from hexpo.domain.sampling import Sampling
from hexpo.domain.tolerance import TOLERANCES
from hexpo.domain.trajectory import StopReason
from hexpo.entrypoints.library import Run, build

ELSEWHERE = ("rollout.replicas=1", "cluster.options.oversubscribe=true")
UNTIMED = ("reward/mean", "loss/policy", "train/gradient_norm", "tokens/generated")


@pytest.mark.parametrize("kind", ["shared_memory", "disk", "collective"])
def test_a_rollout_in_another_process_gives_the_same_run_bit_for_bit(
    tiny: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    """C1, G1: on-policy, the place of the rollout is no matter: weights, ids, seeds are right."""
    here = build(tiny, "run.steps=3", folder=tmp_path / "here").train()
    there = build(
        tiny, "run.steps=3", *ELSEWHERE, f"rollout.transfer={kind}", folder=tmp_path / "there"
    ).train()
    for one, other in zip(here.history, there.history, strict=True):
        assert {key: one[key] for key in UNTIMED} == {key: other[key] for key in UNTIMED}
    assert not list(Path("/dev/shm").glob(f"hexpo-weights-{os.getpid()}-*"))


def probe_of(run: Run) -> Probe:
    container = run.container
    return Probe(
        ProbeSettings(tolerance=TOLERANCES[container.policy().precision.dtype]),
        trainer=container.training(),
        store=container.store(),
        replicas=lambda: container.processes().replicas,
        prompts=[(5, 6, 7), (8, 9)],
    )


def test_generation_runs_ahead_in_the_other_process_within_the_bound(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """F1, G1: max_staleness 1; afterwards the replica computes what the trainer computes, and a
    trainer that learnt more without sending it is told apart."""
    run = build(
        tiny, "run.steps=5", "asynchrony.max_staleness=1", *ELSEWHERE, folder=tmp_path / "run"
    )

    async def whole() -> RunReport:
        container = run.container
        try:
            await container.processes().start()
            report = await container.trainer().run()
            await probe_of(run).check(5)
            for parameter in container.policy().module.parameters():
                parameter.data.mul_(1.05)
            with pytest.raises(EngineFailed, match=r"log-probs of rollout-0 .* not the trainer's"):
                await probe_of(run).check(5)
            return report
        finally:
            await container.opened().close()

    report = asyncio.run(asyncio.wait_for(whole(), 100))
    assert report.finished
    assert [step["schedule/age_max"] for step in report.history] == [0, 1, 1, 1, 1]


def test_a_replica_that_is_killed_reaches_the_driver_with_its_cause(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """O3, F5: kill -9 while it generates; every waiting call gets the cause, at once."""
    run = build(tiny, *ELSEWHERE, folder=tmp_path / "run")
    long = Request(
        id="long",
        prompt=(5, 6, 7),
        sampling=Sampling(max_new_tokens=200, min_new_tokens=200),
        seed=0,
    )

    async def whole() -> None:
        container = run.container
        try:
            await container.processes().start()
            rollout = container.processes().replicas["rollout-0"]
            assert (await rollout.generate(long)).stop is StopReason.LENGTH
            await rollout.pause(PauseMode.KEEP)
            waiting = asyncio.ensure_future(rollout.generate(long))
            await asyncio.sleep(0.1)
            os.kill(rollout._process.pid, signal.SIGKILL)
            with pytest.raises(EngineFailed, match=r"rollout-0.*SIGKILL"):
                await asyncio.wait_for(waiting, 10)
            with pytest.raises(EngineFailed, match=r"rollout-0.*SIGKILL"):
                await asyncio.wait_for(container.transfer().transfer(1), 10)
        finally:
            await container.opened().close()

    asyncio.run(asyncio.wait_for(whole(), 100))
