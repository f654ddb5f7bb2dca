"""Entries that the cluster's tests start in other processes; they load no tensor library."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from hexpo.application.ports.cluster import Context
from hexpo.domain.errors import WrongValue


class Desk:
    """Answers simple calls."""

    def __init__(self, value: Any, context: Context) -> None:
        self._value, self._context = value, context
        self._cancelled = 0
        self._held: list[Any] = []
        self._gate = asyncio.Event()

    async def value(self) -> Any:
        return self._value

    async def echo(self, value: Any) -> Any:
        return value

    async def fill(self, tensor: Any) -> Any:
        """Write into what was given: a value that crossed is the receiver's."""
        tensor.fill_(7)
        return tensor

    async def open_gate(self) -> None:
        self._gate.set()

    async def pass_gate(self) -> str:
        await self._gate.wait()
        return "passed"

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._cancelled += 1
            raise

    async def cancelled(self) -> int:
        return self._cancelled

    async def refuse(self, message: str) -> None:
        raise WrongValue(message)

    async def raise_unpicklable(self) -> None:
        raise Stubborn(lambda: None)

    async def unpicklable(self) -> Any:
        return lambda: None

    async def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    async def folder(self) -> str:
        Path(self._context.folder, "file").write_text("here")  # noqa: ASYNC240
        return self._context.folder

    async def modules(self) -> list[str]:
        return sorted(name for name in sys.modules if "." not in name)

    async def hold(self, count: int) -> list[int]:
        self._held = [self._context.hold() for _ in range(count)]
        return [socket.getsockname()[1] for socket in self._held]

    async def say(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    async def leave(self, code: int) -> None:
        os._exit(code)

    async def start_another(self) -> int:
        """A process that this one starts by itself, and never ends."""
        process = await asyncio.create_subprocess_exec("sleep", "600")
        self._other = process
        return process.pid

    async def lock(self) -> list[str]:
        """Names of a lock and of shared memory that Python's tracker knows."""
        lock = multiprocessing.get_context("spawn").Lock()
        memory = shared_memory.SharedMemory(create=True, size=64)
        self._others = lock, memory
        return ["sem." + lock._semlock.name.strip("/"), memory.name]

    async def spin(self, seconds: float) -> None:
        """Block the event loop, as bad services do."""
        time.sleep(seconds)  # noqa: ASYNC251

    async def close(self) -> None:
        for socket in self._held:
            socket.close()
        if isinstance(self._value, dict) and "closed" in self._value:
            Path(self._value["closed"]).write_text("closed")  # noqa: ASYNC240


class Stubborn(Exception):
    """Cannot be pickled."""


class Endless(Desk):
    """Does not close."""

    async def close(self) -> None:
        await asyncio.Event().wait()


class Waiter:
    """Whatever a rank or a replica is asked for, it begins, and never ends."""

    def __init__(self) -> None:
        self._waiting = False

    async def waiting(self) -> bool:
        return self._waiting

    async def wait(self, *_: Any) -> None:
        self._waiting = True
        await asyncio.Event().wait()

    generate = pause = load_weights = resume = wait
    accumulate = finish = send = save = wait


async def waiter(value: Any, context: Context) -> Waiter:
    return Waiter()


async def desk(value: Any, context: Context) -> Desk:
    return Desk(value, context)


async def endless(value: Any, context: Context) -> Desk:
    return Endless(value, context)


async def broken(value: Any, context: Context) -> Desk:
    raise WrongValue(f"no such model: {value}")


async def late(value: Any, context: Context) -> Desk:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
