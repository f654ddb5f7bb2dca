"""Entries that a cluster starts: every process composes itself from the resolved configuration.

What crosses is plain: the configuration as a mapping, and the transfer that brings weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from hexpo.adapters.models.policy import Policy
from hexpo.adapters.rollout.wire import ReceivingRollout, RolloutService, fill, policy_targets
from hexpo.application.ports.cluster import Context, ProcessSpec, Resources
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.transfer import Digest, Receive, Send, Update
from hexpo.infrastructure import find, parts
from hexpo.infrastructure.config.load import refuse
from hexpo.infrastructure.config.schema import Adapter, FurtherModel, RunConfig
from hexpo.infrastructure.config.structure import plain, structure
from hexpo.infrastructure.process import quieten

ROLLOUT_REPLICA = "hexpo.infrastructure.serve:rollout_replica"
SENDER = "hexpo.infrastructure.serve:sender_of"


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
    variables, python = _engine_process(config)
    return [
        ProcessSpec(
            name=f"rollout-{number}",
            entry=ROLLOUT_REPLICA,
            value=value,
            needs=needs,
            environment={**platform.environment(), **variables, **(environment or {})},
            python=python,
        )
        for number in range(replicas)
    ]


def teacher_spec(
    config: RunConfig, name: str, model: FurtherModel, platform: Platform, *, needs: Resources
) -> ProcessSpec:
    """The process of a teacher that an engine serves: frozen, so that no transfer reaches it.

    Args: needs: of the process, see `devices_of`.
    """
    module, settings = _engine(model.backend, model.options)
    variables, python = _wanted(module, settings)
    return ProcessSpec(
        name=f"teacher-{name}",
        entry=module.SERVE,
        value={
            "model": model.path,
            "precision": (model.precision or config.model.precision).value,
            "options": plain(settings),
        },
        needs=needs,
        environment={**platform.environment(), **variables},
        python=python,
    )


def _engine_process(config: RunConfig) -> tuple[Mapping[str, str], str]:
    return _wanted(*_engine(config.rollout.engine, config.rollout.options))


def _wanted(module: ModuleType, settings: Any) -> tuple[Mapping[str, str], str]:
    """Variables that a rollout engine wants set, and the interpreter of its environment."""
    wanted = None if settings is None else getattr(module, "environment", None)
    return ({} if wanted is None else wanted(settings)), str(getattr(settings, "python", ""))


def devices(config: RunConfig) -> int:
    """Accelerators that one rollout replica is split over; all on one node."""
    return devices_of(config.rollout.engine, config.rollout.options)


def devices_of(engine: str, options: Mapping[str, Any]) -> int:
    """The same of any engine."""
    return int(getattr(_engine(engine, options)[1], "tensor_parallel", 1))


def _engine(engine: str, options: Mapping[str, Any]) -> tuple[ModuleType, Any]:
    """A rollout adapter and its settings; None where it takes none."""
    return parts.configured("rollout", engine, options, at=f"{engine} options")


async def rollout_replica(value: Mapping[str, Any], context: Context) -> RolloutService:
    """Entry: a rollout engine with weights of its own, which a transfer brings."""
    quieten()
    config = _config(value["config"])
    transfer = value.get("transfer")
    offered = _Offered(config, "" if transfer is None else transfer["kind"], context.name)
    return await offered.service()


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


class _Offered:
    """What a rollout engine may ask for: its `build` names it, and nothing else is made."""

    def __init__(self, config: RunConfig, transfer: str, name: str) -> None:
        """Args: transfer: the kind that brings weights; empty: they never change. name: this
        process's."""
        self._config, self._transfer, self._name = config, transfer, name
        self._platform: Platform | None = None
        self._policy: Policy | None = None

    async def service(self) -> RolloutService:
        """The engine, composed. One that names a `receiver` takes weights in by itself; another
        reads a policy, which is filled."""
        module = find.adapter("rollout", self._config.rollout.engine)
        made = parts.make(
            "rollout",
            self._config.rollout.engine,
            self._config.rollout.options,
            **self._asked(module.build),
        )
        engine: RolloutEngine = await made if inspect.isawaitable(made) else made
        readers = self._readers(module)
        if self._transfer and "receiver" not in inspect.signature(module.build).parameters:
            engine = self._receiving(engine)
        return RolloutService(engine, readers=readers)

    def _asked(self, build: Callable[..., Any]) -> dict[str, Any]:
        makers: Mapping[str, Callable[[], Any]] = {
            "policy": self.policy,
            "platform": self.platform,
            "tokenizer": lambda: parts.make_tokenizer(self._config),
            "model": lambda: self._config.model.path,
            "precision": lambda: self._config.model.precision,
            "receiver": self._receiver,
            "reader": lambda: self._name,
        }
        asked = inspect.signature(build).parameters
        return {name: make() for name, make in makers.items() if name in asked}

    def _readers(self, module: ModuleType) -> tuple[str, ...]:
        """Names by which updates list this replica: several where its ranks read for themselves."""
        naming = getattr(module, "readers", None)
        if naming is None:
            return (self._name,)
        _, settings = _engine(self._config.rollout.engine, self._config.rollout.options)
        return tuple(naming(settings, self._name))

    def _receiver(self) -> str:
        """The module whose `build_receiver` reads the transfer."""
        return find.adapter("transfer", self._transfer).__name__ if self._transfer else ""

    def _receiving(self, engine: RolloutEngine) -> RolloutEngine:
        receive = receiver_of(self._transfer, reader=self._name)

        def fill_policy(update: Update) -> Digest:
            return fill(policy_targets(self.policy()), receive(update))

        return ReceivingRollout(engine, fill_policy)

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
