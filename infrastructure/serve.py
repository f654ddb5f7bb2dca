"""Entries that a cluster starts: every process composes itself from the resolved configuration.

What crosses is plain: the configuration as a mapping, and the transfer that brings weights.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hexpo.adapters.models.policy import Policy
from hexpo.adapters.rollout.wire import ReceivingRollout, RolloutService, fill, policy_targets
from hexpo.application.ports.cluster import Context, ProcessSpec, Resources
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.transfer import Digest, Receive, Send, Update
from hexpo.infrastructure import find, parts
from hexpo.infrastructure.config.load import refuse
from hexpo.infrastructure.config.schema import Adapter, RunConfig
from hexpo.infrastructure.config.structure import plain, structure
from hexpo.infrastructure.process import quieten

ROLLOUT_REPLICA = "hexpo.infrastructure.serve:rollout_replica"


def rollout_specs(
    config: RunConfig,
    platform: Platform,
    *,
    replicas: int,
    transfer: Adapter,
    needs: Resources,
    environment: Mapping[str, str] | None = None,
) -> list[ProcessSpec]:
    """The processes of so many rollout replicas.

    Args: platform: its variables are set before each interpreter starts.
        transfer: the kind that brings the weights; a replica builds its receiver.
        needs: of one replica.
        environment: variables that win over the platform's (threads of a smaller share).
    """
    value = {"config": plain(config), "transfer": plain(transfer)}
    return [
        ProcessSpec(
            name=f"rollout-{number}",
            entry=ROLLOUT_REPLICA,
            value=value,
            needs=needs,
            environment={**platform.environment(), **(environment or {})},
        )
        for number in range(replicas)
    ]


async def rollout_replica(value: Mapping[str, Any], context: Context) -> RolloutService:
    """Entry: a rollout engine with a model of its own, whose weights a transfer brings."""
    quieten()
    config = _config(value["config"])
    transfer = value.get("transfer")
    receive = None if transfer is None else receiver_of(transfer["kind"], reader=context.name)
    return RolloutService(await asyncio.to_thread(_rollout, config, receive))


def sender_of(kind: str) -> Send:
    """The half of a transfer that stands beside the weights."""
    send: Send = find.adapter("transfer", kind).build_sender()
    return send


def receiver_of(kind: str, *, reader: str) -> Receive:
    """The half of a transfer that stands beside an engine. Args: reader: its process's name."""
    receive: Receive = find.adapter("transfer", kind).build_receiver(reader=reader)
    return receive


def _config(values: Mapping[str, Any]) -> RunConfig:
    """What the driver resolved. Raises ConfigurationError: another version of hexpo made it."""
    config, problems = structure(values, RunConfig)
    if config is None:
        raise refuse(problems)
    return config


def _rollout(config: RunConfig, receive: Receive | None) -> RolloutEngine:
    """The engine; what its `build` names is made, and nothing else."""
    module = find.adapter("rollout", config.rollout.engine)
    offered = _Offered(config, receive)
    makers: Mapping[str, Callable[[], Any]] = {
        "policy": offered.policy,
        "tokenizer": offered.tokenizer,
        "platform": offered.platform,
        "model": lambda: config.model.path,
        "precision": lambda: config.model.precision,
        "receive": lambda: receive,
    }
    wanted = inspect.signature(module.build).parameters
    runtime = {name: make() for name, make in makers.items() if name in wanted}
    engine: RolloutEngine = parts.make(
        "rollout", config.rollout.engine, config.rollout.options, **runtime
    )
    if receive is None or "receive" in wanted:
        return engine
    return ReceivingRollout(engine, offered.fill)


class _Offered:
    """What a rollout engine may ask for, each made once and only if it does."""

    def __init__(self, config: RunConfig, receive: Receive | None) -> None:
        self._config, self._receive = config, receive
        self._platform: Platform | None = None
        self._policy: Policy | None = None

    def platform(self) -> Platform:
        """Prepared."""
        if self._platform is None:
            self._platform = parts.make_platform(self._config)
        return self._platform

    def policy(self) -> Policy:
        """A copy of the model of this process's own."""
        if self._policy is None:
            self._policy = parts.make_policy(self._config, self.platform())
            self._policy.module.requires_grad_(requires_grad=False)
        return self._policy

    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return parts.make_tokenizer(self._config)

    def fill(self, update: Update) -> Digest:
        """Write an update into the policy."""
        if self._receive is None:
            return Digest(tensors=0, bytes=0, checksum="")
        return fill(policy_targets(self.policy()), self._receive(update))
