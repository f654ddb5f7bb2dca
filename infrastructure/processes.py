"""The processes of a run beyond its first: started together, before anything is loaded here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from hexpo.adapters.rollout.wire import RemoteRollout, connect
from hexpo.adapters.stores.served import ServedRowStore
from hexpo.adapters.training.host import Config as HostConfig
from hexpo.adapters.training.host import Launch, RankedEngine, specs
from hexpo.adapters.training.host import start as start_ranks
from hexpo.application.ports.cluster import Cluster, ProcessSpec, Resources
from hexpo.application.ports.platform import Platform
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.domain.errors import IllegalTransition
from hexpo.infrastructure import engines, learners, parts, serve
from hexpo.infrastructure.config.algorithm import updates
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.sharing import is_one_process, takes_turns, transfer_of
from hexpo.infrastructure.config.teachers import served_teachers
from hexpo.infrastructure.opened import Opened

log = logging.getLogger(__name__)

TURN = "turn"
"""Replica n and rank n share a device where generation and training take turns."""


class Processes:
    """Rollout replicas, training ranks, and teachers that an engine serves. A run in one process
    has none, and starts nothing."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        platform: Platform,
        opened: Opened,
        *,
        store: Callable[[], RowStore],
        tokenizer: Callable[[], Tokenizer],
        columns: Callable[[], frozenset[str]],
    ) -> None:
        """Args: store, tokenizer, columns: made only if ranks or teachers are started."""
        self._config, self._folder, self._platform = config, folder, platform
        self._opened, self._store = opened, store
        self._tokenizer, self._columns = tokenizer, columns
        self._is_started = is_one_process(config)
        self._replicas: dict[str, RemoteRollout] = {}
        self._teachers: dict[str, RemoteRollout] = {}
        self._ranks: RankedEngine | None = None
        self._cluster: Cluster | None = None

    @property
    def replicas(self) -> Mapping[str, RemoteRollout]:
        """Rollout engines by name; none in a run of one process. Raises IllegalTransition."""
        self._require_started()
        return self._replicas

    @property
    def teachers(self) -> Mapping[str, RemoteRollout]:
        """Engines that serve teachers, by the teachers' names.

        Raises IllegalTransition: some are not started.
        """
        if missing := served_teachers(self._config).keys() - self._teachers.keys():
            raise IllegalTransition(
                f"no engine serves {', '.join(sorted(missing))} yet; await"
                " container.processes().start(teaching=True) first"
            )
        return self._teachers

    @property
    def ranks(self) -> RankedEngine | None:
        """The policy's engine over all ranks; None where it trains in this process.

        Raises IllegalTransition: `start` was not awaited.
        """
        self._require_started()
        return self._ranks

    @property
    def host(self) -> str:
        """The address at which they reach this one. Raises IllegalTransition."""
        self._require_started()
        return "127.0.0.1" if self._cluster is None else self._cluster.host

    def _require_started(self) -> None:
        if not self._is_started:
            raise IllegalTransition(
                "the run's processes are not started; await container.processes().start() first"
            )

    async def start(self, *, teaching: bool = False, answering: bool = True) -> None:
        """All of them, or none. Safe to call twice.

        Args: teaching: served teachers too, which training alone asks.
            answering: false: no rollout replicas, which an export does not ask.
        Raises: NotEnough: fewer devices than wanted. EngineFailed: one ended before it was ready.
            ConfigurationError: a served teacher's ids do not mean the same as the policy's (S7).
        """
        config = self._config
        served = served_teachers(config) if teaching and not self._teachers else {}
        for model in served.values():
            learners.require_same_ids(config, model, self._tokenizer())
        wanted = self.teacher_specs() if served else []
        if not self._is_started:
            self._is_started = True
            await self._start_ranks(self._reached())
            wanted = [*(self.replica_specs() if answering else ()), *wanted]
        if not wanted:
            return
        others = len(wanted) - len(served)
        log.info("starting %d rollout replicas and %d served teachers", others, len(served))
        started = [await connect(process) for process in await self._reached().start(wanted)]
        self._replicas |= {replica.name: replica for replica in started[:others]}
        teachers = [self._opened.keep(teacher) for teacher in started[others:]]
        self._teachers |= zip(served, teachers, strict=True)

    def _reached(self) -> Cluster:
        """The run's cluster, made when it is first wanted."""
        if self._cluster is None:
            self._cluster = self._opened.keep(make_cluster(self._config, self._folder))
        return self._cluster

    async def _start_ranks(self, cluster: Cluster) -> None:
        if self._config.training.ranks == 1:
            return
        log.info("starting %d training ranks", self._config.training.ranks)
        self._ranks = await start_ranks(
            self.host_config(),
            self.launch(),
            cluster=cluster,
            store=await self.shared_store(cluster),
            tokenizer=self._tokenizer(),
        )

    async def shared_store(self, cluster: Cluster) -> RowStore:
        """The rows' store, within the ranks' reach."""
        store = self._store()
        if isinstance(store, ServedRowStore):
            await cluster.resources()  # it connects, so that the address is known
            self._opened.keep(store).listen(cluster.host)
        return store

    def replica_specs(self) -> list[ProcessSpec]:
        """What the rollout wants."""
        specs = serve.rollout_specs(
            self._config,
            self._platform,
            replicas=self._config.rollout.replicas,
            transfer=transfer_of(self._config),
            needs=self._needs(serve.devices(self._config)),
        )
        if not takes_turns(self._config):
            return specs
        return [attrs.evolve(spec, share=f"{TURN}-{n}") for n, spec in enumerate(specs)]

    def teacher_specs(self) -> list[ProcessSpec]:
        """What teachers that an engine serves want."""
        return [
            serve.teacher_spec(
                self._config,
                name,
                model,
                self._platform,
                needs=self._needs(serve.devices_of(model.backend, model.options)),
            )
            for name, model in served_teachers(self._config).items()
        ]

    def _needs(self, devices: int) -> Resources:
        """Of one process. On this machine all see all accelerators, unless the cluster is told
        which it may give out."""
        cluster = self._config.cluster
        gives_out = cluster.kind != "local" or bool(cluster.options.get("accelerators"))
        counted = gives_out and self._platform.device != "cpu"
        return Resources(cpus=1, accelerators=devices if counted else 0)

    def rank_specs(self) -> list[ProcessSpec]:
        """What training wants beyond this process."""
        if self._config.training.ranks == 1:
            return []
        return list(specs(self.host_config(), self.launch(), self._store()))

    def host_config(self) -> HostConfig:
        """How the ranks meet."""
        ranks = self._config.training.ranks
        return HostConfig(ranks=ranks, communication=self._platform.collective)

    def launch(self) -> Launch:
        """What every rank runs. Raises ConfigurationError: the backend's options do not fit."""
        config = self._config
        options = engines.training_options(config, self._columns())
        module, settings = parts.configured(
            "training", config.training.backend, options, at="training.options"
        )
        model = module.Model(
            config=settings,
            path=config.model.path,
            precision=config.model.precision,
            device=self._platform.device,
            temperature=config.rollout.temperature,
            total_steps=updates(config) * config.run.steps,
            seed=config.run.seed,
        )
        kind = transfer_of(config).kind
        return Launch(
            backend=module.RANK,
            value=model,
            send=(serve.SENDER, kind) if config.rollout.replicas else None,
            needs=self._needs(1),
            share=TURN if takes_turns(config) and config.rollout.replicas else "",
            environment=self._platform.environment(),
        )


def make_cluster(config: RunConfig, folder: Path) -> Cluster:
    """The chosen cluster; nothing is started yet."""
    cluster: Cluster = parts.make(
        "cluster", config.cluster.kind, config.cluster.options, folder=folder
    )
    return cluster
