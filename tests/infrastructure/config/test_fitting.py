"""Configurations of `fit`: which loss means which use case, and what has no effect there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from hexpo.application.examples import Form
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.errors import ConfigurationError
from hexpo.entrypoints.library import require_use
from hexpo.infrastructure.config.algorithm import objective_of
from hexpo.infrastructure.config.check import problems
from hexpo.infrastructure.config.fitting import form_of
from hexpo.infrastructure.config.load import Resolved, load
from hexpo.infrastructure.plan import plan

Load = Callable[..., Resolved]

SFT = "algorithm.loss.name=sft"
DPO = "algorithm.loss.name=dpo"


def found(resolve: Load, *overrides: str) -> dict[str, str]:
    """Messages by key."""
    return {problem.key: problem.message for problem in problems(resolve(*overrides).config)}


def own_pairs(*, policy_T: Tensor, owner_T: Tensor, group_S: Tensor, chosen_S: Tensor) -> Tensor:
    return policy_T[:0]


@pytest.mark.parametrize(
    ("loss", "form", "unit"),
    [
        ("ppo", None, Unit.TOKEN),
        ("sft", Form.ANSWERS, Unit.TOKEN),
        ("dpo", Form.PAIRS, Unit.PAIR),
        ("sigmoid", Form.PAIRS, Unit.PAIR),
        ("ipo", Form.PAIRS, Unit.PAIR),
        ("bradley_terry", Form.PAIRS, Unit.PAIR),
        ("kto", Form.JUDGED, Unit.SEQUENCE),
        (f"{__name__}:own_pairs", Form.PAIRS, Unit.PAIR),
    ],
)
def test_the_loss_says_what_rows_must_bring(
    resolve: Load, loss: str, form: Form | None, unit: Unit
) -> None:
    """X7: a user's own function is recognised by its columns."""
    config = resolve(f"algorithm.loss.name={loss}").config
    assert form_of(config) is form
    assert objective_of(config).terms[0].loss.unit is unit
    require_use(config, fits=form is not None)
    with pytest.raises(ConfigurationError, match=r"use hexpo (train|fit)"):
        require_use(config, fits=form is None)


def test_fit_needs_no_reward_and_the_loop_does(mapping: dict[str, Any]) -> None:
    """M3."""
    del mapping["reward"]
    assert problems(load(mapping, overrides=[SFT]).config) == []
    assert [problem.key for problem in problems(load(mapping).config)] == ["reward.kind"]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["algorithm.kl.where=loss"], "algorithm.kl"),
        (["algorithm.entropy=0.1"], "algorithm.entropy"),
        (["algorithm.advantage={name: rloo}"], "algorithm.advantage.name"),
        (["algorithm.mask_cut=true"], "algorithm.mask_cut"),
        (["algorithm.zero_variance.treatment=drop"], "algorithm.zero_variance"),
        (["algorithm.terms=[{name: more, loss: {name: nll}}]"], "algorithm.terms"),
        (["models=[{role: critic}]"], "models[0].role"),
        (["rollout.temperature=0.5"], "rollout.temperature"),
        (["training.options.value_head=true"], "training.options.value_head"),
        (["training.updates_per_batch=3"], "training.updates_per_batch"),
        (["algorithm.constant=3"], "algorithm.constant"),
        (["algorithm.aggregation=seq-mean-token-sum-norm"], "algorithm.constant"),
    ],
)
def test_what_has_no_effect_in_fit_is_refused(
    resolve: Load, overrides: list[str], key: str
) -> None:
    """M2."""
    assert list(found(resolve, SFT, *overrides)) == [key]


def test_a_pair_has_no_mean_of_tokens(resolve: Load) -> None:
    """X7."""
    message = found(resolve, DPO, "algorithm.aggregation=token-mean")["algorithm.aggregation"]
    assert "one number a pair" in message
    assert objective_of(resolve(DPO).config).terms[0].mode is Mode.SEQ_MEAN_TOKEN_MEAN


def test_a_reference_point_needs_another_prompt(resolve: Load) -> None:
    """KTO: its z compares a prompt with another one's answer."""
    one = found(resolve, "algorithm.loss.name=kto", "training.prompts_per_step=1")
    assert "at least 2" in one["training.prompts_per_step"]


def test_a_reward_model_trains_all_weights(resolve: Load) -> None:
    """X6: a value head stands on the whole model."""
    lora = found(resolve, "algorithm.loss.name=bradley_terry", "training.options.lora={rank: 4}")
    assert "all weights" in lora["training.options.lora"]


def test_the_plan_of_a_fit_counts_rows_and_no_rollout(resolve: Load) -> None:
    """M3: two sequences a pair, and no cache of answers in flight."""
    made = plan(resolve(DPO, "training.prompts_per_step=4", "run.steps=10"))
    numbers = {number.name: number for number in made.numbers}
    assert numbers["rows a step"].value == "4"
    assert numbers["rows a step"].why.startswith("8 sequences")
    assert numbers["rows of the run"].value == "40"
    assert numbers["tokens a step, at most"].value == str(8 * 96)
    memory = {number.name for number in made.memory}
    assert "reference" in memory
    assert not memory & {"cache", "rollout weights"}
    assert "rollout" not in made.placement[0].why
    assert made.problems == ()
