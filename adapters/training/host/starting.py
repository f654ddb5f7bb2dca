"""From a number of ranks to an engine: processes, their meeting, their backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, gt

from hexpo.adapters.training.backend import Abilities
from hexpo.adapters.training.host.calls import Ranks
from hexpo.adapters.training.host.engine import RankedEngine
from hexpo.adapters.training.host.service import ENTRY, Address, Place
from hexpo.application.ports.cluster import Cluster, ProcessSpec, Resources
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer


@attrs.frozen(kw_only=True)
class Config:
    """Settings of training over many processes."""

    ranks: int = attrs.field(default=2, validator=ge(1))
    """Processes that share the weights and the rows."""
    communication: str = "gloo"
    """How they exchange tensors: gloo on CPUs, `cpu:gloo,cuda:nccl` on accelerators."""
    collective_seconds: float = attrs.field(default=600.0, validator=gt(0))
    """Longest wait of one rank for another."""
    grace_seconds: float = attrs.field(default=5.0, validator=gt(0))
    """How long the others may take to answer after one has failed; then all are stopped."""


@attrs.frozen(kw_only=True, eq=False)
class Launch:
    """What the ranks run. Plain: it crosses processes."""

    backend: str
    """`module:function`; called as `function(value, rank=, ranks=)` it gives a Backend."""
    value: Any
    """For the backend: its settings, and where its model is found."""
    send: tuple[str, Any] | None = None
    """`module:function` and its argument, which give a sender; None: nothing is ever sent."""
    name: str = "rank"
    """Names the processes: rank-0, rank-1, ..."""
    needs: Resources = attrs.field(factory=lambda: Resources(cpus=1))
    """Of one rank."""
    share: str = ""
    """A rank shares its devices with the other processes of this name and its number."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables of each process."""


async def start(
    config: Config, launch: Launch, *, cluster: Cluster, store: RowStore, tokenizer: Tokenizer
) -> RankedEngine:
    """Start all ranks and let them load.

    Args: store: one that pickles to its name.
        tokenizer: written beside an exported model.
    Raises: NotEnough: the cluster is too small. EngineFailed: a rank failed, with its cause;
        whatever the backend refuses. None runs then.
    """
    processes = await cluster.start(specs(config, launch, store))
    ranks = Ranks(processes, grace_seconds=config.grace_seconds)
    try:
        address: Address = await ranks.first("listen")
        abilities: list[Abilities] = await ranks.all("join", address)
    except BaseException:
        await ranks.close()
        raise
    sends = launch.send is not None
    return RankedEngine(ranks, abilities[0], tokenizer=tokenizer, sends=sends)


def specs(config: Config, launch: Launch, store: RowStore) -> list[ProcessSpec]:
    """The processes of all ranks."""
    return [
        ProcessSpec(
            name=f"{launch.name}-{rank}",
            entry=ENTRY,
            value=Place(
                rank=rank,
                ranks=config.ranks,
                backend=launch.backend,
                value=launch.value,
                store=store,
                send=launch.send,
                communication=config.communication,
                collective_seconds=config.collective_seconds,
            ),
            needs=launch.needs,
            share=f"{launch.share}-{rank}" if launch.share else "",
            environment=launch.environment,
        )
        for rank in range(config.ranks)
    ]
