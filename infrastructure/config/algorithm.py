"""The objective and the estimators that a configuration names, as values of the domain."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hexpo.domain.advantages.catalogue import estimator
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.agreement import AGREEMENT
from hexpo.domain.errors import WrongValue
from hexpo.domain.estimators import Estimator
from hexpo.domain.kl.catalogue import kl_estimator
from hexpo.domain.kl.reward import with_kl_in_reward
from hexpo.domain.kl.term import kl_loss
from hexpo.domain.losses.supervised import OBSERVATION
from hexpo.domain.masks.covariance import drawn_covariance, top_covariance
from hexpo.domain.masks.stored import KEPT, Covariant, Narrowing
from hexpo.domain.moving import ENTROPY, KL
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.domain.reading import Reading
from hexpo.domain.schedule import Plan, plan, window_of
from hexpo.infrastructure.config.choices import KLPlace, Start
from hexpo.infrastructure.config.correction import (
    factors_of,
    masks_of,
    normalising_of,
    resampling_of,
)
from hexpo.infrastructure.config.fitting import fit_objective, form_of
from hexpo.infrastructure.config.moving import moving_of
from hexpo.infrastructure.config.options import entry, typed
from hexpo.infrastructure.config.schema import FurtherModel, NamedFunction, RunConfig
from hexpo.infrastructure.config.teachers import hearing_of, measured, taught

PROXIMAL: Mapping[Start, Proximal] = {
    Start.CURRENT: Proximal.CURRENT,
    Start.STORED: Proximal.STORED,
    Start.BEHAVIOUR: Proximal.BEHAVIOUR,
}
"""The objective's word for each start that is not derived."""

TASK = "task"
"""Option of an estimator that adds to another one's advantage: that one's name."""


def estimators_of(config: RunConfig) -> tuple[Estimator, ...]:
    """What makes the advantages, one after the other; nothing in `fit`.

    Raises: WrongValue: see `estimator_of`.
    """
    if form_of(config) is not None:
        return ()
    last = estimator_of(config)
    if TASK not in last.needs.options:
        return (last,)
    name = last.options.get(TASK, last.needs.options[TASK])
    task = _named(config, NamedFunction(name=name))
    if task.per_token:
        raise WrongValue(f"{TASK}={name}: an estimator with one advantage a row is needed here")
    return (_shaped(config, task), last)


def estimator_of(config: RunConfig) -> Estimator:
    """The advantage estimator, with KL in its reward where that is chosen.

    Raises: WrongValue: an unknown name or option.
    """
    made = _named(config, config.algorithm.advantage)
    kl = config.algorithm.kl
    if kl.where in (KLPlace.REWARD, KLPlace.BOTH):
        made = with_kl_in_reward(
            made,
            kl_estimator(kl.estimator),
            coefficient=kl.coefficient,
            policy="old" if proximal_of(config) is Proximal.STORED else "behaviour",
            reference=kl.target.value,
        )
    return _shaped(config, made)


def _named(config: RunConfig, chosen: NamedFunction) -> Estimator:
    """An estimator of the catalogue, or a user's; `old` is `behaviour` where nothing scores it."""
    found = entry("advantage estimator", chosen.name)
    options, columns = typed(found, chosen.options), dict[str, str]()
    if "old" in found.columns.tokens and proximal_of(config) is not Proximal.STORED:
        columns["old"] = "behaviour"
    if ":" not in chosen.name:
        return estimator(found.name, options, columns=columns)
    function = Reading(found.function, columns) if columns else found.function
    return Estimator(function=function, options=options)


def _shaped(config: RunConfig, made: Estimator) -> Estimator:
    """The estimator with the shaped outcome in the place of the graded one (B10)."""
    if not config.algorithm.shaping or "score" not in made.needs.sequences:
        return made
    return attrs.evolve(made, function=Reading(made.function, {"score": "shaped"}))


def choices_of(config: RunConfig) -> tuple[Estimator, ...]:
    """Token columns of each optimizer step: what masks leave, and the covariant tokens."""
    chosen: list[Estimator] = []
    masks = masks_of(config)
    if masks:
        chosen.append(Estimator(function=Narrowing(masks=masks)))
    loss = entry("policy loss", config.algorithm.loss.name)
    if "covariant" in loss.columns.tokens:
        covariant = Covariant(
            function=top_covariance if loss.name == "kl_cov" else drawn_covariance,
            where=KEPT if masks else "trained",
            seed=config.run.seed,
        )
        chosen.append(Estimator(function=covariant))
    where = KEPT if masks else "trained"
    chosen += hearing_of(objective_of(config), where=where)
    chosen += [*normalising_of(config, where=where), *resampling_of(config)]
    return tuple(chosen)


def admission_plan(config: RunConfig) -> Plan:
    """How many groups may be alive. Raises WrongValue: window, order and staleness disagree."""
    chosen = config.asynchrony
    return plan(
        groups=config.training.prompts_per_step,
        max_staleness=chosen.max_staleness,
        window=window_of(chosen.order, window=chosen.window),
    )


def updates(config: RunConfig) -> int:
    """Optimizer steps that one batch makes."""
    return config.training.updates_per_batch * config.training.epochs_per_batch


def proximal_of(config: RunConfig) -> Proximal:
    """Which policy `old` is: with one optimizer step a batch it is the current one."""
    start = config.algorithm.proximal
    if start is Start.AUTO:
        return Proximal.CURRENT if updates(config) == 1 else Proximal.STORED
    return PROXIMAL[start]


def objective_of(config: RunConfig) -> Objective:
    """The sum of terms to minimise. Raises WrongValue: unknown name or option."""
    if (form := form_of(config)) is not None:
        return fit_objective(config, form)
    chosen = config.algorithm
    policy = _term(
        "policy", chosen.loss, of="policy loss", mode=chosen.aggregation, constant=chosen.constant
    )
    terms = [attrs.evolve(policy, factors=factors_of(config)), *_kl_terms(config)]
    if chosen.entropy or moving_of(config).entropy is not None:
        named = NamedFunction(name="entropy")
        terms.append(_term(ENTROPY, named, of="term", coefficient=chosen.entropy))
    terms += [
        _term(
            term.name,
            term.loss,
            of="term",
            coefficient=term.coefficient,
            mode=term.aggregation,
            constant=term.constant,
        )
        for term in chosen.terms
    ]
    if masks_of(config):
        terms = [
            term if term.mask == OBSERVATION else attrs.evolve(term, mask=KEPT, count=KEPT)
            for term in terms
        ]
    own = len(terms) - len(chosen.terms)
    terms[own:own] = measured(entry("advantage estimator", chosen.advantage.name), terms)
    terms = [taught(config, term) for term in terms]
    terms.insert(len(terms) - len(chosen.terms), AGREEMENT)
    return Objective(terms=tuple(terms), proximal=proximal_of(config))


def critic_objective(model: FurtherModel) -> Objective:
    """What a critic minimises. Raises WrongValue: unknown name or option."""
    term = _term(model.loss.name, model.loss, of="term", mode=model.aggregation)
    return Objective(terms=(term,))


def mode_of(chosen: NamedFunction, of: str, mode: Mode | None) -> Mode:
    """The aggregation: the configured one, else that of the loss's paper, else token-mean."""
    found = entry(of, chosen.name)
    if mode is not None:
        return mode
    if found.default_mode is not None:
        return found.default_mode
    is_per_token = found.unit in (None, Unit.TOKEN)
    return Mode.TOKEN_MEAN if is_per_token else Mode.SEQ_MEAN_TOKEN_MEAN


def _kl_terms(config: RunConfig) -> list[Term]:
    """The KL as a term; one that only measures where the KL acts in the reward alone."""
    kl = config.algorithm.kl
    if kl.where is KLPlace.NONE:
        return []
    if kl.where is KLPlace.REWARD:
        return [Term(name=KL, loss=kl_loss(kl.estimator, target=kl.target), coefficient=0.0)]
    if not kl.coefficient and moving_of(config).kl is None:
        return []  # a weight of 0 that stays 0 needs no reference
    loss = kl_loss(kl.estimator, unbiased=kl.unbiased, target=kl.target)
    return [Term(name=KL, loss=loss, coefficient=kl.coefficient)]


def _term(
    name: str,
    chosen: NamedFunction,
    *,
    of: str,
    mode: Mode | None = None,
    constant: float | None = None,
    coefficient: float = 1.0,
) -> Term:
    found = entry(of, chosen.name)
    loss = Loss(
        function=found.function,
        options=typed(found, chosen.options),
        unit=found.unit or Unit.TOKEN,
        measures=found.measures,
        silent_at_zero_advantage=found.silent_at_zero_advantage,
    )
    mask = OBSERVATION if "observation_weight" in loss.needs.tokens else "trained"
    return Term(
        name=name,
        loss=loss,
        coefficient=coefficient,
        mode=mode_of(chosen, of, mode),
        mask=mask,
        count=mask,
        constant=constant,
    )
