"""What is accepted, what is refused, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure.config.layers import Origin
from hexpo.infrastructure.config.load import Resolved, defaults, keys, load, write
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import is_section, members, plain

Load = Callable[..., Resolved]


def refusal(resolve: Load, *overrides: str) -> str:
    """The message of a configuration that cannot be loaded."""
    with pytest.raises(ConfigurationError) as caught:
        resolve(*overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("training.updates_per_bach", "updates_per_batch"),
        ("algorithm.kl.coeficient", "coefficient"),
        ("algorithm.loss.options.clip_ratio_hgih", "clip_high"),
        ("training.options.learning_rat", "learning_rate"),
        ("data.train.options.path", "paths"),
        ("platform.options.thread", "threads"),
        ("rolout.samples", "rollout"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_near_name(resolve: Load, key: str, near: str) -> None:
    """O21.1, from the command line: at the top, nested, and inside an adapter's own options."""
    message = refusal(resolve, f"{key}=1")
    assert "unknown" in message
    assert f"did you mean '{near}'?" in message


def test_a_misspelt_key_in_the_file_is_refused_too(mapping: dict[str, Any]) -> None:
    """O21.1."""
    mapping["rollout"]["temprature"] = 1.0
    with pytest.raises(
        ConfigurationError, match=r"rollout\.temprature.*did you mean 'temperature'"
    ):
        load(mapping)


def test_a_key_in_the_wrong_section_is_refused_with_its_section(resolve: Load) -> None:
    """M1: the right name in the wrong place."""
    assert "'training.options.learning_rate'" in refusal(resolve, "learning_rate=1e-5")
    assert "'rollout.temperature'" in refusal(resolve, "run.temperature=1")


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("rollout.temperature=0", "(0, 100]"),
        ("rollout.sampling.top_p=1.5", "(0, 1]"),
        ("rollout.samples=0", "[1, inf)"),
        ("run.steps=-3", "[1, inf)"),
        ("algorithm.kl.coefficient=-1", "[0, inf)"),
        ("asynchrony.max_staleness=-1", "[0, inf)"),
        ("rollout.sampling.min_p=.nan", "[0, 1]"),
        ("algorithm.loss.options.clip_low=-0.1", "clip_low"),
        ("training.options.learning_rate=0", "> 0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(
    resolve: Load, override: str, allowed: str
) -> None:
    """O21.4, M4: never clamped."""
    message = refusal(resolve, override)
    assert override.partition("=")[0].rpartition(".")[0] in message
    assert allowed in message


@pytest.mark.parametrize(
    "override",
    [
        "run.steps=1.5",
        "run.steps=true",
        "run.steps='3'",
        "rollout.temperature=hot",
        "evaluation.before=1",
        "rollout.sampling.stop_texts=abc",
        "run.name=3",
        "algorithm.aggregation=token-men",
        "trackers=3",
        "data.train=3",
        "algorithm.advantage.options.scale=grup",
    ],
)
def test_a_value_of_the_wrong_type_is_refused_not_coerced(resolve: Load, override: str) -> None:
    """M4: 1.5 steps are not one step, and a text is not a list of its letters."""
    message = refusal(resolve, override)
    assert override.partition("=")[0].split(".")[0] in message


def test_all_faults_are_reported_at_once(resolve: Load) -> None:
    """M3."""
    message = refusal(
        resolve, "run.stpes=1", "rollout.samples=0", "algorithm.loss.name=pppo", "reward.kind=moth"
    )
    assert message.startswith("4 things are wrong")
    for part in ("stpes", "rollout.samples", "did you mean ppo", "did you mean 'math'"):
        assert part in message


def test_what_has_no_default_must_be_given() -> None:
    """M3: each missing key is named, all at once."""
    with pytest.raises(ConfigurationError) as caught:
        load({})
    for key in ("model.path", "data.train.kind"):
        assert f"{key}: is missing" in str(caught.value)


def test_a_removed_key_names_its_replacement(resolve: Load) -> None:
    """O21.5, M1."""
    assert "rollout.n: is no key any more; use rollout.samples" in refusal(resolve, "rollout.n=3")


def test_an_unknown_adapter_is_refused_with_the_near_name(resolve: Load) -> None:
    """M1: before anything of it is imported."""
    assert "did you mean 'embedded'" in refusal(resolve, "rollout.engine=embeded")


def test_names_of_other_libraries_are_explained(resolve: Load) -> None:
    """An option or a loss that is called otherwise elsewhere."""
    assert "dual_clip" in refusal(resolve, "algorithm.loss.options.delta=3")
    assert "token-mean" in refusal(resolve, "algorithm.loss.name=bnpo")


def test_user_beats_model_beats_default(resolve: Load, mapping: dict[str, Any]) -> None:
    """Precedence; the model's folder says that its weights are single precision."""
    found = resolve()
    assert found.config.model.precision.value == "fp32"
    assert found.origin("model.precision") is Origin.MODEL
    found = resolve("model.precision=bf16")
    assert found.config.model.precision.value == "bf16"
    assert found.origin("model.precision") is Origin.OVERRIDE
    mapping["model"] = {"path": "package:not_here"}
    found = load(mapping)
    assert found.config.model.precision.value == "bf16"
    assert found.origin("model.precision") is Origin.DEFAULT


def test_each_value_knows_where_it_came_from(resolve: Load) -> None:
    """The plan prints it; options that only the adapter's defaults name are defaults."""
    found = resolve("training.options.learning_rate=1e-5")
    assert found.config.training.options["learning_rate"] == 1e-5
    assert found.origin("training.options.learning_rate") is Origin.OVERRIDE
    assert found.origin("training.options.weight_decay") is Origin.DEFAULT
    assert found.origin("data.max_prompt_tokens") is Origin.FILE
    assert found.origin("data.train.options.limit") is Origin.DEFAULT


def test_what_was_resolved_and_fed_back_is_the_same(resolve: Load, tmp_path: Path) -> None:
    """O21.6, M6: with every default named."""
    found = resolve("algorithm.advantage.options.scale=none", "run.steps=7", "evaluation.every=1")
    path = tmp_path / "config.yaml"
    write(found.config, path)
    again = load(path)
    assert again.config == found.config
    assert plain(again.config) == plain(found.config)
    assert again.config.training.options["clip_norm"] == found.config.training.options["clip_norm"]


def test_loading_changes_nothing_that_it_was_given(mapping: dict[str, Any]) -> None:
    """A mapping that an application gives stays its own."""
    before = repr(mapping)
    load(mapping, overrides=["data.train.options.limit=3"])
    assert repr(mapping) == before


FIRST_CLASS = """
run.name run.folder run.seed run.steps
model.path model.precision
data.train.kind data.evaluation.kind data.max_prompt_tokens data.on_long
reward.kind
rollout.engine rollout.agent.kind rollout.samples rollout.temperature rollout.max_new_tokens
rollout.replicas rollout.transfer rollout.probe_every rollout.retries rollout.deadline_seconds
cluster.kind training.ranks
training.backend training.prompts_per_step training.updates_per_batch training.epochs_per_batch
algorithm.advantage.name algorithm.loss.name algorithm.aggregation algorithm.constant
algorithm.proximal algorithm.kl.where algorithm.kl.coefficient algorithm.kl.estimator
algorithm.kl.unbiased algorithm.kl.target algorithm.entropy algorithm.mask_cut algorithm.terms
asynchrony.max_staleness asynchrony.order asynchrony.window asynchrony.on_update
asynchrony.placement
evaluation.every evaluation.before evaluation.samples
evaluation.side
checkpoint.every checkpoint.export checkpoint.kind
trackers platform.kind models
algorithm.controllers algorithm.correction algorithm.shaping
algorithm.zero_variance.treatment
""".split()


def test_the_first_class_keys_are_these_and_no_more_than_sixty() -> None:
    """A new key is a decision: it changes this list. An adapter's options are its own, and those
    of an answer (`sampling`) are those of `Sampling`."""
    found = [key for key in keys(RunConfig) if not key.endswith((".options", ".sampling"))]
    assert sorted(found) == sorted(FIRST_CLASS)
    assert len(found) <= 60


def test_defaults_are_plain_values() -> None:
    """One default a key, written so that a file could hold it."""
    found = defaults(RunConfig)
    assert found["rollout"]["samples"] == 8
    assert found["algorithm"]["kl"]["where"] == "none"
    assert "path" not in found["model"]


def sections(of: type[Any]) -> list[type[Any]]:
    """A section and all below it."""
    below = [
        option
        for field in attrs.fields(attrs.resolve_types(of))
        for option in members(field.type)
        if is_section(option)
    ]
    return [of, *(deeper for one in below for deeper in sections(one))]


def test_every_section_is_frozen_and_keyword_only() -> None:
    """A configuration is a value."""
    for section in sections(RunConfig):
        assert section.__setattr__ is not object.__setattr__, section
        assert all(field.kw_only for field in attrs.fields(section)), section
