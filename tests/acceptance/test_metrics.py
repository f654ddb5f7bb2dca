"""N6: what every run reports without being asked, so that none of it disappears."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hexpo.application.continuing import OnUpdate
from hexpo.domain.schedule.accounting import Reason
from hexpo.entrypoints.testing.explorer import check
from hexpo.entrypoints.testing.scenarios import Scenario

LOOP: Mapping[str, tuple[str, ...]] = {
    "busy shares": ("busy/trainer", "busy/rollouts"),
    "waiting": ("time/wait", "time/step", "time/train", "time/score", "time/publish"),
    "transfer": ("time/transfer",),
    "pauses": (
        "rollout/pauses",
        "rollout/resumptions",
        "rollout/pausing_seconds",
        "rollout/paused_seconds",
        "rollout/paused_seconds_longest",
    ),
    "age of trained tokens": ("age/mean", "age/max"),
    "age of trained groups": ("schedule/age", "schedule/age_max"),
    "partial trajectories": ("partial/share", "partial/span", "partial/span_max"),
    "queue": ("queue/groups", "schedule/alive", "schedule/issued", "schedule/trained"),
    "dropped, with reasons": (
        "schedule/dropped",
        *(f"schedule/dropped/{reason.value}" for reason in Reason),
    ),
    "sent again": ("schedule/requeued",),
    "bias": ("bias/passed", "bias/dropped_share", "bias/trained_seconds"),
    "filters": ("groups/filtered", "groups/refilled", "groups/short"),
    "groups": ("group/alone", "group/empty", "group/flat", "group/unscored"),
    "rewards": ("reward/mean", "reward/min", "reward/max"),
    "answers": ("answer/length", "answer/finished_length", "answer/cut"),
    "samples": ("samples/generated", "samples/failed", "samples/unscored", "samples/left_out"),
    "tokens": (
        "tokens/generated",
        "tokens/trained",
        "tokens/masked/cut",
        "tokens/masked/failed",
        "tokens/masked/no_logprob",
        "tokens/masked/unscored",
    ),
}
REPLICAS = (
    "replicas/busy",
    "replicas/busy_least",
    "replicas/busy_most",
    "replicas/requests",
    "replicas/waiting",
    "replicas/moved",
    "replicas/fenced",
    "replicas/leased",
    "transfer/retries",
)
ENGINE = (
    "step",
    "loss/policy",
    "policy/ratio",
    "policy/clip_share",
    "policy/approximate_kl",
    "train/entropy",
    "train/gradient_norm",
    "train/clipped_steps",
    "train/skipped_steps",
    "train/learning_rate",
    "train/tokens",
)
"""Of the objective and the engine."""
EVALUATION = tuple(
    f"evaluate/held-out/{name}"
    for name in (
        "answers", "prompts", "prompts_without_score", "unscored", "mean", "pass@1", "majority@1",
        "step", "version",
    )
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def names_of_loop() -> set[str]:
    return {name for names in LOOP.values() for name in names}


RUNS: Mapping[str, tuple[dict[str, Any], set[str]]] = {
    "synchronous": ({}, set()),
    "asynchronous": ({"staleness": 1.0}, set()),
    "with replicas": (
        {"staleness": 1.0, "fleet": 2, "on_update": OnUpdate.CONTINUE},
        set(REPLICAS),
    ),
    "in parts": ({"staleness": 0.5, "parts": 2}, set()),
}


@pytest.mark.parametrize("kind", RUNS)
def test_every_step_of_a_run_reports_the_whole_list(kind: str) -> None:
    """N6: where time goes, how old tokens are, what was cut, what waits and what was dropped, in
    the first step as in the last."""
    changes, more = RUNS[kind]
    [world] = check(Scenario(seed=1, steps=4, tail=1.5, **changes))
    assert len(world.tracker.reports) == 4
    for _, numbers in world.tracker.reports:
        assert numbers.keys() >= names_of_loop() | more


def test_the_list_tells_where_the_time_of_an_asynchronous_run_goes() -> None:
    """N6, R3: the numbers are those of the run. A batch takes longer to play than to train: the
    trainer waits, rollouts are always busy, and tokens are one version old."""
    [world] = check(Scenario(seed=2, groups=4, steps=8, staleness=1.0, token_seconds=1.0, slots=2))
    _, last = world.tracker.reports[-2]
    assert last["busy/rollouts"] == pytest.approx(1.0, abs=0.02)
    assert last["busy/trainer"] == pytest.approx(last["time/train"] / last["time/step"])
    assert last["time/wait"] > last["time/train"] > 0
    parts = last["time/wait"] + last["time/train"] + last["time/publish"]
    assert parts == pytest.approx(last["time/step"], rel=0.01)
    ages = [numbers["age/max"] for _, numbers in world.tracker.reports]
    assert max(ages) == 1
    cut = [numbers["partial/share"] for _, numbers in world.tracker.reports]
    assert 0 < max(cut) <= 1


@pytest.mark.slow
def test_a_run_of_the_command_reports_the_engines_numbers_too(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path
) -> None:
    """N6: asynchronous, with an evaluation, on the embedded engine."""
    rows = {"kind": "jsonl", "options": {"paths": [str(tmp_path / "rows.jsonl")], "limit": 2}}
    changes = {
        "run": {"steps": 2},
        "data": {"evaluation": rows},
        "asynchrony": {"max_staleness": 1},
        "rollout": {"options": {"precision": "bf16"}},
    }
    command = hexpo("train", written(changes=changes))
    assert command.wait() == 0, command.err
    lines = (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    found: set[str] = set().union(*(json.loads(line) for line in lines))
    may_lack = {"answer/finished_length"}  # where the budget cut every answer
    assert found >= (names_of_loop() - may_lack) | set(ENGINE) | set(EVALUATION)
