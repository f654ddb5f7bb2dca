"""Teachers through the real loop: routes, weights, metrics, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hexpo.adapters.simulated.world import SimulatedReward
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.trajectory import Scored
from hexpo.entrypoints.library import Run, build

FORWARD = "algorithm.terms=[{name: d, loss: {name: forward_kl}, coefficient: 0.1}]"
SAMPLED = "algorithm.terms=[{name: d, loss: {name: sampled}, coefficient: 0.1}]"
FLAT = "algorithm.advantage={name: grpo}"


def teachers(*chosen: dict[str, Any], path: Path) -> str:
    lines = [{"role": "teacher", "path": str(path), **one} for one in chosen]
    return f"models={yaml.safe_dump(lines, default_flow_style=True)}"


def trained(tiny: dict[str, Any], *overrides: str) -> tuple[Run, list[dict[str, float]]]:
    run = build(tiny, *overrides)
    run.container.reward.override(SimulatedReward(lambda row: Scored(value=0.0)))
    return run, run.train().history


def test_rows_go_to_the_teacher_of_their_source(tiny: dict[str, Any], other_model: Path) -> None:
    """S4, S5: each teacher reports its own rows and its own divergence."""
    chosen = ({"name": "even", "sources": ["task-0"]}, {"name": "rest"})
    _, history = trained(tiny, FORWARD, teachers(*chosen, path=other_model), "run.steps=3")
    for row in history:
        samples = [row[f"teacher/{name}/samples"] for name in ("even", "rest", "none")]
        assert sum(samples) == 8
        assert samples[2] == 0
        tokens = [row.get(f"d/{name}/tokens", 0.0) for name in ("even", "rest")]
        assert sum(tokens) == row["tokens/taught"] == row["tokens/trained"]
        losses = [row.get(f"loss/d/{name}", 0.0) for name in ("even", "rest")]
        assert sum(losses) == pytest.approx(row["loss/d"])
        assert row["loss/d"] > 0
    for name in ("even", "rest"):
        assert sum(row[f"teacher/{name}/samples"] for row in history) > 0


def test_a_row_without_a_teacher_pulls_at_nothing_and_is_counted(
    tiny: dict[str, Any], other_model: Path
) -> None:
    """S4: with no task reward nothing else moves the policy; the term counts taught tokens only."""
    one = teachers({"sources": ["task-0"]}, path=other_model)
    _, history = trained(tiny, SAMPLED, one, "run.steps=4", "training.prompts_per_step=1")
    seen = set[float]()
    for row in history:
        untaught = row["teacher/none/samples"] == 4
        seen.add(row["teacher/none/samples"])
        assert row["tokens/taught"] == (0 if untaught else row["tokens/trained"])
        assert (row["train/gradient_norm"] == 0) is untaught
        assert all(math.isfinite(value) for value in row.values())
    assert seen == {0.0, 4.0}


def test_an_advantage_from_teachers_is_measured_for_each(
    tiny: dict[str, Any], other_model: Path
) -> None:
    """S5: the estimator is no term, so one that pulls at nothing reports."""
    chosen = ({"name": "even", "sources": ["task-0"]}, {"name": "odd", "sources": ["task-1"]})
    advantage = "algorithm.advantage={name: distillation}"
    _, history = trained(tiny, advantage, teachers(*chosen, path=other_model), "run.steps=3")
    for row in history:
        assert "loss/distillation" not in row
        parts = [name for name in ("even", "odd") if f"distillation/{name}/log_ratio" in row]
        sums = [row[f"distillation/{p}/log_ratio"] * row[f"distillation/{p}/tokens"] for p in parts]
        mean = sum(sums) / row["tokens/trained"]
        assert mean == pytest.approx(row["distillation/log_ratio"], abs=1e-5)
        assert row["train/gradient_norm"] > 0


def test_a_weight_scales_what_its_teacher_pulls(tiny: dict[str, Any], other_model: Path) -> None:
    """S5: twice the weight of the only teacher is twice the coefficient."""
    one = teachers({}, path=other_model)
    double = SAMPLED.replace("0.1", "0.2")
    runs = [
        trained(tiny, SAMPLED, teachers({"weight": 2.0}, path=other_model), "run.steps=1"),
        trained(tiny, double, one, "run.steps=1"),
    ]
    norms = [history[0]["train/gradient_norm"] for _, history in runs]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    nothing = teachers({"weight": 0.0}, path=other_model)
    _, history = trained(tiny, SAMPLED, nothing, "run.steps=1")
    assert history[0]["train/gradient_norm"] == 0


def test_distillation_over_kept_ids_draws_the_policy_to_its_teacher(
    tiny: dict[str, Any], other_model: Path
) -> None:
    """S1: without a task reward the divergence falls, through rows of several micro-batches."""
    one = teachers({"options": {"top_k": 16}}, path=other_model)
    _, history = trained(
        tiny,
        FORWARD.replace("0.1", "1.0"),
        one,
        "run.steps=10",
        "training.options.micro_tokens=64",
        "training.updates_per_batch=2",
    )
    assert history[-1]["loss/d"] < 0.8 * history[0]["loss/d"]


def test_the_exact_divergence_from_the_reference_begins_at_nothing(tiny: dict[str, Any]) -> None:
    """C10, O07: the reference is the model before training; a controller may follow the KL."""
    for estimator in ("full", "full_top_k"):
        kl = f"algorithm.kl={{where: loss, estimator: {estimator}, coefficient: 0.1}}"
        moves = "algorithm.controllers=[{name: adaptive_kl, options: {target: 50.0, horizon: 80}}]"
        run = build(tiny, kl, moves, "run.steps=3")
        run.container.reward.override(
            SimulatedReward(lambda row: Scored(value=float(row.tokens.sum() % 3)))
        )
        history = run.train().history
        assert history[0]["kl/kl"] == pytest.approx(0.0, abs=1e-5)
        assert history[-1]["kl/kl"] > 1e-4
        assert history[-1]["coefficient/kl"] < 0.1


@pytest.mark.parametrize(
    ("chosen", "override", "message"),
    [
        (({}, {}), FORWARD, "needs a name of its own"),
        (({"name": "a"}, {"name": "b"}), FORWARD, "one at most may be for all other sources"),
        (
            ({"name": "a", "sources": ["task-0"]}, {"name": "b", "sources": ["task-0"]}),
            FORWARD,
            "'task-0' has two teachers",
        ),
        (
            (
                {"name": "a", "options": {"top_k": 8}},
                {"name": "b", "sources": ["task-0"], "options": {"top_k": 9}},
            ),
            FORWARD,
            "a 8, b 9",
        ),
        (({},), FLAT, "nothing in algorithm reads a teacher"),
        (({"path": "no/such/folder"},), FORWARD, r"models\[0\]\.path.*no/such/folder"),
        (({"weight": 2.0},), "algorithm.advantage={name: distillation}", "use the term sampled"),
        (
            ({},),
            "algorithm.terms=[{name: d, loss: {name: jsd, options: {tail: false}}}]",
            "takes kept ids for the whole vocabulary; set top_k=",
        ),
        (
            ({},),
            "algorithm.kl={where: loss, estimator: full, target: teacher}",
            "there is that of: reference",
        ),
        (
            (),
            "algorithm.kl={where: loss, estimator: full_top_k, target: old}",
            "there is that of: reference, teacher",
        ),
        ((), "algorithm.kl={where: reward, estimator: full}", "is for the loss"),
        ((), FORWARD, "teacher"),
    ],
)
def test_what_teachers_cannot_do_is_refused_before_anything_loads(
    tiny: dict[str, Any],
    other_model: Path,
    chosen: tuple[dict[str, Any], ...],
    override: str,
    message: str,
) -> None:
    """M2, M3, S4, S6."""
    with pytest.raises(ConfigurationError, match=message):
        build(tiny, override, teachers(*chosen, path=other_model))


def test_fields_of_a_teacher_are_no_fields_of_a_critic(tiny: dict[str, Any]) -> None:
    """M2: what would be ignored is refused."""
    critic = "models=[{role: critic, name: a, sources: [task-0], weight: 2.0}]"
    with pytest.raises(ConfigurationError) as caught:
        build(tiny, "algorithm.advantage={name: gae}", critic)
    for field in ("name", "sources", "weight"):
        assert f"models[0].{field}" in str(caught.value)


def test_a_source_that_no_prompt_has_is_refused_with_the_nearest_one(
    tiny: dict[str, Any], other_model: Path
) -> None:
    """S4: unknown keys fail at start."""
    run = build(tiny, FORWARD, teachers({"sources": ["task-O"]}, path=other_model))
    with pytest.raises(ConfigurationError, match="did you mean 'task-"):
        run.container.teacher()


def test_ranks_that_share_the_head_cannot_compare_distributions(
    tiny: dict[str, Any], other_model: Path
) -> None:
    """M3: said before a process is started."""
    options = "training.options={learning_rate: 0.01, tensor_parallel: 2}"
    with pytest.raises(ConfigurationError, match="ranks share the head, and d compares"):
        build(tiny, FORWARD, options, teachers({}, path=other_model), "training.ranks=2")


def test_a_policy_that_is_its_own_teacher_has_nothing_to_learn(
    tiny: dict[str, Any], tiny_model: Path
) -> None:
    """S1: 0 where both agree, in the trainer's and the teacher's arithmetic."""
    _, history = trained(tiny, FORWARD, teachers({}, path=tiny_model), "run.steps=1")
    assert history[0]["loss/d"] == pytest.approx(0.0, abs=1e-5)
    assert torch.tensor(history[0]["train/gradient_norm"]) < 1e-3
