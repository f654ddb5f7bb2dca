"""What a configuration means in numbers, before anything is loaded: the data of `hexpo plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from hexpo.adapters.models.policy import Precision
from hexpo.domain.aggregate import Mode
from hexpo.domain.errors import HexpoError
from hexpo.domain.objective import Proximal
from hexpo.infrastructure.config.algorithm import (
    admission_plan,
    estimator_of,
    mode_of,
    objective_of,
    updates,
)
from hexpo.infrastructure.config.capabilities import REFERENCE
from hexpo.infrastructure.config.check import problems
from hexpo.infrastructure.config.choices import ModelRole
from hexpo.infrastructure.config.fitting import form_of, is_fit
from hexpo.infrastructure.config.foresight import DEPTHS
from hexpo.infrastructure.config.layers import Origin, leaves
from hexpo.infrastructure.config.load import Resolved
from hexpo.infrastructure.config.model import Shape, shape_of
from hexpo.infrastructure.config.options import entry
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.served import is_served
from hexpo.infrastructure.config.sharing import takes_turns, transfer_of
from hexpo.infrastructure.config.structure import Problem, plain
from hexpo.infrastructure.config.teachers import served_teachers

GIB = 1 << 30


@attrs.frozen
class Value:
    """One resolved key."""

    key: str
    value: Any
    origin: Origin


@attrs.frozen
class Number:
    """One derived number and how it comes about."""

    name: str
    value: str
    why: str


@attrs.frozen(kw_only=True)
class Plan:
    """What `hexpo plan` prints."""

    values: tuple[Value, ...]
    numbers: tuple[Number, ...]
    memory: tuple[Number, ...]
    placement: tuple[Number, ...]
    problems: tuple[Problem, ...]


def plan(resolved: Resolved) -> Plan:
    """Values with their origin, derived numbers, memory, placement, and every conflict."""
    config = resolved.config
    found = tuple(problems(config))
    return Plan(
        values=tuple(
            Value(key, value, resolved.origin(key)) for key, value in leaves(plain(config))
        ),
        numbers=_guarded(_arithmetic, config),
        memory=_guarded(_memory, config),
        placement=tuple(_placement(config)),
        problems=found,
    )


def arithmetic(config: RunConfig) -> Mapping[str, int]:
    """The numbers of a batch.

    Returns: sequences a step, sequences a mini-batch, optimizer steps a batch and of the run, and
        upper bounds of tokens a step (generated; trained with their prompts).
    """
    training, rollout = config.training, config.rollout
    sequences = training.prompts_per_step * rollout.samples
    longest = config.data.max_prompt_tokens + rollout.max_new_tokens
    return {
        "sequences_per_step": sequences,
        "sequences_per_update": sequences // training.updates_per_batch,
        "updates_per_step": updates(config),
        "updates": updates(config) * config.run.steps,
        "generated_tokens_per_step": sequences * rollout.max_new_tokens,
        "tokens_per_step": sequences * longest,
    }


def _guarded(make: Any, config: RunConfig) -> tuple[Number, ...]:
    """Numbers of a configuration that may be unsound: its problems are listed elsewhere."""
    try:
        return tuple(make(config))
    except HexpoError:
        return ()


def _fit_arithmetic(config: RunConfig) -> Iterator[Number]:
    rows, steps = config.training.prompts_per_step, config.run.steps
    form = form_of(config)
    each = form.examples if form is not None else 1
    longest = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    yield Number("rows a step", f"{rows:,}", f"{rows * each:,} sequences; each epoch in its order")
    yield Number("rows of the run", f"{rows * steps:,}", f"x {steps:,} steps")
    yield Number(
        "optimizer steps of the run", f"{updates(config) * steps:,}", f"{updates(config)} a step"
    )
    yield Number(
        "tokens a step, at most",
        f"{rows * each * longest:,}",
        f"longest conversation {longest:,}: data.max_prompt_tokens + rollout.max_new_tokens",
    )
    (term,) = objective_of(config).terms
    yield _loss(config, term.mode)


def _arithmetic(config: RunConfig) -> Iterator[Number]:
    if is_fit(config):
        yield from _fit_arithmetic(config)
        return
    n, training, rollout = arithmetic(config), config.training, config.rollout
    yield Number(
        "sequences a step",
        f"{n['sequences_per_step']:,}",
        f"{training.prompts_per_step} prompts x {rollout.samples} samples",
    )
    yield Number(
        "optimizer steps a batch",
        f"{n['updates_per_step']:,}",
        f"{training.updates_per_batch} (of {n['sequences_per_update']:,} sequences each)"
        f" x {training.epochs_per_batch} passes over the batch",
    )
    yield Number(
        "optimizer steps of the run",
        f"{n['updates']:,}",
        f"{n['updates_per_step']:,} a batch x {config.run.steps:,} steps (a batch each)",
    )
    yield Number(
        "tokens a step, at most",
        f"{n['tokens_per_step']:,}",
        f"of which generated {n['generated_tokens_per_step']:,}"
        f" ({rollout.max_new_tokens} an answer)",
    )
    gate = admission_plan(config)
    yield Number(
        "groups alive, at most",
        f"{gate.capacity:,}",
        f"order {config.asynchrony.order.value}; trained tokens are at most {gate.max_age}"
        " versions old",
    )
    estimator, chosen = estimator_of(config), config.algorithm
    yield Number(
        "advantage",
        chosen.advantage.name,
        entry("advantage estimator", chosen.advantage.name).formula
        or f"reads {', '.join(estimator.needs.sequences + estimator.needs.tokens)}",
    )
    mode = mode_of(chosen.loss, "policy loss", chosen.aggregation)
    yield _loss(config, mode)
    objective = objective_of(config)
    measured = [term.name for term in objective.terms if term.coefficient == 0]
    yield Number(
        "terms",
        " + ".join(f"{term.coefficient:g} {term.name}" for term in objective.terms),
        "each has the denominator of the whole optimizer step"
        + (f"; only measured, at coefficient 0: {', '.join(measured)}" if measured else ""),
    )
    yield Number("old log-probs", objective.proximal.value, _OLD[objective.proximal])


_OLD: Mapping[Proximal, str] = MappingProxyType(
    {
        Proximal.CURRENT: "those of the policy itself, no gradient: one optimizer step a batch",
        Proximal.STORED: "scored once, before the first optimizer step of a batch",
        Proximal.BEHAVIOUR: "those of the policy that sampled; no scoring pass",
    }
)
"""What the ratio of a loss is taken against."""


def _loss(config: RunConfig, mode: Mode) -> Number:
    """Its formula, or what a user's function says of itself."""
    name = config.algorithm.loss.name
    found = entry("policy loss", name)
    said = (found.formula or found.summary).rstrip(".;")
    return Number("loss", name, "; ".join(filter(None, (said, f"aggregated by {mode.value}"))))


def _memory(config: RunConfig) -> Iterator[Number]:
    shape = shape_of(config.model.path)
    count = shape.parameters
    if count is None:
        yield Number("memory", "unknown", f"the files of {shape.family} do not say its size")
        return
    is_bf16 = config.model.precision is Precision.BF16
    working = (2 if is_bf16 else 4) * count
    trained = _lora_share(config, shape, count)
    masters = 4 * trained if is_bf16 else 0
    parts = [
        ("weights", working, f"{count:,} x {2 if is_bf16 else 4} bytes"),
        ("masters", masters, "single precision"),
        ("gradients", 4 * trained, "single precision"),
        ("optimizer", 8 * trained, "two moments of AdamW"),
    ]
    needs_copy = _reads_reference(config) and trained == count
    if needs_copy:
        parts.append(("reference", working, "a frozen copy of the model before training"))
    parts += _further_models(config)
    parts += _foresight(config, shape)
    if is_bf16 and not is_fit(config):
        parts.append(("rollout weights", working, "copies packed for generation"))
    if not is_fit(config):
        parts.append(("cache", _cache(config, shape), "keys and values of the answers in flight"))
    yield Number(
        "total, about",
        f"{sum(size for _, size, _ in parts) / GIB:.2f} GiB",
        "activations of one micro-batch come on top",
    )
    for name, size, why in parts:
        if size:
            yield Number(name, f"{size / GIB:.2f} GiB", why)


def _further_models(config: RunConfig) -> Iterator[tuple[str, int, str]]:
    """A critic learns with all its weights; a teacher has working weights alone, and none here
    where an engine serves it."""
    for model in config.models:
        if is_served(model):
            continue
        count = shape_of(model.path or config.model.path).parameters or 0
        is_bf16 = (model.precision or config.model.precision) is Precision.BF16
        working = 2 if is_bf16 else 4
        learns = model.role is ModelRole.CRITIC
        learning = 12 + (4 if is_bf16 else 0) if learns else 0
        yield model.name or model.role.value, count * (working + learning), f"{count:,} weights"


def _foresight(config: RunConfig, shape: Shape) -> Iterator[tuple[str, int, str]]:
    """Each depth is a layer and a projection of twice the width to it, and all of it is learnt."""
    depths, hidden = int(config.training.options.get(DEPTHS) or 0), shape.hidden or 0
    one_more = attrs.evolve(shape, layers=(shape.layers or 0) + 1).parameters or 0
    count = depths * (one_more - (shape.parameters or 0) + 2 * hidden**2)
    each = 18 if config.model.precision is Precision.BF16 else 16
    yield "multi-token heads", count * each, f"{count:,} weights, and what learns them"


def _reads_reference(config: RunConfig) -> bool:
    objective, estimator = objective_of(config), estimator_of(config)
    read = objective.token_columns | objective.statistics
    return bool(REFERENCE.intersection(read.union(estimator.needs.tokens)))


def _lora_share(config: RunConfig, shape: Shape, count: int) -> int:
    """Trained weights: all, or those of low-rank adapters."""
    lora = config.training.options.get("lora")
    if not isinstance(lora, Mapping):
        return count
    rank, layers, hidden = int(lora.get("rank", 8)), shape.layers or 0, shape.hidden or 0
    return layers * 7 * rank * (hidden + (shape.intermediate or hidden))


def _cache(config: RunConfig, shape: Shape) -> int:
    heads = shape.heads or 1
    width = (shape.kv_heads or heads) * (shape.head_dim or (shape.hidden or 0) // heads)
    rows = min(
        int(config.rollout.options.get("slots", 64)),
        admission_plan(config).capacity * config.rollout.samples,
    )
    tokens = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    bytes_each = 2 if config.model.precision is Precision.BF16 else 4
    return 2 * bytes_each * width * (shape.layers or 0) * rows * tokens


def _placement(config: RunConfig) -> Iterator[Number]:
    ranks, replicas = config.training.ranks, config.rollout.replicas
    here = ["the loop"]
    if ranks == 1:
        here.append(f"training {config.training.backend}")
    if is_fit(config):
        here[0] = "the loop over given answers"
    elif not replicas:
        here.append(f"rollout {config.rollout.engine}, on the trainer's own weights")
    rows = "in memory" if ranks == 1 else "in shared memory"
    yield Number("this process", config.platform.kind, f"{', '.join(here)}; rows {rows}")
    turns = takes_turns(config)
    if ranks > 1:
        yield Number(
            f"{ranks} training ranks",
            config.cluster.kind,
            f"{config.training.backend} over {ranks} processes: each holds 1/{ranks} of masters,"
            " gradients and moments",
        )
    if replicas:
        shares = "shares a device with the rank of its number; " if turns and ranks > 1 else ""
        yield Number(
            f"{replicas} rollout replica{'s' if replicas > 1 else ''}",
            config.cluster.kind,
            f"{shares}{config.rollout.engine} with a copy of the weights each, which arrive by"
            f" {transfer_of(config).kind}; generation and training"
            f" {'take turns' if turns else 'run at once'}",
        )
    for name, model in served_teachers(config).items():
        yield Number(f"teacher {name}", config.cluster.kind, f"{model.backend} serves {model.path}")
