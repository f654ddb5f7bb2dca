"""Which runs may train a batch part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hexpo.application.ports.rollout import PauseMode, RolloutCapabilities
from hexpo.domain.advantages.catalogue import ADVANTAGES, estimator
from hexpo.infrastructure.config.capabilities import rollout_problems
from hexpo.infrastructure.config.check import problems
from hexpo.infrastructure.config.load import Resolved
from hexpo.infrastructure.config.streaming import is_local

Load = Callable[..., Resolved]
STREAMING = (
    "asynchrony.placement=streaming",
    "training.updates_per_batch=4",
    "algorithm.proximal=behaviour",
)


def refused(resolve: Load, *overrides: str) -> str:
    """Why streaming is refused; empty where it is not."""
    found = problems(resolve(*STREAMING, *overrides).config)
    return "; ".join(one.message for one in found if one.key == "asynchrony.placement")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("algorithm.advantage={name: rloo}",),
        ("algorithm.loss={name: gspo}",),
        ("asynchrony.max_staleness=1",),
        ("algorithm.kl.where=loss", "algorithm.kl.unbiased=true"),
        ("algorithm.advantage={name: reinforce_plus_plus, options: {whitened: false}}",),
    ],
    ids=str,
)
def test_what_each_part_knows_by_itself_may_stream(
    resolve: Load, overrides: tuple[str, ...]
) -> None:
    """A1."""
    assert refused(resolve, *overrides) == ""


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("training.updates_per_batch=1", "updates_per_batch is 1"),
        ("training.epochs_per_batch=2", "a further pass"),
        ("algorithm.proximal=stored", "old must be scored .*proximal=behaviour"),
        ("algorithm.zero_variance={treatment: drop}", "leaves groups out"),
        ("algorithm.zero_variance={treatment: resample}", "leaves groups out"),
        ("algorithm.advantage={name: reinforce_plus_plus_baseline}", "compares all groups"),
        ("algorithm.advantage={name: grpo, options: {scale: batch}}", "compares all groups"),
        ("algorithm.advantage={name: gpg}", "compares all groups"),
        ("algorithm.advantage={name: reinforce_plus_plus}", "compares all groups"),
    ],
)
def test_what_needs_the_whole_batch_is_refused(resolve: Load, override: str, reason: str) -> None:
    """A1, M3: with the reason, before anything is loaded."""
    import re

    message = refused(resolve, override)
    assert re.search(reason, message), message
    assert message.endswith("use separate")


def test_an_engine_that_reads_live_weights_cannot_stream(resolve: Load) -> None:
    """C1: it would sample from weights in the middle of a batch."""
    config = resolve(*STREAMING).config
    for overlap in (False, True):
        able = RolloutCapabilities(
            pause_modes=frozenset(PauseMode), filtered_logprobs=True, overlap=overlap
        )
        found = [one.key for one in rollout_problems(config, able)]
        assert found == ([] if overlap else ["asynchrony.placement"])


LOCAL: dict[str, bool] = {
    "grpo": True,
    "grpo_passk": True,
    "maxrl": True,
    "rloo": True,
    "opo": True,
    "remax": True,
    "rae": True,
    "gdpo": False,
    "gpg": False,
    "reinforce_plus_plus_baseline": False,
}


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if not estimator(name).per_token])
def test_estimators_of_outcomes_are_tried_and_not_listed(name: str) -> None:
    """B2: whether a group's advantages follow from the group; a new estimator is added here."""
    options: dict[str, Any] = {"components": ("a", "b")} if name == "gdpo" else {}
    assert is_local(estimator(name, options)) is LOCAL[name]
