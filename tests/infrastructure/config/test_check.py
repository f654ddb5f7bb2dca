"""Every conflict between keys, and between keys and adapters, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexpo.application.ports.rollout import PauseMode, RolloutCapabilities
from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure.config.capabilities import rollout_problems
from hexpo.infrastructure.config.check import problems, require_sound
from hexpo.infrastructure.config.load import Resolved

Load = Callable[..., Resolved]


def found(resolve: Load, *overrides: str) -> dict[str, str]:
    """Messages by key."""
    return {problem.key: problem.message for problem in problems(resolve(*overrides).config)}


def test_a_sound_configuration_has_no_problem(resolve: Load) -> None:
    """M3."""
    assert found(resolve) == {}
    require_sound(resolve().config)


def test_one_sample_a_prompt_with_a_group_estimator_is_refused(resolve: Load) -> None:
    """O03.3: the message names the setting and the estimator, and proposes."""
    message = found(resolve, "rollout.samples=1")["rollout.samples"]
    assert "grpo" in message
    assert "at least 2" in message
    assert "rollout.samples=8" in message
    alone = found(resolve, "rollout.samples=1", "algorithm.advantage={name: reinforce_plus_plus}")
    assert alone == {}


def test_a_batch_that_does_not_split_is_refused_with_what_would(resolve: Load) -> None:
    """M3: derived numbers and a valid proposal, never an assertion in the middle of a run."""
    message = found(resolve, "training.updates_per_batch=3")["training.updates_per_batch"]
    assert "8 prompts (x 8 samples = 64 sequences)" in message
    assert "updates_per_batch=2" in message
    assert "prompts_per_step=9" in message
    assert found(resolve, "training.updates_per_batch=2") == {}
    assert found(resolve, "training.updates_per_batch=3", "training.prompts_per_step=9") == {}


@pytest.mark.parametrize(
    "override",
    ["rollout.sampling.top_p=0.9", "rollout.sampling.top_k=5", "rollout.sampling.min_p=0.1"],
)
def test_a_support_that_the_trainer_cannot_reproduce_is_refused(
    resolve: Load, override: str
) -> None:
    """C2."""
    key = override.partition("=")[0]
    assert "support" in found(resolve, override)[key]


def test_an_evaluation_may_be_greedy_and_filtered(resolve: Load) -> None:
    """Nothing is trained on it."""
    assert (
        found(resolve, "evaluation.sampling.temperature=0", "evaluation.sampling.top_p=0.9") == {}
    )


def test_kl_in_two_places_has_to_be_said(resolve: Load) -> None:
    """KL in the loss and in the reward at once needs an explicit yes."""
    term = "algorithm.terms=[{name: pull, loss: {name: k3}}]"
    assert found(resolve, term) == {}
    assert "count twice" in found(resolve, term, "algorithm.kl.where=reward")["algorithm.kl.where"]
    assert found(resolve, "algorithm.kl.where=loss-and-reward") == {}


def test_kl_that_has_no_form_for_its_place_is_refused(resolve: Load) -> None:
    """An importance weight, or a whole distribution, in the reward."""
    assert "algorithm.kl.unbiased" in found(
        resolve, "algorithm.kl.where=reward", "algorithm.kl.unbiased=true"
    )
    assert (
        "unbiased form"
        in found(
            resolve,
            "algorithm.kl.where=loss",
            "algorithm.kl.unbiased=true",
            "algorithm.kl.estimator=abs",
        )["algorithm.kl"]
    )


def test_an_aggregation_that_the_unit_lacks_is_refused(resolve: Load) -> None:
    """A sequence loss has no token-mean."""
    message = found(resolve, "algorithm.loss={name: gspo}", "algorithm.aggregation=token-mean")
    assert "gspo" in message["algorithm.aggregation"]


def test_a_divisor_is_there_exactly_where_it_is_used(resolve: Load) -> None:
    """M2 and A7: needed, or without effect."""
    norm = "algorithm.aggregation=seq-mean-token-sum-norm"
    assert "algorithm.constant=32" in found(resolve, norm)["algorithm.constant"]
    assert found(resolve, norm, "algorithm.constant=32") == {}
    assert "no effect" in found(resolve, "algorithm.constant=32")["algorithm.constant"]


def test_a_column_that_nobody_provides_is_refused_with_who_needs_it(resolve: Load) -> None:
    """A critic, a greedy baseline, a teacher: before anything loads."""
    assert "critic" in found(resolve, "algorithm.advantage={name: gae}")["algorithm.advantage.name"]
    term = "algorithm.terms=[{name: v, loss: {name: value}}]"
    assert "critic" in found(resolve, term)["algorithm.terms[0].loss.name"]


def test_the_current_policy_is_no_start_of_several_steps(resolve: Load) -> None:
    """Its ratio would always be 1."""
    many = "training.updates_per_batch=2"
    assert found(resolve, many) == {}
    assert "stored" in found(resolve, many, "algorithm.proximal=current")["algorithm.proximal"]


def test_window_order_and_staleness_must_fit(resolve: Load) -> None:
    """O26: the largest window that fits is named."""
    assert "window" in found(resolve, "asynchrony.window=3")["asynchrony"]
    assert "window" in found(resolve, "asynchrony.order=window")["asynchrony"]
    fits = ("asynchrony.order=window", "asynchrony.max_staleness=1", "asynchrony.window=3")
    assert found(resolve, *fits) == {}
    wide = ("asynchrony.order=window", "asynchrony.max_staleness=1", "asynchrony.window=99")
    assert "largest window that fits" in found(resolve, *wide)["asynchrony"]


def test_an_evaluation_that_cannot_be_measured_is_refused(
    resolve: Load, mapping: dict[str, Any]
) -> None:
    """Beside training without a replica to spare; an evaluation without prompts."""
    assert "at least 2" in found(resolve, "evaluation.side=lease")["evaluation.side"]
    ranks = ("evaluation.side=trainer", "training.ranks=2")
    assert "training.ranks is 2" in found(resolve, *ranks)["evaluation.side"]
    del mapping["data"]["evaluation"]
    assert "evaluation.every" in found(resolve, "evaluation.every=2")


def test_answers_that_do_not_fit_into_the_context_are_refused(resolve: Load) -> None:
    """With a proposal that fits."""
    message = found(resolve, "rollout.max_new_tokens=200")["rollout.max_new_tokens"]
    assert "64 + 200 = 264" in message
    assert "data.max_prompt_tokens=56" in message


def test_missing_files_are_named(resolve: Load, tmp_path: Path) -> None:
    """M3: the model's folder and the rows, both at once."""
    message = found(
        resolve, "model.path=nowhere", f"data.train.options.paths=[{tmp_path / 'no.jsonl'}]"
    )
    assert "nowhere" in message["model.path"]
    assert "no.jsonl" in message["data.train.options.paths"]


def test_a_package_that_is_not_installed_names_its_command(resolve: Load) -> None:
    """Q2."""
    assert "pip install" in found(resolve, "model.path=package:not_here")["model.path"]


def test_two_terms_of_one_name_are_refused(resolve: Load) -> None:
    """Their metrics would mix."""
    term = "algorithm.terms=[{name: policy, loss: {name: nll}}]"
    assert "taken" in found(resolve, term)["algorithm.terms[0].name"]


def test_conflicts_are_reported_in_one_message(resolve: Load) -> None:
    """M3."""
    config = resolve(
        "rollout.samples=1", "rollout.sampling.top_p=0.5", "evaluation.side=lease"
    ).config
    with pytest.raises(ConfigurationError, match="3 things are wrong") as caught:
        require_sound(config)
    assert str(caught.value).count("\n  - ") == 3


def test_what_an_engine_cannot_do_is_refused(resolve: Load) -> None:
    """O21.2, M2: with what it can do."""
    config = resolve(
        "asynchrony.max_staleness=1",
        "asynchrony.on_update=keep",
        "rollout.sampling.stop_texts=[END]",
        "training.options.sent=adapters",
    ).config
    able = RolloutCapabilities(pause_modes=frozenset({PauseMode.DRAIN}))
    message = {problem.key: problem.message for problem in rollout_problems(config, able)}
    assert "it can drain" in message["asynchrony.on_update"]
    assert "live weights" in message["asynchrony.max_staleness"]
    assert "rollout.sampling.stop_texts" in message
    assert "takes whole weights; use merged" in message["training.options.sent"]
    all_of_it = RolloutCapabilities(
        pause_modes=frozenset(PauseMode), stop_texts=True, overlap=True, adapters=True
    )
    assert list(rollout_problems(config, all_of_it)) == []


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        ((), "rollout.options.adapter_rank", "the trainer sends whole weights"),
        (
            ("training.options.sent=adapters", "training.options.lora.rank=32"),
            "rollout.options.adapter_rank",
            "the trainer's have the rank 32",
        ),
        (
            ("training.options.sent=adapters", "training.options.lora.alpha=8"),
            "rollout.options.adapter_alpha",
            "the trainer's lora.alpha is 8",
        ),
    ],
)
def test_adapters_that_travel_alone_are_scaled_alike_on_both_sides(
    resolve: Load, overrides: tuple[str, ...], key: str, says: str
) -> None:
    """G5: alpha does not travel; another one would be another policy."""
    served = ("rollout.engine=vllm", "rollout.options={python: python, adapter_rank: 16}")
    sound = found(
        resolve, *served, "training.options.sent=adapters", "training.options.lora={rank: 16}"
    )
    assert not [name for name in sound if "adapter" in name or "sent" in name]
    assert says in found(resolve, *served, *overrides)[key]


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        (("training.ranks=2", "training.options.tensor_parallel=4"), "training", "multiple of 4"),
        (("training.ranks=3", "training.options.sequence_parallel=3"), "training", "attention"),
        (
            ("training.ranks=4", "training.options={tensor_parallel: 2, sequence_parallel: 2}"),
            "training",
            "this model has 2",
        ),
        (("training.options.tensor_parallel=2",), "training", "raise training.ranks"),
        (
            ("models=[{role: critic, options: {cpu_offload: true}}]",),
            "models[0]",
            "cpu_offload",
        ),
    ],
)
def test_a_model_that_cannot_be_spread_so_is_refused_before_anything_starts(
    resolve: Load, overrides: tuple[str, ...], key: str, says: str
) -> None:
    """M4: from the sizes in the model's own files; the message says what would do."""
    assert says in found(resolve, *overrides, "rollout.replicas=1")[f"{key}.options"]


def test_teams_that_fit_the_model_have_no_problem(resolve: Load) -> None:
    """M4: two neighbours cut four query heads and two key heads."""
    teams = ("training.ranks=4", "training.options.tensor_parallel=2", "rollout.replicas=1")
    assert found(resolve, *teams) == {}
