"""How the parts of `fit` are made from a configuration: see `parts` for those of the loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hexpo.application.examples import ExampleReader, Form, readable
from hexpo.application.filtering import first_of
from hexpo.application.fit import FitSchedule
from hexpo.application.held_out import HeldOut, ReferencePoint, Scoring
from hexpo.application.learning import Recipe
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import DialogueTokenizer
from hexpo.application.ports.training import TrainingEngine
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.objective import Objective
from hexpo.infrastructure.config.fitting import form_of, needs_value_head
from hexpo.infrastructure.config.schema import RunConfig

log = logging.getLogger(__name__)


def make_reader(config: RunConfig, tokenizer: DialogueTokenizer) -> ExampleReader:
    """Reads rows as the loss wants them. Raises ConfigurationError: the loss is one of the loop."""
    return ExampleReader(
        form=_form(config),
        tokenizer=tokenizer,
        limit=config.data.max_prompt_tokens + config.rollout.max_new_tokens,
    )


def readable_source(
    config: RunConfig, source: PromptSource | None, reader: ExampleReader
) -> PromptSource | None:
    """The rows that can be learnt from; says how many were left out."""
    if source is None:
        return None
    found = readable(source, reader, on_long=config.data.on_long)
    if found.dropped:
        longest = max(row.length for row in found.dropped)
        room = longest - config.rollout.max_new_tokens
        log.warning(
            "%d of %d rows are left out (%s)%s",
            len(found.dropped),
            len(found.dropped) + len(found.source),
            first_of(found.dropped),
            f"; data.max_prompt_tokens={room} has room for each" if longest > reader.limit else "",
        )
    return found.source


def make_scoring(
    config: RunConfig, training: TrainingEngine, store: RowStore, recipe: Recipe
) -> Scoring:
    """Who says what of rows that are not learnt from: the policy, and its view before training."""
    present = ("value",) if needs_value_head(config) else ("old", "entropy")
    asked: Mapping[str, Scorer] = dict.fromkeys(present, training)
    return Scoring(store=store, scorers={**recipe.scorers, **asked})


def make_reference_point(objective: Objective, scoring: Scoring) -> ReferencePoint | None:
    """For a loss that reads one; None for the others."""
    reads = "reference_point" in objective.sequence_columns
    return ReferencePoint(scoring=scoring) if reads else None


def make_held_out(
    source: PromptSource | None,
    reader: ExampleReader,
    objective: Objective,
    scoring: Scoring,
    reference_point: ReferencePoint | None,
) -> HeldOut | None:
    """Measures held-out rows; None where there are none."""
    if source is None:
        return None
    return HeldOut(
        units=[reader.read(row) for row in source.rows()],
        objective=objective,
        scoring=scoring,
        reference_point=reference_point,
    )


def schedule_of(config: RunConfig) -> FitSchedule:
    """What happens when."""
    return FitSchedule(
        steps=config.run.steps,
        rows=config.training.prompts_per_step,
        evaluate_every=config.evaluation.every,
        evaluate_first=config.evaluation.before,
        save_every=config.checkpoint.every,
    )


def _form(config: RunConfig) -> Form:
    form = form_of(config)
    if form is None:
        raise ConfigurationError(
            f"algorithm.loss.name: {config.algorithm.loss.name} learns from answers that the policy"
            " gives; run hexpo train, or choose sft, dpo, ... (see hexpo algorithms)"
        )
    return form
