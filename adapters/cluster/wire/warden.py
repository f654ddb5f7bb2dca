"""The driver's side of the guard, and the folder that it watches over."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from hexpo.adapters.cluster.wire import guard


class Warden:
    """Ends process groups and removes a folder when this process goes, however it goes.

    The guard notices by its input: the system closes it with the driver, also after a kill.
    """

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process, self.folder = process, folder

    @classmethod
    async def start(cls) -> Warden:
        """Make the folder and start the guard, in a session of its own; takes some 20 ms."""
        folder = Path(tempfile.mkdtemp(prefix="hexpo-"))
        arguments = [sys.executable, "-I", "-S", guard.__file__, str(folder)]
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(process, folder)

    def add(self, group: int) -> None:
        """Watch over a process group."""
        self._tell(f"add {group}\n")

    def remove(self, group: int) -> None:
        """It has ended: its number may soon be another's."""
        self._tell(f"remove {group}\n")

    def _tell(self, order: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(order.encode())

    async def close(self) -> None:
        """End the guard, which clears up."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
