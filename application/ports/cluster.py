"""Port: where engine processes run.

Every process composes itself: a cluster starts a named entry with a plain value, and the entry
builds what answers the calls. Only plain values cross, and rows of the store by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from socket import socket
from typing import Any, Protocol

import attrs

from hexpo.domain.errors import Unsupported


@attrs.frozen(kw_only=True)
class Resources:
    """What is there, or what a process needs."""

    cpus: float = 0.0
    accelerators: float = 0.0
    memory_gib: float = 0.0


@attrs.frozen(kw_only=True)
class ProcessSpec:
    """One process wanted."""

    name: str
    """Names it in logs and errors; unique in its cluster."""
    entry: str
    """`module:function`; called as `await function(value, context)` in the new process, it returns
    the service whose asynchronous methods `Process.call` names."""
    value: Any = None
    """Plain: what the entry needs."""
    needs: Resources = attrs.field(factory=lambda: Resources(cpus=1))
    share: str = ""
    """Processes of one name share their devices: together they need what the largest needs."""
    together: str = ""
    """Processes of one name lie on one node (a tensor-parallel group); others are spread."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Set before the interpreter starts."""
    python: str = ""
    """Another interpreter (an engine with an environment of its own); empty: this one."""


@attrs.frozen(kw_only=True)
class Death:
    """How a process ended."""

    name: str
    cause: str
    """Exception with its traceback, signal, or out of memory, in words."""
    expected: bool
    """It was stopped by its cluster."""
    log: str = ""
    """The file with what it wrote; empty where there is none."""


def _no_ports() -> socket:
    raise Unsupported("no cluster started this process, so nothing holds ports for it")


@attrs.frozen(kw_only=True)
class Context:
    """What an entry learns about the place where it runs."""

    name: str
    node: str
    """Host name."""
    host: str = "127.0.0.1"
    """This node's address, as processes on the run's other nodes reach it."""
    folder: str
    """A folder of this process alone, removed after its end."""
    hold: Callable[[], socket] = _no_ports
    """A TCP socket bound to a free port of this node: pass it on (a store's `master_listen_fd`), or
    keep it until another has bound the port with SO_REUSEPORT, and then close it."""


class Process(Protocol):
    """A running process.

    Promises: calls run side by side in the other process's event loop; an exception raised there
    is raised here, with its own traceback in its notes. A call to a dead process, and every call
    that waits when it dies, raises EngineFailed with the cause of death.
    Cancellation: cancels the call over there.
    """

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int:
        """On its own node."""
        ...

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the service."""
        ...

    async def death(self) -> Death:
        """Wait until it ends."""
        ...

    async def stop(self) -> None:
        """End it: `close` of the service where it has one, then by force within the bound. Safe to
        call twice."""
        ...


class Cluster(Protocol):
    """Starts processes, and ends them all.

    Promises: no process outlives the cluster's own, however that ends. Ports are held, not
    guessed.
    Raises: NotEnough: what was wanted and what is visible, before anything starts. EngineFailed: a
    process ended before it was ready, with its cause.
    """

    @property
    def host(self) -> str:
        """The address of this process's node, as those that it starts reach it; known once
        `resources` or `start` has been awaited."""
        ...

    async def resources(self) -> Resources:
        """What is visible and free."""
        ...

    async def start(self, wanted: Sequence[ProcessSpec]) -> Sequence[Process]:
        """All of them, ready to be called, or none."""
        ...

    async def close(self) -> None:
        """Stop whatever runs. Safe to call twice."""
        ...
