"""The same run, its parts as Ray actors."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hexpo.entrypoints.library import build

COMMON = ("run.steps=3", "evaluation.every=0")
ON_RAY = ("cluster.kind=ray", "cluster.options.cpus=3", "training.ranks=2", "rollout.replicas=1")


@pytest.mark.slow
@pytest.mark.skipif("HEXPO_ENGINES" not in os.environ, reason="make test-engines")
def test_two_ranks_and_a_replica_on_ray_train_what_one_process_trains(tiny: dict[str, Any]) -> None:
    """On policy, FSDP2 over two actors, weights by broadcast: the same rewards and gradients."""
    pytest.importorskip("ray")
    alone = build(tiny, *COMMON).train()
    spread = build(tiny, *COMMON, *ON_RAY, "rollout.probe_every=1").train()
    assert spread.finished
    for one, other in zip(alone.history, spread.history, strict=True):
        assert other["reward/mean"] == pytest.approx(one["reward/mean"], abs=1e-6)
        assert other["train/gradient_norm"] == pytest.approx(one["train/gradient_norm"], rel=1e-3)
        assert other["agreement/probe"] < 2e-4
