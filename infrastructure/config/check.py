"""Everything that two keys, or a key and an adapter, can disagree about: all at once (M3).

Each check is a small function from a configuration to problems; none loads a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

from hexpo.application.schedule import Side
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.errors import HexpoError, WrongValue
from hexpo.domain.objective import Proximal
from hexpo.infrastructure.config import (
    capabilities,
    drawing,
    fitting,
    foresight,
    model,
    roles,
    spreading,
)
from hexpo.infrastructure.config.algorithm import (
    admission_plan,
    estimator_of,
    mode_of,
    objective_of,
    proximal_of,
    updates,
)
from hexpo.infrastructure.config.choices import KLPlace
from hexpo.infrastructure.config.load import refuse
from hexpo.infrastructure.config.options import entry
from hexpo.infrastructure.config.schema import NamedFunction, RunConfig
from hexpo.infrastructure.config.streaming import streaming
from hexpo.infrastructure.config.structure import Problem
from hexpo.infrastructure.find import adapter

Check = Callable[[RunConfig], Iterator[Problem]]


def problems(config: RunConfig) -> list[Problem]:
    """All conflicts of a configuration, in the order of its sections."""
    checks = FIT_CHECKS if fitting.is_fit(config) else CHECKS
    return [problem for check in checks for problem in check(config)]


def require_sound(config: RunConfig, *, brings_reward: bool = False) -> None:
    """Raises ConfigurationError that lists every conflict; loads nothing.

    Args: brings_reward: an application has a grader of its own, so none has to be configured.
    """
    found = [one for one in problems(config) if one.key != "reward.kind" or not brings_reward]
    if found:
        raise refuse(found)


def grader(config: RunConfig) -> Iterator[Problem]:
    """Somebody says what an answer is worth."""
    if config.reward is None:
        yield Problem("reward.kind", "missing: nothing says what an answer is worth")


def batch_arithmetic(config: RunConfig) -> Iterator[Problem]:
    """A batch splits into equal mini-batches of whole groups."""
    prompts, parts = config.training.prompts_per_step, config.training.updates_per_batch
    if prompts % parts:
        fitting = [n for n in range(1, prompts + 1) if prompts % n == 0]
        below = max(n for n in fitting if n <= parts)
        above = -(-prompts // parts) * parts
        yield Problem(
            "training.updates_per_batch",
            f"{prompts} prompts (x {config.rollout.samples} samples ="
            f" {prompts * config.rollout.samples} sequences) do not split into {parts} equal"
            f" mini-batches of whole groups; use updates_per_batch={below}, or"
            f" prompts_per_step={above}",
        )


def group_size(config: RunConfig) -> Iterator[Problem]:
    """A group estimator gets a group (B2)."""
    found = entry("advantage estimator", config.algorithm.advantage.name)
    wanted, have = found.min_samples, config.rollout.samples
    if have < wanted:
        yield Problem(
            "rollout.samples",
            f"algorithm.advantage={config.algorithm.advantage.name} compares the answers of a"
            f" prompt and needs at least {wanted}, not {have}: with fewer every advantage is 0;"
            f" use rollout.samples={max(wanted, 8)}, or an estimator without a group"
            " (see hexpo algorithms)",
        )


def sampling(config: RunConfig) -> Iterator[Problem]:
    """The trainer has the distribution that the rollout drew from (C2)."""
    drawn = drawing.training_sampling(config)
    for key, value, neutral in (
        ("top_p", drawn.top_p, 1.0),
        ("top_k", drawn.top_k, 0),
        ("min_p", drawn.min_p, 0.0),
    ):
        if value != neutral:
            yield Problem(
                f"rollout.sampling.{key}",
                f"{value} cuts tokens from the support, and the trainer computes log-probs over"
                f" the whole vocabulary: ratios would be wrong; use {neutral:g} in training"
                " (evaluation.sampling may filter)",
            )
    if drawn.min_new_tokens > drawn.max_new_tokens:
        yield Problem(
            "rollout.sampling.min_new_tokens",
            f"{drawn.min_new_tokens} is more than rollout.max_new_tokens ="
            f" {drawn.max_new_tokens}; lower it",
        )


def kl_place(config: RunConfig) -> Iterator[Problem]:
    """KL acts once, unless it was said to act twice."""
    chosen = config.algorithm
    in_terms = [
        term.name
        for term in chosen.terms
        if capabilities.REFERENCE.intersection(_token_columns(term.loss))
    ]
    if in_terms and chosen.kl.acts is not KLPlace.NONE:
        yield Problem(
            "algorithm.kl.where",
            f"{chosen.kl.where.value}, and the term {in_terms[0]!r} reads the reference too: the"
            " pull would count twice; set algorithm.kl.where=none or remove the term",
        )


def kl_form(config: RunConfig) -> Iterator[Problem]:
    """The KL that is asked for exists where it is asked for."""
    kl = config.algorithm.kl
    in_reward = kl.acts in (KLPlace.REWARD, KLPlace.BOTH)
    if kl.unbiased and in_reward:
        yield Problem(
            "algorithm.kl.unbiased",
            f"an importance weight has no place in the reward (where={kl.where.value}); set false",
        )
    if kl.acts is KLPlace.NONE:
        return
    try:
        objective_of(config)
        estimator_of(config)
    except HexpoError as error:
        yield Problem("algorithm.kl", str(error))
    lacking = capabilities.lacking_for_kl(config)
    if lacking:
        yield Problem(
            "algorithm.kl",
            f"{kl.estimator} to {kl.target.value} needs {', '.join(lacking)}, which nothing in"
            " this run provides",
        )


def aggregation(config: RunConfig) -> Iterator[Problem]:
    """A loss's unit allows the aggregation, and a divisor is there where it is used."""
    chosen = config.algorithm
    rows: list[tuple[str, NamedFunction, str, Mode | None, float | None]] = [
        ("algorithm", chosen.loss, "policy loss", chosen.aggregation, chosen.constant)
    ]
    for place, term in enumerate(chosen.terms):
        key = f"algorithm.terms[{place}]"
        rows.append((key, term.loss, "term", term.aggregation, term.constant))
    for key, loss, of, mode, constant in rows:
        used = mode_of(loss, of, mode)
        unit = entry(of, loss.name).unit or Unit.TOKEN
        if unit is not Unit.TOKEN and used in (Mode.TOKEN_MEAN, Mode.TOKEN_SUM):
            yield Problem(
                f"{key}.aggregation",
                f"{used.value} does not exist for {loss.name}, which gives one number a"
                f" {unit.value}; use {Mode.SEQ_MEAN_TOKEN_MEAN.value}",
            )
        is_norm = used is Mode.SEQ_MEAN_TOKEN_SUM_NORM
        if is_norm and constant is None:
            yield Problem(
                f"{key}.constant",
                f"{used.value} needs its divisor in tokens; use"
                f" {key}.constant={config.rollout.max_new_tokens}",
            )
        if not is_norm and constant is not None:
            yield Problem(
                f"{key}.constant",
                f"{constant:g} has no effect with {used.value}; remove it, or use"
                f" {Mode.SEQ_MEAN_TOKEN_SUM_NORM.value}",
            )


def proximal(config: RunConfig) -> Iterator[Problem]:
    """`old` can only be the current policy where a batch makes one optimizer step."""
    if proximal_of(config) is Proximal.CURRENT and updates(config) > 1:
        yield Problem(
            "algorithm.proximal",
            f"current makes every ratio 1, but a batch makes {updates(config)} optimizer steps;"
            " use auto or stored",
        )


def term_names(config: RunConfig) -> Iterator[Problem]:
    """Every term's metrics have a name of their own."""
    own = len(objective_of(config).terms) - len(config.algorithm.terms)
    taken = {term.name for term in objective_of(config).terms[:own]}
    for place, term in enumerate(config.algorithm.terms):
        if term.name in taken:
            yield Problem(
                f"algorithm.terms[{place}].name", f"{term.name!r} is taken; choose another name"
            )
        taken.add(term.name)


def freshness(config: RunConfig) -> Iterator[Problem]:
    """The bound on age holds with the chosen order and window (O26)."""
    try:
        admission_plan(config)
    except WrongValue as error:
        yield Problem("asynchrony", str(error))


def processes(config: RunConfig) -> Iterator[Problem]:
    """Parts in processes of their own reach each other."""
    ranks, replicas = config.training.ranks, config.rollout.replicas
    if ranks > 1 and not replicas:
        yield Problem(
            "rollout.replicas",
            f"0, but the {ranks} training ranks keep the weights in their own processes: an engine"
            " in this one would never see them; use at least 1",
        )
    engine = adapter("rollout", config.rollout.engine)
    if not replicas and inspect.iscoroutinefunction(engine.build):
        yield Problem(
            "rollout.replicas",
            f"0, but engine {config.rollout.engine} runs in processes of its own; use at least 1",
        )
    if replicas and config.rollout.transfer == "shared":
        yield Problem(
            "rollout.transfer",
            f"shared reads the trainer's own tensors, and {replicas} replicas have processes of"
            " their own; use auto",
        )


def evaluation(config: RunConfig) -> Iterator[Problem]:
    """What is asked of an evaluation can be measured."""
    chosen = config.evaluation
    if chosen.every and config.data.evaluation is None:
        yield Problem(
            "evaluation.every",
            f"{chosen.every}, but there are no held-out prompts; set data.evaluation, or 0 here",
        )
    if chosen.side is Side.LEASE and config.rollout.replicas < 2:
        yield Problem(
            "evaluation.side",
            f"{chosen.side.value} needs a replica that training can spare; rollout.replicas is"
            f" {config.rollout.replicas}, use at least 2",
        )
    if chosen.side is Side.TRAINER and config.training.ranks > 1:
        yield Problem(
            "evaluation.side",
            f"{chosen.side.value} needs the policy in this process; training.ranks is"
            f" {config.training.ranks}, use {Side.ROLLOUT.value} or {Side.LEASE.value}",
        )


def files(config: RunConfig) -> Iterator[Problem]:
    """Local files that prompts are read from are there."""
    chosen = {"data.train": config.data.train, "data.evaluation": config.data.evaluation}
    for key, source in chosen.items():
        for path in (source.options.get("paths") or ()) if source is not None else ():
            is_plain = "://" not in path and not any(mark in path for mark in "*?[")
            if is_plain and not Path(path).expanduser().is_file():
                yield Problem(
                    f"{key}.options.paths",
                    f"there is no file {path} (relative paths start where the command runs);"
                    " correct the path",
                )


def columns(config: RunConfig) -> Iterator[Problem]:
    """Every column that the objective and the estimator read has a provider."""
    reads: list[tuple[str, str, NamedFunction]] = [
        ("algorithm.advantage", "advantage estimator", config.algorithm.advantage),
        ("algorithm.loss", "policy loss", config.algorithm.loss),
    ]
    reads += [
        (f"algorithm.terms[{place}].loss", "term", term.loss)
        for place, term in enumerate(config.algorithm.terms)
    ]
    reads += [
        (f"algorithm.correction[{place}]", "correction", one)
        for place, one in enumerate(config.algorithm.correction)
    ]
    for key, of, chosen in reads:
        found = entry(of, chosen.name)
        lacking = capabilities.lacking(config, found)
        if lacking:
            yield Problem(
                f"{key}.name",
                f"{chosen.name} needs {', '.join(lacking)}, which nothing in this run provides;"
                " choose another one (see hexpo algorithms)",
            )


def _token_columns(chosen: NamedFunction) -> tuple[str, ...]:
    return entry("term", chosen.name).columns.tokens


def _survives(check: Check) -> Check:
    """A check that meets an unusable function reports that instead of ending the others."""

    def run(config: RunConfig) -> Iterator[Problem]:
        try:
            yield from check(config)
        except HexpoError as error:
            yield Problem("algorithm", str(error))

    return run


CHECKS: tuple[Check, ...] = tuple(
    _survives(check)
    for check in (
        model.problems,
        files,
        grader,
        batch_arithmetic,
        group_size,
        sampling,
        kl_place,
        kl_form,
        aggregation,
        proximal,
        term_names,
        freshness,
        streaming,
        processes,
        evaluation,
        columns,
        roles.further_models,
        roles.one_correction,
        roles.sequence_advantages,
        roles.components,
        roles.controllers,
        roles.zero_variance,
        spreading.problems,
        foresight.problems,
        capabilities.problems,
    )
)
"""Those of the loop."""

FIT_CHECKS: tuple[Check, ...] = tuple(
    _survives(check)
    for check in (
        model.problems,
        files,
        evaluation,
        fitting.units,
        fitting.unread_keys,
        fitting.columns_read,
        fitting.value_head,
        spreading.problems,
        foresight.problems,
        capabilities.problems,
    )
)
"""Those of learning from given answers."""
