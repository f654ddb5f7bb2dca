"""The processes of a run beyond its first: started together, before anything is loaded here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from hexpo.adapters.rollout.wire import RemoteRollout, connect
from hexpo.application.ports.cluster import Cluster, Process, ProcessSpec, Resources
from hexpo.application.ports.platform import Platform
from hexpo.domain.errors import IllegalTransition
from hexpo.infrastructure import parts, serve
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.sharing import takes_turns, transfer_of
from hexpo.infrastructure.opened import Opened

log = logging.getLogger(__name__)


class Processes:
    """Rollout replicas and training ranks. A run in one process has none, and starts nothing."""

    def __init__(self, config: RunConfig, folder: Path, platform: Platform, opened: Opened) -> None:
        self._config, self._folder, self._platform = config, folder, platform
        self._opened = opened
        self._replicas: Mapping[str, RemoteRollout] | None = None
        self._ranks: Sequence[Process] = ()

    @property
    def replicas(self) -> Mapping[str, RemoteRollout]:
        """Rollout engines by name; none in a run of one process.

        Raises IllegalTransition: there are some, and `start` was not awaited.
        """
        if self._replicas is None and not self.specs():
            return {}
        if self._replicas is None:
            raise IllegalTransition(
                "the run's processes are not started; await container.processes().start() first"
            )
        return self._replicas

    async def start(self) -> None:
        """All of them, or none. Safe to call twice.

        Raises: NotEnough: fewer devices than wanted. EngineFailed: one ended before it was ready.
        """
        if self._replicas is not None:
            return
        self._replicas = {}
        specs = self.specs()
        if not specs:
            return
        log.info("starting %d processes: %s", len(specs), ", ".join(spec.name for spec in specs))
        cluster: Cluster = self._opened.keep(make_cluster(self._config, self._folder))
        started = await cluster.start(specs)
        self._replicas = {process.name: await connect(process) for process in started}

    def specs(self) -> list[ProcessSpec]:
        """What is wanted."""
        config = self._config
        if not config.rollout.replicas:
            return []
        specs = serve.rollout_specs(
            config,
            self._platform,
            replicas=config.rollout.replicas,
            transfer=transfer_of(config),
            needs=Resources(cpus=1),
        )
        if takes_turns(config):
            return [attrs.evolve(spec, share=f"turn-{n}") for n, spec in enumerate(specs)]
        return specs


def make_cluster(config: RunConfig, folder: Path) -> Cluster:
    """The chosen cluster; nothing is started yet."""
    cluster: Cluster = parts.make(
        "cluster", config.cluster.kind, config.cluster.options, folder=folder
    )
    return cluster
