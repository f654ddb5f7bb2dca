"""The objective and the estimator that a configuration names, as values of the domain."""

from __future__ import annotations

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.estimators import Estimator
from hexpo.domain.kl.catalogue import kl_estimator
from hexpo.domain.kl.reward import with_kl_in_reward
from hexpo.domain.kl.term import kl_loss
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.domain.schedule import Plan, plan, window_of
from hexpo.infrastructure.config.options import entry, typed
from hexpo.infrastructure.config.schema import (
    PROXIMAL,
    KLPlace,
    NamedFunction,
    RunConfig,
    Start,
)


def estimator_of(config: RunConfig) -> Estimator:
    """The advantage estimator, with KL in its reward where that is chosen.

    Raises: WrongValue: an unknown name or option.
    """
    chosen = config.algorithm.advantage
    found = entry("advantage estimator", chosen.name)
    estimator = Estimator(
        function=found.function,
        options=typed(found, chosen.options),
        min_samples=found.min_samples,
    )
    kl = config.algorithm.kl
    if kl.acts not in (KLPlace.REWARD, KLPlace.BOTH):
        return estimator
    return with_kl_in_reward(
        estimator,
        kl_estimator(kl.estimator),
        coefficient=kl.coefficient,
        policy="old" if proximal_of(config) is Proximal.STORED else "behaviour",
        reference=kl.target.value,
    )


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
    chosen = config.algorithm
    terms = [
        _term(
            "policy",
            chosen.loss,
            of="policy loss",
            mode=chosen.aggregation,
            constant=chosen.constant,
        )
    ]
    kl = chosen.kl
    if kl.acts in (KLPlace.LOSS, KLPlace.BOTH):
        loss = kl_loss(kl.estimator, unbiased=kl.unbiased, target=kl.target)
        terms.append(Term(name="kl", loss=loss, coefficient=kl.coefficient))
    if chosen.entropy:
        named = NamedFunction(name="entropy")
        terms.append(_term("entropy", named, of="term", coefficient=chosen.entropy))
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
    return Objective(terms=tuple(terms), proximal=proximal_of(config))


def mode_of(chosen: NamedFunction, of: str, mode: Mode | None) -> Mode:
    """The aggregation: the configured one, else that of the loss's paper, else token-mean."""
    found = entry(of, chosen.name)
    if mode is not None:
        return mode
    if found.default_mode is not None:
        return found.default_mode
    is_per_token = found.unit in (None, Unit.TOKEN)
    return Mode.TOKEN_MEAN if is_per_token else Mode.SEQ_MEAN_TOKEN_MEAN


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
    )
    return Term(
        name=name,
        loss=loss,
        coefficient=coefficient,
        mode=mode_of(chosen, of, mode),
        constant=constant,
    )
