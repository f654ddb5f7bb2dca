"""Teachers by configuration: their names, whom each one teaches, and what that does to a term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from hexpo.domain.catalogue import Entry
from hexpo.domain.distillation.sampled import sampled, sampled_measures
from hexpo.domain.distillation.teachers import (
    NOBODY,
    SPOKEN,
    TAUGHT,
    Routing,
    Taught,
    teacher_weight,
)
from hexpo.domain.errors import HexpoError
from hexpo.domain.estimators import Estimator
from hexpo.domain.objective import Factor, Loss, Objective, Split, Term
from hexpo.infrastructure.config import served
from hexpo.infrastructure.config.choices import ModelRole
from hexpo.infrastructure.config.model import shape_of
from hexpo.infrastructure.config.schema import FurtherModel, RunConfig
from hexpo.infrastructure.config.structure import Problem
from hexpo.infrastructure.find import config_type

DISTILLATION = "distillation"
"""Name of the term that only measures, where teachers act through the advantage alone."""


def teachers_of(config: RunConfig) -> dict[str, FurtherModel]:
    """The teachers by name, in the order of their places."""
    chosen = [model for model in config.models if model.role is ModelRole.TEACHER]
    return {model.name or "teacher": model for model in chosen}


def served_teachers(config: RunConfig) -> dict[str, FurtherModel]:
    """Those of `teachers_of` that an engine serves in a process of its own."""
    return {name: model for name, model in teachers_of(config).items() if served.is_served(model)}


def routing_of(config: RunConfig) -> Routing | None:
    """Whom each teacher teaches; None where the run has none."""
    teachers = list(teachers_of(config).values())
    if not teachers:
        return None
    sources = {source: place for place, one in enumerate(teachers) for source in one.sources}
    others = [place for place, one in enumerate(teachers) if not one.sources]
    return Routing(sources=sources, otherwise=others[0] if others else NOBODY)


def taught(config: RunConfig, term: Term) -> Term:
    """A term that reads what a teacher says: it has the tokens that one spoke of, a denominator
    of their own, each teacher's weight, and metrics of each teacher."""
    if not term.token_columns & SPOKEN:
        return term
    teachers = teachers_of(config)
    weights = tuple(model.weight for model in teachers.values())
    factors = term.factors
    if any(weight != 1.0 for weight in weights):
        options = {"weights": weights}
        factors = (*factors, Factor(name="weight", function=teacher_weight, options=options))
    split = Split(column="taught_by", names=tuple(teachers))
    return attrs.evolve(term, mask=TAUGHT, count=TAUGHT, split=split, factors=factors)


def measured(estimator: Entry, terms: list[Term]) -> list[Term]:
    """A term that pulls at nothing and measures the teachers, where no other one does."""
    if not SPOKEN.intersection(estimator.columns.tokens):
        return []
    if any(term.token_columns & SPOKEN for term in terms):
        return []
    loss = Loss(function=sampled, measures=sampled_measures)
    return [Term(name=DISTILLATION, loss=loss, coefficient=0.0)]


def hearing_of(objective: Objective, *, where: str) -> list[Estimator]:
    """What finds the tokens that a teacher spoke of, if a term asks. Args: where: of which mask."""
    read = frozenset[str]().union(*(term.token_columns for term in objective.terms)) & SPOKEN
    return [Estimator(function=Taught(reads=tuple(sorted(read)), where=where))] if read else []


def problems(config: RunConfig, objective: Objective) -> Iterator[Problem]:
    """Teachers are told apart, each row has one at most, and all keep as many ids."""
    yield from _fields(config)
    yield from _routes(config)
    yield from _kept(config, objective)
    wide = any("teacher_topk" in term.token_columns for term in objective.terms)
    yield from served.problems(config, wide=wide)
    acts = any(term.token_columns & SPOKEN and term.coefficient for term in objective.terms)
    for place, model in enumerate(config.models):
        if model.weight != 1.0 and model.role is ModelRole.TEACHER and not acts:
            yield Problem(
                f"models[{place}].weight",
                f"{model.weight:g} weighs terms, and here teachers act through the advantage"
                f" {config.algorithm.advantage.name}: use the term sampled in its place",
            )


def _fields(config: RunConfig) -> Iterator[Problem]:
    for place, model in enumerate(config.models):
        given = {"name": model.name, "sources": model.sources, "weight": model.weight != 1.0}
        for field, value in given.items():
            if value and model.role is not ModelRole.TEACHER:
                yield Problem(
                    f"models[{place}].{field}", f"has no effect for a {model.role.value}: remove it"
                )


def _routes(config: RunConfig) -> Iterator[Problem]:
    chosen = [(n, m) for n, m in enumerate(config.models) if m.role is ModelRole.TEACHER]
    names = Counter(model.name for _, model in chosen)
    sources = Counter(source for _, model in chosen for source in model.sources)
    general = [place for place, model in chosen if not model.sources]
    for place, model in chosen:
        key = f"models[{place}]"
        if len(chosen) > 1 and (not model.name or names[model.name] > 1):
            yield Problem(f"{key}.name", "of several teachers each needs a name of its own")
        if model.name == "none" or "/" in model.name:
            yield Problem(f"{key}.name", f"{model.name!r} is no name for metrics; choose another")
        for source in model.sources:
            if sources[source] > 1:
                yield Problem(f"{key}.sources", f"{source!r} has two teachers; a row has one")
        if len(general) > 1 and place in general:
            yield Problem(
                f"{key}.sources",
                "of several teachers one at most may be for all other sources; name its own",
            )


def _kept(config: RunConfig, objective: Objective) -> Iterator[Problem]:
    teachers = teachers_of(config)
    widths = {name: top_k_of(model) for name, model in teachers.items()}
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{name} {width}" for name, width in widths.items())
        yield Problem("models", f"teachers keep different numbers of ids (top_k: {told}); use one")
    for place, term in enumerate(config.algorithm.terms):
        if term.loss.options.get("tail") is not False:
            continue
        try:
            vocabulary = shape_of(config.model.path).vocabulary or 0
        except HexpoError:
            continue  # listed elsewhere
        if any(width < vocabulary for width in widths.values()):
            yield Problem(
                f"algorithm.terms[{place}].loss.options.tail",
                f"false takes kept ids for the whole vocabulary; set top_k={vocabulary} in each"
                " teacher's options, which stores so many numbers a token, or use tail=true",
            )
    yield from _shared_heads(config, objective)


def _shared_heads(config: RunConfig, objective: Objective) -> Iterator[Problem]:
    options = config.training.options
    for key in ("tensor_parallel", "sequence_parallel"):
        if objective.compares and int(options.get(key, 1)) > 1:
            names = ", ".join(objective.terms[place].name for place in objective.compares)
            yield Problem(
                f"training.options.{key}",
                f"{options[key]}: ranks share the head, and {names} compares distributions over"
                " the whole vocabulary; use 1",
            )


def top_k_of(model: FurtherModel) -> int:
    """Ids that a teacher keeps of a distribution, by its options or the backend's default."""
    of = config_type(served.port_of(model), model.backend)
    field = attrs.fields_dict(of).get("top_k") if of is not None else None
    default = 0 if field is None else field.default
    return int(str(model.options.get("top_k", default)))
