"""What an algorithm asks for beside the policy arrives, learns, and survives a stop."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from hexpo.adapters.simulated.world import SimulatedReward
from hexpo.domain.errors import ConfigurationError, RewardUnavailable
from hexpo.domain.objective import Objective
from hexpo.domain.trajectory import Scored, Trajectory
from hexpo.entrypoints.library import Run, build, resume

CRITIC = "models=[{role: critic, options: {learning_rate: 0.05}}]"
GAE = "algorithm.advantage={name: gae, options: {whitened: false, lam: 1.0}}"


def graded(row: Trajectory) -> Scored:
    """A number that differs between answers."""
    return Scored(value=sum(row.tokens.tolist()) % 7 / 7)


def half_flat(row: Trajectory) -> Scored:
    """Equal for all answers to every other prompt."""
    return Scored(value=0.5) if row.group % 2 else graded(row)


def run_of(tiny: dict[str, Any], *overrides: str, reward: Any = graded) -> Run:
    run = build(tiny, *overrides)
    run.container.reward.override(SimulatedReward(reward))
    return run


def weights(run: Run) -> dict[str, torch.Tensor]:
    policy = run.container.policy()
    return {name: policy.weight(name).clone() for name in policy.names()}


def test_a_critic_learns_the_outcome(tiny: dict[str, Any]) -> None:
    """X6, Y12: a second engine with its own optimizer; its error falls on a constant outcome."""
    run = run_of(tiny, GAE, CRITIC, "run.steps=12", reward=lambda row: Scored(value=1.0))
    history = run.train().history
    errors = [row["critic/value/squared_error"] for row in history]
    assert errors[0] == pytest.approx(1.0)  # it begins at 0 everywhere
    assert errors[-1] < 0.2
    assert history[0]["critic/learning_rate"] == 0.05
    assert history[0]["train/learning_rate"] == 0.01


def test_a_constant_critic_gives_the_return_to_go_as_advantage(tiny: dict[str, Any]) -> None:
    """At the first step every value is 0, so gae's advantage is the outcome at each token."""
    run = run_of(tiny, GAE, CRITIC)
    same = run_of(tiny, "algorithm.advantage={name: grpo}")

    def outcomes(*, score_S: torch.Tensor) -> torch.Tensor:
        return score_S

    last = same.container.estimators()[-1]
    same.container.estimators.override((attrs.evolve(last, function=outcomes, options={}),))
    norms = [one.train().history[0]["train/gradient_norm"] for one in (run, same)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        (GAE, CRITIC),
        (
            "algorithm.advantage={name: rae}",
            "algorithm.kl={where: loss, coefficient: 0.1}",
            "algorithm.controllers=[{name: adaptive_kl, options: {target: 0.01, horizon: 20}},"
            " {name: adaptive_entropy, options: {target: 9.0}}]",
        ),
    ],
    ids=["critic", "baselines and controllers"],
)
def test_a_resumed_run_goes_on_with_all_that_moved(
    tiny: dict[str, Any], overrides: tuple[str, ...]
) -> None:
    """H1, H2: critic, baselines and coefficients are part of a checkpoint."""
    whole = run_of(tiny, *overrides, "run.steps=4", "run.seed=3")
    history = whole.train().history
    first = run_of(tiny, *overrides, "run.steps=2", "run.seed=3", "checkpoint.every=2")
    first.train()
    again = resume(first.folder, "run.steps=4")
    again.container.reward.override(SimulatedReward(graded))
    later = again.train().history
    assert again.container.policy().digest() == whole.container.policy().digest()
    named = [key for key in history[-1] if key.startswith(("coefficient/", "critic/", "loss/"))]
    assert named
    for key in named:
        assert later[-1][key] == history[-1][key], key


def test_controllers_move_their_coefficients(tiny: dict[str, Any]) -> None:
    """algorithms.md: a KL under its target weakens its pull, an entropy under its own is raised."""
    run = run_of(
        tiny,
        "algorithm.kl={where: reward, coefficient: 0.1}",
        "algorithm.controllers=[{name: adaptive_kl, options: {target: 50.0, horizon: 80}},"
        " {name: adaptive_entropy, options: {target: 9.0, step: 0.01}}]",
        "run.steps=3",
    )
    history = run.train().history
    assert [row["coefficient/entropy"] for row in history] == pytest.approx([0, 0.01, 0.02])
    # Eight rows a step: 1 - 0.2 x 8 / 80.
    assert [row["coefficient/kl"] for row in history] == pytest.approx([0.1, 0.098, 0.09604])
    assert "kl/kl" in history[0]
    assert "loss/kl" not in history[0]


def test_rows_without_an_advantage_are_left_out_and_change_nothing(tiny: dict[str, Any]) -> None:
    """A1: denominators are those of the whole step, so that both runs make the same steps."""
    fast, slow = (run_of(tiny, "run.steps=3", reward=half_flat) for _ in range(2))
    objective: Objective = slow.container.objective()
    terms = tuple(
        attrs.evolve(term, loss=attrs.evolve(term.loss, silent_at_zero_advantage=False))
        for term in objective.terms
    )
    slow.container.objective.override(attrs.evolve(objective, terms=terms))
    left = [row["samples/left_out"] for row in fast.train().history]
    assert left == [4.0, 4.0, 4.0]
    assert [row["samples/left_out"] for row in slow.train().history] == [0.0, 0.0, 0.0]
    for name, weight in weights(fast).items():
        torch.testing.assert_close(weight, weights(slow)[name], rtol=1e-4, atol=2e-5)


def test_a_step_of_equal_scores_still_steps_with_its_moments(tiny: dict[str, Any]) -> None:
    """J1: a zero gradient is a gradient; one row is run so that the step is applied."""
    run = run_of(tiny, reward=lambda row: Scored(value=1.0))
    history = run.train().history
    assert [row["samples/left_out"] for row in history] == [7.0, 7.0]
    assert [row["train/skipped_steps"] for row in history] == [0.0, 0.0]
    assert all(row["train/gradient_norm"] == 0 for row in history)


@pytest.mark.parametrize(
    ("treatment", "filtered", "refilled", "short", "rows"),
    [
        ("keep", 0, 0, 0, 8),
        ("drop", 1, 0, 1, 4),
        ("resample", 1, 1, 0, 8),
        ("resample, options: {budget: 0}", 1, 0, 1, 4),
    ],
)
def test_flat_groups_are_kept_dropped_or_replaced(
    tiny: dict[str, Any], treatment: str, filtered: int, refilled: int, short: int, rows: int
) -> None:
    """K7: what happens when the batch cannot be filled, and the three counts."""
    run = run_of(
        tiny, f"algorithm.zero_variance={{treatment: {treatment}}}", "run.steps=1", reward=half_flat
    )
    (row,) = run.train().history
    assert row["groups/filtered"] == filtered
    assert row["groups/refilled"] == refilled
    assert row["groups/short"] == short
    assert row["samples/generated"] == rows


def test_a_run_whose_groups_are_all_flat_ends_with_a_reason(tiny: dict[str, Any]) -> None:
    """K7, O16: no endless generation."""
    run = run_of(
        tiny,
        "algorithm.zero_variance={treatment: resample, options: {budget: 3}}",
        reward=lambda row: Scored(value=1.0),
    )
    with pytest.raises(
        RewardUnavailable, match="all 69 groups that were asked for one batch were left out"
    ):
        run.train()


def test_a_greedy_answer_is_graded_once_a_prompt_and_never_trained(tiny: dict[str, Any]) -> None:
    """ReMax (2310.10505)."""
    seen: list[int] = []

    def count(row: Trajectory) -> Scored:
        seen.append(row.group)
        return graded(row)

    run = run_of(tiny, "algorithm.advantage={name: remax}", "run.steps=1", reward=count)
    (row,) = run.train().history
    assert row["samples/generated"] == 8
    assert sorted(seen) == [0] * 5 + [1] * 5
    assert math.isfinite(row["reward/greedy"])


def test_a_length_penalty_reaches_estimators_and_leaves_the_score(tiny: dict[str, Any]) -> None:
    """B10, K5: metrics show what was graded."""
    shaping = "algorithm.shaping=[{name: overlong, options: {maximum: 8, buffer: 8}}]"
    plain = run_of(tiny, "run.steps=1", reward=lambda row: Scored(value=1.0))
    shaped = run_of(tiny, shaping, "run.steps=1", "rollout.max_new_tokens=8",
                    reward=lambda row: Scored(value=1.0))  # fmt: skip
    before, after = plain.train().history[0], shaped.train().history[0]
    assert after["reward/mean"] == before["reward/mean"] == 1.0
    assert after["reward/shaping"] == pytest.approx(-after["answer/length"] / 8)
    assert before["samples/left_out"] == 7


def test_masks_narrow_what_is_trained_and_are_counted(tiny: dict[str, Any]) -> None:
    """A2, X6: what a mask of stored columns drops is in no denominator."""
    run = run_of(
        tiny,
        "algorithm.correction=[{name: top_entropy, options: {share: 0.5}}, {name: truncated}]",
        "training.updates_per_batch=2",
    )
    for row in run.train().history:
        # Answers to one prompt begin alike: equal entropies at the threshold stay together.
        assert 0.3 < row["tokens/rejected"] / row["tokens/trained"] <= 0.5
        assert row["policy/truncated/mean"] == pytest.approx(1.0, abs=1e-3)
        assert row["off_policy/kl"] == pytest.approx(0.0, abs=1e-4)


def test_agreement_is_measured_without_a_loss(tiny: dict[str, Any]) -> None:
    """C1."""
    (first, _) = run_of(tiny).train().history
    assert first["agreement/gap"] < 1e-3
    assert first["agreement/ratio"] == pytest.approx(1.0, abs=1e-3)
    assert "loss/agreement" not in first


def test_a_teacher_with_another_tokenizer_is_refused(
    tiny: dict[str, Any], other_model: Path, tmp_path: Path
) -> None:
    """S7."""
    stranger = tmp_path / "stranger"
    shutil.copytree(other_model, stranger)
    for file in stranger.glob("chat_template*"):
        file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    run = run_of(
        tiny,
        "algorithm.advantage={name: distillation}",
        f"models=[{{role: teacher, path: {stranger}}}]",
    )
    with pytest.raises(ConfigurationError, match="another tokenizer"):
        run.train()


def test_distillation_draws_the_policy_to_its_teacher(
    tiny: dict[str, Any], other_model: Path
) -> None:
    """S1: without a task reward the reverse KL to the teacher falls."""
    run = run_of(
        tiny,
        "algorithm.advantage={name: distillation}",
        "algorithm.kl={where: loss, target: teacher, estimator: k2, coefficient: 0.0001}",
        f"models=[{{role: teacher, path: {other_model}}}]",
        "run.steps=10",
        reward=lambda row: Scored(value=0.0),
    )
    history = run.train().history
    assert history[-1]["kl/kl"] < 0.8 * history[0]["kl/kl"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (CRITIC, "nothing in algorithm reads a critic"),
        ("training.options.value_head=true", "add a critic to models"),
        ("models=[{role: teacher}]", "give its path"),
        (f"models=[{CRITIC[8:-1]}, {CRITIC[8:-1]}]", "stands 2 times"),
        ("algorithm.controllers=[{name: adaptive_kl, options: {target: 1.0}}]", "no KL to move"),
        ("algorithm.controllers=[{name: adaptive_lk}]", "did you mean adaptive_kl"),
        ("algorithm.advantage={name: gdpo}", "which nothing in this run provides"),
        ("algorithm.zero_variance={treatment: drop, options: {bugdet: 3}}", "budget"),
        ("models=[{role: critic, options: {learning_rat: 1.0}}]", "learning_rate"),
    ],
)
def test_what_has_no_meaning_is_refused(tiny: dict[str, Any], override: str, message: str) -> None:
    """M2, M3."""
    with pytest.raises(ConfigurationError, match=message):
        build(tiny, override)


def test_a_loss_of_rows_and_an_advantage_of_tokens_are_refused_together(
    tiny: dict[str, Any],
) -> None:
    """M3: gspo has one ratio a row, and gae one advantage a token."""
    with pytest.raises(ConfigurationError, match="takes one advantage a row"):
        build(tiny, GAE, CRITIC, "algorithm.loss={name: gspo}")


def test_a_curriculum_asks_solved_prompts_no_more_and_survives_a_stop(
    tiny: dict[str, Any],
) -> None:
    """H1, H2: pass rates are part of a checkpoint; three of six prompts are solved at once."""
    band = "algorithm.zero_variance.options={easiest: 0.9, revisit: 0.0, budget: 8}"

    def solved(row: Trajectory) -> Scored:
        return Scored(value=1.0 if row.prompt.source == "task-0" else graded(row).value / 2)

    whole = run_of(tiny, band, "run.steps=6", reward=solved)
    history = whole.train().history
    assert sum(row["curriculum/left_out"] for row in history) >= 3
    assert [row["reward/max"] == 1.0 for row in history[3:]] == [False] * 3
    first = run_of(tiny, band, "run.steps=4", "checkpoint.every=4", reward=solved)
    first.train()
    again = resume(first.folder, "run.steps=6")
    again.container.reward.override(SimulatedReward(solved))
    again.train()
    assert again.container.policy().digest() == whole.container.policy().digest()


def test_a_band_that_holds_no_prompt_is_refused(tiny: dict[str, Any]) -> None:
    """M3."""
    with pytest.raises(ConfigurationError, match="no prompt would stay"):
        build(tiny, "algorithm.zero_variance.options={hardest: 0.6, easiest: 0.4}")
