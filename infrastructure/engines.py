"""The engines of a run, and what goes between them: training, rollout, weights, turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hexpo.adapters.models.policy import Policy
from hexpo.adapters.rollout.wire import RemoteRollout
from hexpo.adapters.transfer.wire.driver import SendAndLoad
from hexpo.adapters.transfer.wire.endings import is_consequence
from hexpo.application.agreeing import Probe, ProbeSettings
from hexpo.application.delivery import Delivery
from hexpo.application.membership import Standing
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.training import TrainingEngine
from hexpo.application.ports.transfer import WeightTransfer
from hexpo.application.replicas import Replicas, ReplicaSettings
from hexpo.application.residency import Mover, Residency
from hexpo.application.schedule import Side
from hexpo.domain.schedule.residency import Part, Resident
from hexpo.domain.tolerance import TOLERANCES
from hexpo.infrastructure import find
from hexpo.infrastructure.config.algorithm import updates
from hexpo.infrastructure.config.capabilities import REFERENCE
from hexpo.infrastructure.config.choices import Placement
from hexpo.infrastructure.config.fitting import is_fit, needs_value_head
from hexpo.infrastructure.config.load import refuse
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.sharing import transfer_of
from hexpo.infrastructure.config.structure import Problem
from hexpo.infrastructure.opened import Opened
from hexpo.infrastructure.parts import make


def make_rollout(
    config: RunConfig,
    policy: Callable[[], Policy],
    tokenizer: Tokenizer,
    opened: Opened,
    replicas: Mapping[str, RemoteRollout],
) -> RolloutEngine:
    """The engine that generates: in this process, or all replicas as one.

    Args: policy: makes or gives the trainer's own; not called where engines have copies.
    """
    if replicas:
        return opened.keep(
            as_one(replicas, tokenizer.vocabulary, catch_up=config.evaluation.side is Side.LEASE)
        )
    rollout: RolloutEngine = make(
        "rollout",
        config.rollout.engine,
        config.rollout.options,
        policy=policy(),
        tokenizer=tokenizer,
    )
    return opened.keep(rollout)


def make_examinee(
    config: RunConfig,
    rollout: RolloutEngine,
    policy: Callable[[], Policy],
    tokenizer: Tokenizer,
    opened: Opened,
) -> RolloutEngine:
    """Who answers evaluations: whoever generates, or an engine on the trainer's own policy."""
    if config.evaluation.side is not Side.TRAINER or not config.rollout.replicas:
        return rollout
    own: RolloutEngine = make("rollout", "embedded", {}, policy=policy(), tokenizer=tokenizer)
    return opened.keep(own)


def as_one(
    replicas: Mapping[str, RemoteRollout], vocabulary: int, *, catch_up: bool = False
) -> RolloutEngine:
    """Several engines behind one port. Args: vocabulary: ids. catch_up: see `ReplicaSettings`."""
    return Replicas(
        replicas,
        ReplicaSettings(catch_up=catch_up),
        readers={name: replica.readers for name, replica in replicas.items()},
        is_consequence=is_consequence,
        vocabulary=vocabulary,
    )


def training_options(config: RunConfig, columns: frozenset[str]) -> Mapping[str, Any]:
    """The backend's options; it keeps the model before training if a column needs it."""
    options = config.training.options
    if is_fit(config) and needs_value_head(config):
        return {**options, "value_head": True}
    of = find.config_type("training", config.training.backend)
    if columns & REFERENCE and of is not None and "reference" in attrs.fields_dict(of):
        return {**options, "reference": True}  # the objective says who is needed, not the user
    return options


def make_training(
    config: RunConfig,
    policy: Callable[[], Policy],
    store: RowStore,
    tokenizer: Tokenizer,
    platform: Platform,
    columns: frozenset[str],
    opened: Opened,
    ranks: TrainingEngine | None,
) -> TrainingEngine:
    """The engine that learns: in this process, or over its ranks."""
    if ranks is not None:
        return opened.keep(ranks)
    kind = transfer_of(config).kind
    sending = {} if kind == "shared" else {"send": find.adapter("transfer", kind).build_sender()}
    training: TrainingEngine = make(
        "training",
        config.training.backend,
        training_options(config, columns),
        policy=policy(),
        store=store,
        tokenizer=tokenizer,
        temperature=config.rollout.temperature,
        total_steps=updates(config) * config.run.steps,
        seed=config.run.seed,
        release=platform.release,
        **sending,
    )
    return opened.keep(training)


def make_transfer(
    config: RunConfig,
    training: TrainingEngine,
    rollout: RolloutEngine,
    replicas: Mapping[str, RemoteRollout],
    opened: Opened,
    *,
    host: str,
) -> WeightTransfer:
    """From the trainer to whoever generates. Args: host: the driver's address, as they reach it."""
    kind = transfer_of(config).kind
    if kind == "shared":
        transfer: WeightTransfer = make("transfer", kind, {}, rollout=rollout)
        return transfer
    options: dict[str, Any] = {"host": host} if kind == "collective" else {}
    if kind == "shared_memory" and config.evaluation.side is Side.LEASE:
        # A leased replica reads a version later than its peers: it has to be kept.
        options["buckets"] = 0

    sending: SendAndLoad = make(
        "transfer",
        kind,
        options,
        training=training,
        replicas={"rollout": rollout} if isinstance(rollout, Replicas) else replicas,
        readers=rollout.readers
        if isinstance(rollout, Replicas)
        else lambda: [reader for one in replicas.values() for reader in one.readers],
    )
    opened.keep(sending)
    if isinstance(rollout, Replicas):
        return Delivery(transfer_once=sending, replicas=rollout)
    return sending


def make_probe(
    config: RunConfig,
    *,
    training: TrainingEngine,
    store: RowStore,
    rollout: RolloutEngine,
    replicas: Mapping[str, RolloutEngine],
    source: PromptSource,
    tokenizer: Tokenizer,
) -> Probe:
    """Compares every engine's log-probs with the trainer's, on the first prompt."""
    prompt = next(iter(source.rows()))

    def serving() -> Mapping[str, RolloutEngine]:
        if not isinstance(rollout, Replicas):
            return replicas or {"rollout": rollout}
        standings = rollout.standings
        return {name: replicas[name] for name in replicas if standings[name] is Standing.SERVING}

    return Probe(
        ProbeSettings(
            tolerance=TOLERANCES[config.model.precision.dtype],
            temperature=config.rollout.temperature,
            seed=config.run.seed,
        ),
        trainer=training,
        store=store,
        replicas=serving,
        prompts=[tokenizer.render(prompt.messages)],
    )


def make_residency(
    config: RunConfig, training: TrainingEngine, open_rollout: Callable[[], RolloutEngine]
) -> Residency:
    """Who gives way to whom on shared devices.

    Args: open_rollout: not called where nothing generates, or where nobody has to move.
    Raises: ConfigurationError: an engine cannot give its memory back.
    """
    if is_fit(config) or config.asynchrony.placement is not Placement.COLOCATED:
        return Residency()
    rollout = open_rollout()
    unable = [
        f"{what} {name} cannot {verb} here"
        for able, what, name, verb in (
            (rollout.capabilities.sleep, "rollout engine", config.rollout.engine, "sleep"),
            (training.capabilities.offload, "training backend", config.training.backend, "offload"),
        )
        if not able
    ]
    if unable:
        message = f"colocated: {'; '.join(unable)}; use separate"
        raise refuse([Problem("asynchrony.placement", message)])
    return Residency(
        [
            Resident(name="rollout", part=Part.ROLLOUT, group="shared"),
            Resident(name="policy", part=Part.POLICY, group="shared"),
        ],
        {"rollout": Mover.of_rollout(rollout), "policy": Mover.of_training(training)},
        here=["rollout", "policy"],
    )
