"""Learning from given answers through real engines: every loss, resume, splits, bad rows."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from hexpo.adapters.simulated.world import SimulatedTracker
from hexpo.application.fit import FitReport
from hexpo.domain.errors import CheckpointError, ConfigurationError, DataError, ModelError
from hexpo.domain.metrics import Metrics
from hexpo.domain.preference.catalogue import FITTED
from hexpo.domain.trajectory import Message, Prompt, Scored, StopReason, Trajectory
from hexpo.entrypoints.library import Run, build, resume
from hexpo.infrastructure.config.layers import merge

ROW = {
    "sft": lambda n: {"prompt": f"{n} + 1 = ?", "answer": str(n + 1)},
    "kto": lambda n: {"prompt": f"{n} + 1 = ?", "answer": str(n + n % 2), "label": bool(n % 2)},
    "pairs": lambda n: {"prompt": f"{n} + 1 = ?", "chosen": str(n + 1), "rejected": f"it is {n}"},
}


@pytest.fixture
def fitted(tiny: dict[str, Any], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A configuration of a loss, with six rows that it can read."""

    def make(loss: str, *, rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        make_row = ROW[loss if loss in ROW else "pairs"]
        given = rows if rows is not None else [make_row(n) for n in range(6)]
        data = tmp_path / "given.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in given))
        source = {"kind": "jsonl", "options": {"paths": [str(data)]}}
        base = {key: value for key, value in tiny.items() if key != "reward"}
        return merge(
            base,
            {
                "data": {"train": source, "evaluation": source},
                "algorithm": {"loss": {"name": loss}},
            },
        )

    return make


Fitted = Callable[..., dict[str, Any]]


def weights(run: Run) -> dict[str, torch.Tensor]:
    policy = run.container.policy()
    return {name: policy.weight(name).clone() for name in policy.names()}


@pytest.mark.parametrize("loss", list(FITTED))
def test_every_loss_of_fit_trains_and_its_held_out_loss_falls(fitted: Fitted, loss: str) -> None:
    """M2: two rows a step, two epochs; what is learnt shows on the same rows."""
    run = build(fitted(loss), "run.steps=6")
    before = run.container.policy().digest()
    report = run.fit()
    assert report.finished
    assert run.container.policy().digest() != before
    assert all(math.isfinite(value) for row in report.history for value in row.values())
    assert report.first_evaluation is not None
    assert report.last_evaluation is not None
    assert report.last_evaluation["loss/fit"] < report.first_evaluation["loss/fit"]
    assert [row["data/epoch"] for row in report.history] == [0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("loss", "rows", "updates"),
    [("sft", 3, 1), ("dpo", 3, 1), ("bradley_terry", 3, 1), ("kto", 3, 1), ("kto", 4, 2)],
)
def test_no_split_into_micro_batches_changes_a_weight(
    fitted: Fitted, loss: str, rows: int, updates: int
) -> None:
    """A1, X7: with room for one row (or pair) at a time, for all rows, and for two steps."""
    config = fitted(loss)
    whole, apart = (
        build(config, "run.steps=2", f"training.prompts_per_step={rows}",
              f"training.updates_per_batch={updates}",
              f"training.options.micro_tokens={tokens}")
        for tokens in (2000, 1)
    )  # fmt: skip
    norms = [run.fit().history[-1]["train/gradient_norm"] for run in (whole, apart)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0] > 0
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weights(apart)[name], weight, rtol=1e-4, atol=2e-5)


def test_each_optimizer_step_of_kto_has_its_own_reference_point(fitted: Fitted) -> None:
    """X6: six rows a step in three optimizer steps; the first step's policy is the reference."""
    run = build(fitted("kto"), "run.steps=2", "training.prompts_per_step=6",
                "training.updates_per_batch=3", "training.options.micro_tokens=1",
                "evaluation.before=false", "training.options.learning_rate=0.003")  # fmt: skip
    objective = run.container.objective()
    seen: list[list[float]] = []

    def watched(
        *, reference_point_S: torch.Tensor, **_: torch.Tensor | float
    ) -> dict[str, torch.Tensor]:
        seen.append(reference_point_S.tolist())
        return {}

    term = objective.terms[0]
    loss = attrs.evolve(term.loss, measures=watched)
    run.container.objective.override(
        attrs.evolve(objective, terms=(attrs.evolve(term, loss=loss),))
    )
    history = run.fit().history
    points = [point for part in seen for point in part]
    assert points[:6] == [0.0] * 6
    first, second, third = (points[place] for place in (6, 8, 10))
    assert points[6:12] == [first, first, second, second, third, third]
    assert len({first, second, third}) == 3
    mean = (first + second + third) / 3
    assert [row["kto/reference_point"] for row in history] == [0.0, pytest.approx(mean)]


@pytest.mark.parametrize(
    ("loss", "more"),
    [
        ("sft", ["training.options.lora={rank: 4, dropout: 0.3}", "training.updates_per_batch=2"]),
        ("dpo", ["training.options.schedule=cosine", "training.options.warmup_steps=2"]),
        ("kto", []),
        ("bradley_terry", []),
    ],
)
def test_a_resumed_run_is_the_straight_one_bit_for_bit(
    fitted: Fitted, loss: str, more: list[str]
) -> None:
    """O17: six rows, two a step, two epochs; stopped in the middle and at an epoch's end."""
    config = fitted(loss)
    straight = build(config, *more, "run.steps=5")
    history = straight.fit().history
    digest = straight.container.policy().digest()
    for stop in (2, 3) if loss == "sft" else (3,):
        first = build(config, *more, "run.steps=5")
        assert not stopped(first, after=stop).finished
        again = resume(first.folder)
        later = again.fit()
        assert later.finished
        assert [row["step"] for row in later.history] == list(range(stop + 1, 6))
        assert again.container.policy().digest() == digest
        for row, same in zip(later.history, history[stop:], strict=True):
            ours, theirs = without_times(row), without_times(same)
            assert ours == theirs


def without_times(row: Any) -> dict[str, float]:
    return {key: value for key, value in row.items() if not key.startswith(("time/", "busy/"))}


def stopped(run: Run, *, after: int) -> FitReport:
    """Fit, and ask for the end after so many steps, as Ctrl-C does."""

    class Stopping(SimulatedTracker):
        def report(self, step: int, metrics: Metrics) -> None:
            if step == after:
                run.container.fit().stop()

    run.container.tracker.override(Stopping())
    return run.fit()


def test_another_data_set_is_not_gone_on_with(fitted: Fitted, tmp_path: Path) -> None:
    """O17: its place in the data would mean nothing."""
    run = build(fitted("sft"), "run.steps=1")
    run.fit()
    with pytest.raises(CheckpointError, match="another data set"):
        resume(run.folder, "run.steps=2", "run.seed=1").fit()


@pytest.mark.parametrize(
    ("loss", "row", "words"),
    [
        ("sft", {"prompt": "1"}, ["'given.jsonl:2'", "'answer'", "missing", "the row has"]),
        ("dpo", {"prompt": "1", "chosen": "2"}, ["'given.jsonl:2'", "'rejected'", "missing"]),
        ("dpo", {"prompt": "1", "chosen": "2", "rejected": [3]}, ["'rejected[0]'", "role"]),
        ("dpo", {"prompt": "1", "chosen": "2", "rejected": " "}, ["'rejected'", "empty"]),
        ("kto", {"prompt": "1", "answer": "2"}, ["'label'", "true", "missing"]),
        ("kto", {"prompt": "1", "answer": "2", "label": "good"}, ["'label'", "'good'"]),
        ("sft", {"prompt": 3, "answer": "2"}, ["row 2", "'prompt'"]),
    ],
)
def test_a_bad_row_is_named_with_its_field_before_a_model_loads(
    fitted: Fitted, loss: str, row: dict[str, Any], words: list[str]
) -> None:
    """E3, M3."""
    run = build(fitted(loss, rows=[ROW["kto"](1) | ROW["pairs"](1), row]))
    run.container.policy.override(None)
    with pytest.raises(DataError) as raised:
        run.fit()
    for word in words:
        assert word in str(raised.value)


@pytest.mark.slow
def test_a_trained_reward_model_grades_a_run_of_the_loop(
    fitted: Fitted, tiny: dict[str, Any], other_model: Path
) -> None:
    """X6: its folder is a reward; the better answer of each pair that it learnt gets more."""
    trained = build(
        fitted("bradley_terry"), "run.steps=12", "checkpoint.export=true",
        "training.options.learning_rate=0.02",
    )  # fmt: skip
    report = trained.fit()
    assert report.last_evaluation is not None
    assert report.last_evaluation["fit/accuracy"] == 1.0
    folder = trained.folder / "model"
    reward = {"kind": "model", "options": {"path": str(folder), "full_precision": True}}
    run = build(tiny | {"reward": reward}, "run.steps=1")

    def answered(number: int, *, chosen: bool) -> Trajectory:
        row = ROW["pairs"](number)
        unit = trained.container.reader().read(
            Prompt(id="r", messages=(Message("user", row["prompt"]),), extra=row)
        )
        example = unit[0 if chosen else 1]
        nothing = torch.zeros(len(example.tokens))
        return Trajectory(
            id=int(chosen), group=number, prompt=Prompt(id="r", messages=()),
            tokens=example.tokens, action=example.action, prompt_length=example.prompt_length,
            behaviour=nothing, version=nothing.long(), stop=StopReason.STOP,
        )  # fmt: skip

    async def scores() -> list[list[float]]:
        grader = run.container.reward()
        graded = []
        for number in range(6):
            pair = [answered(number, chosen=one) for one in (True, False)]
            outcomes = await grader.grade(pair)
            graded.append([one.value for one in outcomes if isinstance(one, Scored)])
        return graded

    found = asyncio.run(scores())
    assert [better > worse for better, worse in found] == [True] * 6
    mean = sum(better for better, _ in found) / 6
    assert mean == pytest.approx(report.last_evaluation["fit/chosen"], rel=1e-3)
    assert math.isfinite(run.train().history[0]["reward/mean"])
    reward["options"]["path"] = str(other_model)
    with pytest.raises(ModelError, match="no head of scores"):
        build(tiny | {"reward": reward}).train()


def test_a_reward_model_is_not_asked_for_answers(fitted: Fitted) -> None:
    """M2."""
    run = build(fitted("bradley_terry"))
    with pytest.raises(ConfigurationError, match="gives no answers"):
        run.evaluate()


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(fitted: Fitted) -> None:
    """A1, X7: no pair is torn between ranks."""
    config = fitted("dpo")
    alone, together = (
        build(config, "run.steps=1", "training.prompts_per_step=4", f"training.ranks={ranks}")
        for ranks in (1, 2)
    )
    one, two = (run.fit() for run in (alone, together))
    norms = [report.history[0]["train/gradient_norm"] for report in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert one.last_evaluation is not None
    assert two.last_evaluation is not None
    for name, value in one.last_evaluation.items():
        assert two.last_evaluation[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
