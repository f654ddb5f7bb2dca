"""Nothing outlives its driver, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hexpo.adapters.cluster.local import Config, build
from hexpo.adapters.cluster.wire import ports
from hexpo.adapters.cluster.wire.endings import cause_of
from hexpo.application.ports.cluster import ProcessSpec, Resources
from hexpo.domain.errors import EngineFailed

ENTRIES = Path(__file__).parents[2] / "data" / "cluster"
DRIVER = """
import asyncio, sys
from pathlib import Path
from hexpo.adapters.cluster.local import Config, build
from hexpo.application.ports.cluster import ProcessSpec, Resources

async def main(folder, entries):
    cluster = build(Config(oversubscribe=True), folder=Path(folder))
    specs = [
        ProcessSpec(name=str(n), entry="cluster_entries:desk", environment={"PYTHONPATH": entries})
        for n in range(2)
    ]
    first, second = await cluster.start(specs)
    grandchild = await first.call("start_another")
    made = await first.call("lock")
    print(first.pid, second.pid, grandchild, await first.call("folder"), *made, flush=True)
    await second.call("spin", 600.0)

asyncio.run(main(*sys.argv[1:]))
"""


def _spec(name: str) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        entry="cluster_entries:desk",
        environment={"PYTHONPATH": str(ENTRIES)},
        needs=Resources(cpus=0.1),
    )


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _note(pid: int) -> Path:
    """What Intel's OpenMP leaves in shared memory of a process that is killed."""
    path = Path(f"/dev/shm/__KMP_REGISTERED_LIB_{pid}_{os.getuid()}")
    path.write_text("")
    return path


def test_no_child_survives_a_killed_driver(tmp_path: Path) -> None:
    """O3: kill -9 of the driver ends a busy child, an idle one and what they started; no folder,
    nothing in shared memory."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), str(ENTRIES)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        *numbers, folder, lock, memory = driver.stdout.readline().split()
        pids = [int(number) for number in numbers]
        assert all(_runs(pid) for pid in pids)
        notes = [*map(_note, pids[:2]), Path("/dev/shm", lock), Path("/dev/shm", memory)]
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        until = time.monotonic() + 10
        while (any(map(_runs, pids)) or Path(folder).exists()) and time.monotonic() < until:
            time.sleep(0.05)
    assert not [pid for pid in pids if _runs(pid)]
    assert not Path(folder).exists()
    assert not [note for note in notes if note.exists()]


def test_a_killed_process_leaves_nothing_in_shared_memory(tmp_path: Path) -> None:
    """O3: neither it nor what it started itself, nor what is of a process that is gone; a running
    one's stays."""
    stranger = _note(os.getpid())
    gone = _note(2**22 + 1)  # no process has such a number

    async def main() -> list[Path]:
        cluster = build(Config(oversubscribe=True), folder=tmp_path)
        try:
            (process,) = await cluster.start([_spec("a")])
            notes = [_note(process.pid), _note(await process.call("start_another"))]
            os.kill(process.pid, signal.SIGKILL)
            await process.death()
        finally:
            await cluster.close()
        return notes

    notes = asyncio.run(main())
    assert not [note for note in (*notes, gone) if note.exists()]
    assert stranger.exists()
    stranger.unlink()


@pytest.mark.parametrize("how", ["killed", "stopped", "leaves"])
def test_locks_and_shared_memory_go_with_their_process(how: str, tmp_path: Path) -> None:
    """O3: Python's tracker in the group is let to take them away, however the process ends."""

    async def main() -> list[Path]:
        cluster = build(Config(oversubscribe=True), folder=tmp_path)
        try:
            (process,) = await cluster.start([_spec("a")])
            made = [Path("/dev/shm", name) for name in await process.call("lock")]
            assert all(path.exists() for path in made)
            if how == "killed":
                os.kill(process.pid, signal.SIGKILL)
            elif how == "stopped":
                await process.stop()
            else:
                with pytest.raises(EngineFailed):
                    await process.call("leave", 3)
            await process.death()
        finally:
            await cluster.close()
        return made

    assert not [path for path in asyncio.run(main()) if path.exists()]


@pytest.mark.slow
def test_two_hundred_starts_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O3: no process, socket or file more than before; the cluster uses no shared memory."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    async def main() -> list[int]:
        cluster = build(Config(cpus=4), folder=tmp_path)
        pids = []
        try:
            for _ in range(20):
                processes = await cluster.start([_spec(str(n)) for n in range(10)])
                pids += [process.pid for process in processes]
                os.kill(pids[-1], signal.SIGKILL)
                await processes[-1].death()
                await asyncio.gather(*(process.stop() for process in processes))
        finally:
            await cluster.close()
        return pids

    handles = len(os.listdir("/proc/self/fd"))
    pids = asyncio.run(main())
    assert len(pids) == 200
    assert not [pid for pid in pids if _runs(pid)]
    assert len(os.listdir("/proc/self/fd")) <= handles
    assert not list(scratch.iterdir())


def test_a_held_port_can_be_bound_by_whom_it_is_held_for() -> None:
    """O2: with SO_REUSEPORT, and by nobody who asks for any port."""
    with ports.hold() as held, socket.socket() as taker, socket.socket() as stranger:
        port = held.getsockname()[1]
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taker.bind(("", port))
        taker.listen()
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("", port))


@pytest.mark.parametrize(
    ("code", "kills", "said"),
    [
        (0, 0, "ended by itself"),
        (3, 0, "ended with exit code 3"),
        (-9, 0, "killed by SIGKILL"),
        (-9, 1, "killed by SIGKILL: the machine was out of memory"),
        (-11, 1, "killed by SIGSEGV (a fault in native code; its log has the Python stack)"),
    ],
)
def test_an_end_is_said_in_words(code: int, kills: int, said: str) -> None:
    """R1: exception, signal or out of memory."""
    assert cause_of(code, memory_kills=kills) == said
