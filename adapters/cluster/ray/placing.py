"""Where actors go: placement groups from what is wanted, and options from both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from hexpo.adapters.cluster.wire import room
from hexpo.application.ports.cluster import ProcessSpec, Resources
from hexpo.domain.errors import Unsupported

_GIB = 2**30
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the network interface of a communication backend."""


@attrs.frozen
class Group:
    """One placement group: its bundles, and how they lie."""

    strategy: str
    units: tuple[room.Unit, ...]


def groups(units: Sequence[room.Unit]) -> tuple[Group, ...]:
    """One group a `together`, on one node; one for all others, spread over the nodes.

    Raises: Unsupported: sharers want more than one accelerator; Ray lends no part of several.
    """
    for unit in units:
        if len(unit.members) > 1 and unit.needs.accelerators > 1:
            raise Unsupported(
                f"{unit.name} wants {unit.needs.accelerators:g} accelerators together; on ray,"
                " processes share one device each: give every device a `share` of its own"
            )
    names = dict.fromkeys(unit.members[0].together for unit in units)
    return tuple(
        Group(
            "STRICT_PACK" if name else "SPREAD",
            tuple(unit for unit in units if unit.members[0].together == name),
        )
        for name in names
    )


def on_one_node(groups: Sequence[Group]) -> Iterator[tuple[str, Resources]]:
    """What has to fit into one node, by name: a whole `together`, else each unit (a replica with
    its tensor-parallel devices)."""
    for group in groups:
        if group.strategy == "STRICT_PACK":
            yield group.units[0].members[0].together, room.total(u.needs for u in group.units)
        else:
            yield from ((unit.name, unit.needs) for unit in group.units)


def bundle(needs: Resources, device: str) -> dict[str, float]:
    """What Ray reserves; a bundle may not be empty."""
    found = {"CPU": needs.cpus, device: needs.accelerators, "memory": needs.memory_gib * _GIB}
    return {name: value for name, value in found.items() if value} or {"CPU": 0.001}


def seen(resources: Mapping[str, float], device: str) -> Resources:
    """Ray's count as ours."""
    return Resources(
        cpus=round(resources.get("CPU", 0.0), 4),
        accelerators=round(resources.get(device, 0.0), 4),
        memory_gib=resources.get("memory", 0.0) / _GIB,
    )


def options(
    spec: ProcessSpec, unit: room.Unit, device: str, *, interface: str = ""
) -> dict[str, Any]:
    """Options of an actor in its bundle: sharers have equal parts of it.

    Args: interface: by which it exchanges tensors, unless its own variables say so.
    """
    part = 1 / len(unit.members)
    environment: dict[str, Any] = {}
    variables = dict.fromkeys(_INTERFACES, interface) if interface else {}
    if variables := {**variables, **spec.environment}:
        environment["env_vars"] = variables
    if spec.python:
        environment["py_executable"] = spec.python
    found: dict[str, Any] = {
        "num_cpus": unit.needs.cpus * part,
        "max_concurrency": 1000,
        "max_restarts": 0,
        "runtime_env": environment,
    }
    if unit.needs.accelerators:
        accelerators = unit.needs.accelerators * part
        found |= (
            {"num_gpus": accelerators} if device == "GPU" else {"resources": {device: accelerators}}
        )
    return found
