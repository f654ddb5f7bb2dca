"""Configurations of `fit`: which losses learn from given answers, and what they read and allow.

The loss chooses the use case: `sft`, `dpo`, ... read answers that rows bring, all others answers
that the policy gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from hexpo.application.examples import Form
from hexpo.application.fit import FIT
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.catalogue import Entry
from hexpo.domain.errors import HexpoError
from hexpo.domain.objective import Loss, Objective, Term
from hexpo.domain.preference.catalogue import FITTED
from hexpo.infrastructure.config.options import entry, typed
from hexpo.infrastructure.config.schema import AlgorithmSection, RunConfig
from hexpo.infrastructure.config.structure import Problem

UNITS: Mapping[Form, Unit] = MappingProxyType(
    {Form.ANSWERS: Unit.TOKEN, Form.PAIRS: Unit.PAIR, Form.JUDGED: Unit.SEQUENCE}
)
"""What a user's own loss gives one number for."""

COLUMNS = frozenset(
    {
        "policy", "prediction", "entropy", "reference", "owner", "position", "token", "trained",
        "chosen", "group", "actions", "length", "prompt_length", "reference_point", "id",
    }
)  # fmt: skip
"""What a loss of `fit` may read."""

READ = frozenset({"loss", "aggregation", "constant"})
"""Keys of `algorithm` that mean something in `fit`."""


def loss_entry(config: RunConfig) -> Entry:
    """The chosen loss. Raises WrongValue: there is no such loss."""
    return entry("policy loss", config.algorithm.loss.name)


def form_of(config: RunConfig) -> Form | None:
    """What rows have to bring; None for a configuration of the loop.

    A function of the user's own is a loss of `fit` if it reads `chosen_S`.
    """
    found = loss_entry(config)
    reads = set(found.columns.sequences)
    if {"chosen", "group"} <= reads:
        return Form.PAIRS
    if "chosen" in reads:
        return Form.JUDGED
    return Form.ANSWERS if found.name in FITTED else None


def is_fit(config: RunConfig) -> bool:
    """Whether the configuration is one of `fit`."""
    try:
        return form_of(config) is not None
    except HexpoError:  # an unknown loss is refused elsewhere, with its nearest names
        return False


def needs_value_head(config: RunConfig) -> bool:
    """Whether the policy's engine gives a number a token in the place of a distribution."""
    return "prediction" in loss_entry(config).columns.tokens


def fit_objective(config: RunConfig, form: Form) -> Objective:
    """The one term that is minimised. Raises WrongValue: an unknown option or value."""
    chosen, found = config.algorithm, loss_entry(config)
    unit = found.unit or UNITS[form]
    default = Mode.TOKEN_MEAN if unit is Unit.TOKEN else Mode.SEQ_MEAN_TOKEN_MEAN
    loss = Loss(
        function=found.function,
        options=typed(found, chosen.loss.options),
        unit=unit,
        measures=found.measures,
    )
    mode = chosen.aggregation or found.default_mode or default
    return Objective(terms=(Term(name=FIT, loss=loss, mode=mode, constant=chosen.constant),))


def unread_keys(config: RunConfig) -> Iterator[Problem]:
    """Nothing is accepted and then ignored (M2)."""
    plain = AlgorithmSection()
    for name in ("kl", "entropy", "mask_cut", "terms", "shaping", "correction", "controllers",
                 "proximal"):  # fmt: skip
        if getattr(config.algorithm, name) != getattr(plain, name):
            yield Problem(
                f"algorithm.{name}",
                f"has no effect with the loss {config.algorithm.loss.name}, which learns from"
                " given answers; remove it",
            )
    if config.algorithm.advantage.name != plain.advantage.name:
        yield Problem(
            "algorithm.advantage.name",
            f"{config.algorithm.advantage.name}: given answers have no advantage; remove it",
        )
    if config.algorithm.zero_variance.treatment is not plain.zero_variance.treatment:
        yield Problem("algorithm.zero_variance", "given answers have no scores; remove it")
    for place, model in enumerate(config.models):
        yield Problem(
            f"models[{place}].role",
            f"nothing in `fit` reads a {model.role.value}; remove the model",
        )
    if config.rollout.temperature != 1.0:
        yield Problem(
            "rollout.temperature",
            f"{config.rollout.temperature:g}: likelihoods are learnt at temperature 1; use 1"
            " (evaluation.sampling.temperature may differ)",
        )


def columns_read(config: RunConfig) -> Iterator[Problem]:
    """Every column that the loss reads is there."""
    found = loss_entry(config)
    lacking = [
        name for name in (*found.columns.tokens, *found.columns.sequences) if name not in COLUMNS
    ]
    if lacking:
        yield Problem(
            "algorithm.loss.name",
            f"{found.name} reads {', '.join(lacking)}, which given answers do not have",
        )


def units(config: RunConfig) -> Iterator[Problem]:
    """A step splits into equal parts of whole rows, and the loss's unit allows the aggregation."""
    rows, parts = config.training.prompts_per_step, config.training.updates_per_batch
    if rows % parts:
        yield Problem(
            "training.updates_per_batch",
            f"{rows} rows do not split into {parts} equal parts; use a divisor of"
            " training.prompts_per_step",
        )
    form = form_of(config)
    term = fit_objective(config, form or Form.ANSWERS).terms[0]
    if term.loss.unit is not Unit.TOKEN and term.mode in (Mode.TOKEN_MEAN, Mode.TOKEN_SUM):
        yield Problem(
            "algorithm.aggregation",
            f"{term.mode.value} does not exist for {config.algorithm.loss.name}, which gives one"
            f" number a {term.loss.unit.value}; use {Mode.SEQ_MEAN_TOKEN_MEAN.value}",
        )
    is_norm = term.mode is Mode.SEQ_MEAN_TOKEN_SUM_NORM
    if is_norm != (config.algorithm.constant is not None):
        yield Problem(
            "algorithm.constant",
            f"belongs to {Mode.SEQ_MEAN_TOKEN_SUM_NORM.value}, and the aggregation is"
            f" {term.mode.value}; give both or neither",
        )
    if (
        form is Form.JUDGED
        and rows // max(parts, 1) < 2
        and "reference_point" in (loss_entry(config).columns.sequences)
    ):
        yield Problem(
            "training.prompts_per_step",
            f"{rows}: the reference point of {config.algorithm.loss.name} compares a prompt with"
            " another one's answer; use at least 2 rows an optimizer step",
        )


def value_head(config: RunConfig) -> Iterator[Problem]:
    """A head of values replaces the distribution: no adapters, no generation."""
    options = config.training.options
    if needs_value_head(config):
        if options.get("lora"):
            yield Problem("training.options.lora", "a reward model trains all weights; remove it")
        return
    if options.get("value_head"):
        yield Problem(
            "training.options.value_head",
            f"{config.algorithm.loss.name} learns a distribution, not a value; remove it, or use"
            " bradley_terry",
        )
