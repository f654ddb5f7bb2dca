"""The same run, its parts in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexpo.application.train import RunReport
from hexpo.entrypoints.library import build

SEVERAL = ("cluster.options.oversubscribe=true", "run.steps=3", "evaluation.every=0")


def trained(tiny: dict[str, Any], *overrides: str) -> RunReport:
    return build(tiny, *SEVERAL, *overrides).train()


@pytest.mark.slow
@pytest.mark.parametrize(
    "placed",
    [
        ["rollout.replicas=1"],
        ["training.ranks=2", "rollout.replicas=1"],
    ],
    ids=["a replica", "two ranks and a replica"],
)
def test_processes_train_what_one_process_trains(
    tiny: dict[str, Any], placed: list[str], tmp_path: Path
) -> None:
    """On policy: the same answers, rewards and losses, wherever the parts run."""
    alone = trained(tiny)
    spread = trained(tiny, *placed)
    assert spread.finished
    for one, other in zip(alone.history, spread.history, strict=True):
        assert other["reward/mean"] == pytest.approx(one["reward/mean"], abs=1e-6)
        assert other["train/gradient_norm"] == pytest.approx(one["train/gradient_norm"], rel=1e-3)


@pytest.mark.slow
def test_a_replica_runs_ahead_of_training(tiny: dict[str, Any]) -> None:
    """One version of staleness: generation and training at once, in two processes."""
    report = trained(tiny, "rollout.replicas=1", "asynchrony.max_staleness=1", "run.steps=5")
    assert report.finished
    assert max(step["schedule/age_max"] for step in report.history) <= 1


@pytest.mark.slow
def test_every_engine_is_compared_with_the_trainer(tiny: dict[str, Any]) -> None:
    """C1, G1: after each transfer, on two replicas."""
    report = trained(tiny, "rollout.replicas=2", "rollout.probe_every=1")
    assert report.finished
    assert all(step["agreement/probe"] < 2e-4 for step in report.history)


@pytest.mark.slow
def test_an_evaluation_runs_on_a_replica_of_its_own_while_training_goes_on(
    tiny: dict[str, Any],
) -> None:
    """Its report names the version that it measured; the last one waits for the last version."""
    tiny["data"]["evaluation"] = tiny["data"]["train"]
    report = trained(
        tiny, "rollout.replicas=2", "evaluation.every=1", "evaluation.beside=true",
        "asynchrony.max_staleness=1", "run.steps=4",
    )  # fmt: skip
    assert report.finished
    assert report.first_evaluation is not None
    assert report.last_evaluation is not None
    assert (report.first_evaluation.version, report.last_evaluation.version) == (0, 4)
