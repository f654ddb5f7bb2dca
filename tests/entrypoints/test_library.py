"""A run built from Python: trained, overridden, resumed, measured."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers

from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.training import SimulatedTraining
from hexpo.adapters.simulated.world import SimulatedReward, SimulatedTokenizer, SimulatedTracker
from hexpo.application.ports.rollout import Request
from hexpo.domain.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    EngineFailed,
    RewardUnavailable,
)
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import Outcome, Scored, Trajectory
from hexpo.entrypoints.library import Run, build, resolve, resume
from hexpo.infrastructure import runs
from hexpo.infrastructure.container import Container


def simulated(run: Run) -> SimulatedTracker:
    """Replace all that is slow by what is scripted."""
    tracker, container = SimulatedTracker(), run.container
    container.rollout.override(
        providers.Singleton(SimulatedRollout, lambda request: Script(seconds=0.001))
    )
    container.training.override(providers.Singleton(SimulatedTraining, container.store))
    container.tokenizer.override(providers.Singleton(SimulatedTokenizer))
    container.reward.override(providers.Singleton(SimulatedReward))
    container.tracker.override(tracker)
    return tracker


def test_the_container_is_complete() -> None:
    """Every dependency that is not given has a provider."""
    free = {name for name, one in Container.dependencies.items() if not one.is_defined}
    assert free == {"config", "folder"}


def test_a_tiny_run_trains_and_gives_its_metrics_back(tiny: dict[str, Any]) -> None:
    """O25: a tiny random model and the in-process engine train 3 steps."""
    run = build(tiny)
    report = run.train()
    assert report.finished
    assert [row["step"] for row in report.history] == [1.0, 2.0, 3.0]
    assert all(0 <= row["reward/mean"] <= 1 for row in report.history)
    assert report.first_evaluation is not None
    assert report.last_evaluation is not None
    assert (report.first_evaluation.version, report.last_evaluation.version) == (0, 3)
    lines = (run.folder / runs.METRICS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]
    assert runs.summary(run.folder).state is runs.State.FINISHED


def test_two_runs_of_one_seed_are_equal_and_another_seed_is_not(tiny: dict[str, Any]) -> None:
    """Every random number follows from the seed."""
    tiny["evaluation"]["before"] = False
    tiny["run"]["steps"] = 2
    del tiny["data"]["evaluation"]
    tiny["evaluation"]["every"] = 0

    def rewards(*overrides: str) -> list[float]:
        run = build(tiny, *overrides)
        run.container.reward.override(
            SimulatedReward(lambda row: Scored(value=sum(map(ord, row.text)) % 7))
        )
        return [row["reward/mean"] for row in run.train().history]

    first = rewards()
    assert rewards() == first
    assert rewards("run.seed=1") != first


@pytest.mark.parametrize(
    "overrides",
    [
        (
            "algorithm.kl.where=loss",
            "algorithm.kl.unbiased=true",
            "algorithm.entropy=0.01",
            "training.options.lora={}",
        ),
        (
            "algorithm.kl.where=reward",
            "training.updates_per_batch=2",
            "training.epochs_per_batch=2",
        ),
        (
            "algorithm.loss={name: gspo}",
            "algorithm.proximal=behaviour",
            "algorithm.terms=[{name: sft, loss: {name: nll}, coefficient: 0.1}]",
        ),
        ("algorithm.advantage={name: reinforce_plus_plus}", "rollout.samples=1"),
        (
            "model.precision=bf16",
            "asynchrony={max_staleness: 1.5, order: window, window: 3, on_update: drain}",
        ),
    ],
    ids=lambda overrides: " ".join(overrides)[:60],
)
def test_settings_reach_the_loop(tiny: dict[str, Any], overrides: tuple[str, ...]) -> None:
    """M2: each of these is a setting of one loop, and trains."""
    del tiny["data"]["evaluation"]
    run = build(tiny, *overrides, "evaluation.every=0", "run.steps=2", "checkpoint.every=0")
    run.container.reward.override(
        SimulatedReward(lambda row: Scored(value=sum(map(ord, row.text)) % 7))
    )
    report = run.train()
    assert report.finished
    assert all("loss/policy" in row for row in report.history)


def test_an_override_holds_for_one_run_only(tiny: dict[str, Any]) -> None:
    """An instance's provider is overridden; a class's would change every later run."""
    first, second = build(tiny), build(tiny)
    mine = SimulatedReward()
    first.container.reward.override(mine)
    assert first.container.reward() is mine
    assert second.container.reward() is not mine
    asyncio.run(second.container.opened().close())


def test_an_application_that_brings_its_reward_configures_none(tiny: dict[str, Any]) -> None:
    """Also where it goes on; without one the run is refused as ever."""
    del tiny["reward"]
    with pytest.raises(ConfigurationError, match=r"reward\.kind"):
        build(tiny)
    mine = SimulatedReward(lambda row: Scored(value=0.25))
    engine = SimulatedRollout(lambda request: Script(seconds=0.001))
    run = build(tiny, "run.steps=1", reward=mine, rollout=engine)
    assert run.container.rollout() is engine
    run.container.training.override(providers.Singleton(SimulatedTraining, run.container.store))
    run.container.tokenizer.override(providers.Singleton(SimulatedTokenizer))
    assert run.train().history[-1]["reward/mean"] == 0.25
    assert resume(run.folder, reward=mine).container.reward() is mine


def test_a_simulated_run_needs_no_model(tiny: dict[str, Any]) -> None:
    """What only an overridden part needs is never made."""
    run = build(tiny, "run.steps=2")
    tracker = simulated(run)
    run.container.policy.override(providers.Callable(pytest.fail, "the model was loaded"))
    report = run.train()
    assert report.step == 2
    assert tracker.closed
    assert [step for step, _ in tracker.reports] == [0, 1, 2, 2]


def test_a_run_stopped_and_resumed_trains_each_step_once(tiny: dict[str, Any]) -> None:
    """H5: the second process goes on where the first one stopped, in the same folder."""
    run = build(tiny, "run.steps=500", "evaluation.every=0")
    tracker = simulated(run)
    run.container.reward.override(SimulatedReward(_stops_at(run, 100)))
    report = run.train()
    assert not report.finished
    assert 0 < report.step < 500
    assert runs.summary(run.folder).state is runs.State.INTERRUPTED
    again = resume(run.folder, f"run.steps={report.step + 2}")
    second = simulated(again)
    assert again.train().finished
    assert second.begun == [report.step]
    trained = [
        step for step, numbers in tracker.reports + second.reports if "reward/mean" in numbers
    ]
    assert trained == list(range(1, report.step + 3))


def _stops_at(run: Run, count: int) -> Callable[[Trajectory], Outcome]:
    """Grades, and asks the run to stop at some answer, from another thread."""
    seen = 0

    def grade(row: Trajectory) -> Outcome:
        nonlocal seen
        seen += 1
        if seen == count:
            thread = threading.Thread(target=run.stop)
            thread.start()
            thread.join()
        return Scored(value=float(row.id % 2))

    return grade


def test_a_run_that_fails_says_so_in_its_folder(tiny: dict[str, Any]) -> None:
    """A run folder is honest about how the run ended; the first failure is raised as it was."""
    run = build(tiny)
    simulated(run)

    def gone(_: object) -> Any:
        (run.folder / runs.METRICS).touch()  # as a tracker does that writes
        raise RewardUnavailable("the grader is gone")

    run.container.reward.override(SimulatedReward(gone))
    with pytest.raises(RewardUnavailable, match="the grader is gone"):
        run.train()
    found = runs.summary(run.folder)
    assert found.state is runs.State.FAILED
    assert "the grader is gone" in found.error


def test_bad_rows_are_found_before_the_model_is_loaded(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """E and M3: cheap things that can be wrong are made first."""
    rows = tmp_path / "bad.jsonl"
    rows.write_text('{"prompt": "x", "truth": "y"}\n{broken\n')
    tiny["data"]["train"]["options"]["paths"] = [str(rows)]
    run = build(tiny)
    run.container.policy.override(providers.Callable(pytest.fail, "the model was loaded"))
    with pytest.raises(DataError, match="row 2"):
        run.train()
    assert not run.folder.exists()  # a start that never was takes no name from the next
    assert build(tiny).folder == run.folder


def test_a_run_that_cannot_go_on_keeps_its_folder(tiny: dict[str, Any], tmp_path: Path) -> None:
    """What is resumed was there before, whatever fails now."""
    run = build(tiny)
    run._prepare_folder()  # as a run that was stopped before its first step
    rows = tmp_path / "gone.jsonl"
    rows.write_text("{broken\n")
    again = resume(run.folder, f"data.train.options.paths=[{rows}]")
    with pytest.raises(DataError):
        again.train()
    assert runs.summary(run.folder).state is runs.State.FAILED


def test_conflicts_are_refused_before_a_folder_is_made(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """M3: nothing is left behind by a configuration that cannot run."""
    with pytest.raises(ConfigurationError, match="2 things"):
        build(tiny, "rollout.samples=1", "rollout.sampling.top_p=0.5")
    assert not (tmp_path / "runs").exists()


def test_the_resolved_configuration_lies_in_the_run_folder(tiny: dict[str, Any]) -> None:
    """O21.6, M6."""
    run = build(tiny, "run.steps=1", "evaluation.before=false")
    simulated(run)
    run.train()
    assert resolve(run.folder / runs.CONFIG).config == run.config


def test_a_typed_configuration_builds_the_same_run(tiny: dict[str, Any]) -> None:
    """An application may change the typed value and hand it over."""
    config = resolve(tiny).config
    assert build(config).config == config


def test_a_run_can_be_awaited_inside_a_loop(tiny: dict[str, Any]) -> None:
    """Notebooks and servers have a loop; the blocking method says what to do there."""

    async def inside() -> int:
        run = build(tiny, "run.steps=1")
        simulated(run)
        with pytest.raises(ConfigurationError, match="_async"):
            run.train()
        return (await run.train_async()).step

    assert asyncio.run(inside()) == 1


def test_an_evaluation_measures_the_newest_checkpoint(tiny: dict[str, Any]) -> None:
    """The numbers of the training's last evaluation, from its folder alone."""
    run = build(tiny, "run.steps=2")
    report = run.train()
    again = resume(run.folder).evaluate()
    assert report.last_evaluation is not None
    before, after = report.last_evaluation.report, again.report
    assert [p.mean for p in after.prompts] == [p.mean for p in before.prompts]
    assert again.version == report.last_evaluation.version == 2


def test_an_evaluation_of_a_configuration_leaves_no_empty_folder(tiny: dict[str, Any]) -> None:
    """H5: nothing was trained or saved, so there is nothing to keep."""
    run = build(tiny)
    assert run.evaluate().version == 0
    assert not run.folder.exists()


def test_a_run_can_be_used_again_after_it_was_trained(tiny: dict[str, Any], tmp_path: Path) -> None:
    """What training closed is made again, from the newest checkpoint; what the application put in
    a part's place stays."""
    run = build(tiny, "run.steps=1", "evaluation.before=false")
    mine = SimulatedReward(lambda row: Scored(value=0.25))
    run.container.reward.override(mine)
    assert run.train().step == 1
    assert run.evaluate().version == 1
    assert run.container.reward() is mine
    assert run.export(tmp_path / "model") == 1
    again = run.train()
    assert (again.finished, again.history) == (True, [])


def test_a_stop_ends_one_training_not_the_next(tiny: dict[str, Any]) -> None:
    """H5: stopped before it began, a run ends at once; asked again it goes on."""
    run = build(tiny, "run.steps=1", "evaluation.before=false")
    simulated(run)
    run.stop()
    assert not run.train().finished
    simulated(run)
    assert run.train().finished
    run.stop()  # nothing runs, and nothing breaks


def test_a_run_of_several_processes_is_exported_without_its_replicas(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """H7: its configuration asks for a replica, which has nothing to do with a checkpoint."""
    run = build(tiny, "run.steps=1", "evaluation.before=false")
    run.train()
    again = resume(run.folder, "rollout.replicas=1")
    assert again.export(tmp_path / "model") == 1
    assert again.container.processes().replicas == {}


def test_a_checkpoint_becomes_a_model_folder(tiny: dict[str, Any], tmp_path: Path) -> None:
    """H7: another run starts from it."""
    run = build(tiny, "run.steps=1", "evaluation.before=false")
    run.train()
    assert resume(run.folder).export(tmp_path / "model") == 1
    tiny["model"]["path"] = str(tmp_path / "model")
    assert build(tiny, "run.steps=1").train().finished


def test_a_conversation_streams_whole_characters(tiny: dict[str, Any]) -> None:
    """Chat, through the facade."""

    async def talk() -> list[str]:
        run = build(tiny)
        conversation = await run.open_conversation()
        pieces = [piece async for piece in conversation.say("hello")]
        assert "".join(pieces) == conversation.messages[-1].content
        await run.close()
        return pieces

    assert asyncio.run(talk()) is not None


def test_a_conversation_that_cannot_begin_leaves_nothing_open(tiny: dict[str, Any]) -> None:
    """H5: a damaged checkpoint; what was made until then is closed."""

    class Damaged:
        async def latest(self) -> None:
            raise CheckpointError("no save is whole")

    run = build(tiny)
    simulated(run)
    engine = run.container.opened().keep(SimulatedRollout(lambda request: Script(seconds=0.001)))
    run.container.checkpoints.override(Damaged())
    with pytest.raises(CheckpointError, match="no save is whole"):
        asyncio.run(run.open_conversation())
    with pytest.raises(EngineFailed):
        asyncio.run(engine.generate(Request(id="1", prompt=(1,), sampling=Sampling(), seed=0)))


def test_building_changes_no_variable_and_starts_no_thread(tiny: dict[str, Any]) -> None:
    """An embedding application's process stays as it is."""
    before, threads = dict(os.environ), threading.active_count()
    build(tiny)
    assert dict(os.environ) == before
    assert threading.active_count() == threads
