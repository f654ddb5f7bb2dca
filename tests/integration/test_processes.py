"""The same run, its parts in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hexpo.application.schedule import RunReport
from hexpo.entrypoints.library import build

SEVERAL = ("cluster.options.oversubscribe=true", "run.steps=3", "evaluation.every=0")


def trained(tiny: dict[str, Any], *overrides: str, folder: Path | None = None) -> RunReport:
    return build(tiny, *SEVERAL, *overrides, folder=folder).train()


def require_equal(
    ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert other["step"] == one["step"]
        assert other["reward/mean"] == pytest.approx(one["reward/mean"], abs=1e-6)
        assert other["train/gradient_norm"] == pytest.approx(one["train/gradient_norm"], rel=1e-3)


@pytest.mark.slow
def test_a_replica_answers_what_the_trainers_process_answers(tiny: dict[str, Any]) -> None:
    """On policy: the same answers, rewards and losses, wherever the parts run."""
    spread = trained(tiny, "rollout.replicas=1")
    assert spread.finished
    require_equal(trained(tiny).history, spread.history)


@pytest.mark.slow
def test_a_run_goes_on_over_another_number_of_ranks(tiny: dict[str, Any], tmp_path: Path) -> None:
    """H8: in one process, over two ranks and a replica, and in one process again, each from the
    save of the one before: what a run that never moved trains."""
    places = [
        ("run.steps=2",),
        ("run.steps=4", "training.ranks=2", "rollout.replicas=1"),
        ("run.steps=5",),
    ]
    moved = [
        step for place in places for step in trained(tiny, *place, folder=tmp_path / "run").history
    ]
    require_equal(trained(tiny, "run.steps=5").history, moved)


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
        tiny, "rollout.replicas=2", "evaluation.every=1", "evaluation.side=lease",
        "asynchrony.max_staleness=1", "run.steps=4",
    )  # fmt: skip
    assert report.finished
    assert report.first_evaluation is not None
    assert report.last_evaluation is not None
    assert (report.first_evaluation.version, report.last_evaluation.version) == (0, 4)


@pytest.mark.slow
def test_the_trainer_answers_evaluations_while_generation_goes_on_elsewhere(
    tiny: dict[str, Any],
) -> None:
    """Y10: with its own weights of the version that is named: greedily, what a run in one process
    answers, which is the same bit for bit."""
    tiny["data"]["evaluation"] = tiny["data"]["train"]
    tiny["evaluation"] = {"every": 1, "sampling": {"temperature": 0}}
    answers = []
    for replicas in (1, 0):
        report = trained(
            tiny, f"rollout.replicas={replicas}", "evaluation.side=trainer", "run.steps=3"
        )
        last = report.last_evaluation
        assert last is not None
        assert last.version == 3
        rows = [row.trajectory for group in last.groups for row in group.rows]
        assert all((row.version[row.action] == 3).all() for row in rows)
        answers.append([row.tokens.tolist() for row in rows])
    assert answers[0] == answers[1]
