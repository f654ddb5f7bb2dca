"""O16, O03.5, O12 and O25 through the loop: what fails, what is left out, what is not there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers

from hexpo.adapters.simulated import clock
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.training import SimulatedTraining
from hexpo.adapters.simulated.world import SimulatedReward, SimulatedTokenizer, SimulatedTracker
from hexpo.application.ports.rollout import Request
from hexpo.domain.errors import ConfigurationError, MissingExtra
from hexpo.domain.trajectory import Cause, Failed, Outcome, Scored, Trajectory
from hexpo.entrypoints.library import Run, build

Grade = Callable[[Trajectory], Outcome]


def simulated(
    run: Run, script: Callable[[Request], Script], grade: Grade | None = None
) -> SimulatedTracker:
    """Engines and graders in virtual time."""
    tracker, container = SimulatedTracker(), run.container
    container.rollout.override(providers.Singleton(SimulatedRollout, script))
    container.training.override(providers.Singleton(SimulatedTraining, container.store))
    container.tokenizer.override(providers.Singleton(SimulatedTokenizer))
    container.reward.override(providers.Singleton(SimulatedReward, grade))
    container.tracker.override(tracker)
    return tracker


def test_one_raising_and_one_endless_rollout_cost_one_row_of_the_step(
    tiny: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O16: 3 groups of 4; deadline 2 s, one retry. The awaited sample is named by then."""
    run = build(
        tiny, "run.steps=1", "training.prompts_per_step=3", "rollout.deadline_seconds=2.0",
        "rollout.retries=1", folder=tmp_path / "run",
    )  # fmt: skip
    tries: list[str] = []

    def script(request: Request) -> Script:
        tries.append(request.id)
        if request.id == "train.1.0" and tries.count(request.id) == 1:
            return Script(seconds=0.5, error=ConnectionError("the tool server hung up"))
        return Script(seconds=1e9 if request.id == "train.1.2" else 1.0)

    tracker = simulated(run, script)
    with caplog.at_level(logging.WARNING):
        report = clock.run(run.train_async())
    assert report.finished
    [numbers] = report.history
    assert numbers["time/wait"] < 10
    assert tries.count("train.1.0") == 2
    assert tries.count("train.1.2") == 1
    assert numbers["samples/generated"] == 12
    assert numbers["samples/failed"] == 1
    assert numbers["tokens/trained"] == 11 * 4
    # Odd rows score 1 (see SimulatedReward): 2 of the endless one's 3 peers, not 2 of 4.
    assert numbers["reward/mean"] == pytest.approx(6 / 11)
    [endless] = [row for row in tracker.records if row.score is None]
    assert (endless.id, endless.stop) == (6, "timeout")
    assert "sample 1.2 (prompt" in caplog.text
    assert "no end within 2.0 s" in caplog.text


def test_a_group_without_a_score_is_dropped_counted_and_replaced(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """O03.5, F2: every answer of group 1 is ungraded; the step trains two other groups."""
    run = build(tiny, "run.steps=2", folder=tmp_path / "run")

    def grade(row: Trajectory) -> Outcome:
        if row.group == 1:
            return Failed(cause=Cause.RAISED, message="no such truth")
        return Scored(value=float(row.id % 2))

    tracker = simulated(run, lambda request: Script(), grade)
    first, second = clock.run(run.train_async()).history
    assert first["schedule/dropped/unscored"] == 1
    assert second["schedule/dropped/unscored"] == 0
    assert [first["schedule/trained"], second["schedule/trained"]] == [2, 2]
    assert [sorted({row.group for row in tracker.records if row.step == s}) for s in (1, 2)] == [
        [0, 2],
        [3, 4],
    ]


def test_no_kept_prompt_is_refused_by_the_engine_and_none_is_left_out_unseen(
    tiny: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O12, E1, E2: with the model's own template and engine, at the limit exactly."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{"x" * n}", "truth": "1"}}\n' for n in range(1, 9)))
    base = 3  # the message's two marks and the generation prompt: see examples/make_tiny.py
    run = build(tiny, "run.steps=4", f"data.max_prompt_tokens={base + 4}", folder=tmp_path / "run")
    run.container.tracker.override(tracker := SimulatedTracker())
    with caplog.at_level(logging.WARNING):
        run.train()
    lengths = {row.prompt_id: row.prompt_length for row in tracker.records}
    assert lengths == {f"rows.jsonl:{n}": base + n for n in (1, 2, 3, 4)}
    assert "4 of 8 prompts are longer than data.max_prompt_tokens = 7" in caplog.text
    first = [f"rows.jsonl:{n}: {base + n} ids, the limit is 7" for n in (5, 6, 7)]
    assert f"left out ({'; '.join(first)}; and 1 more)" in caplog.text
    assert "data.max_prompt_tokens=11 keeps them all" in caplog.text


def test_choosing_a_technology_that_is_not_installed_names_its_extra_and_loads_nothing(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """O25, Q2: before any model is loaded, and before a run folder is made."""
    version = metadata.version

    def installed(name: str) -> str:
        if name == "math-verify":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", installed)
    with pytest.raises((ConfigurationError, MissingExtra), match=r"hexpo\[math\]"):
        build({**tiny, "reward": {"kind": "math"}})
    assert not Path(tiny["run"]["folder"]).exists()


@pytest.mark.parametrize(
    ("override", "name"),
    [("rollout.engine=sglang", "sglang"), ("training.backend=megatron", "megatron")],
)
def test_an_engine_that_this_version_lacks_is_refused_with_what_there_is(
    tiny: dict[str, Any], override: str, name: str
) -> None:
    """O25, O21.2."""
    with pytest.raises(ConfigurationError, match=name) as caught:
        build(tiny, override)
    assert "embedded" in str(caught.value) or "fsdp" in str(caught.value)
