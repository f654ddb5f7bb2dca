"""Saves on the local disk, and every way in which one can break."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexpo.adapters.checkpoints import local
from hexpo.adapters.checkpoints.local import marker
from hexpo.domain.errors import CheckpointError

FILES = {"loop.json": b'{"step": 1}', "engine/weights": b"0123456789", "engine/empty": b""}


class PowerCut(BaseException):
    """The machine stops: nothing after it runs, no clean-up either."""


async def _save(folder: Path, step: int, *, keep: int = 3) -> None:
    async with local.build(local.Config(keep=keep), folder=folder).write(step) as unfinished:
        (unfinished / "engine").mkdir()
        for name, content in FILES.items():
            (unfinished / name).write_bytes(content + str(step).encode())


def _latest(folder: Path) -> int | None:
    checkpoint = asyncio.run(local.build(local.Config(), folder=folder).latest())
    return None if checkpoint is None else checkpoint.step


def _steps(folder: Path) -> list[int]:
    return asyncio.run(local.build(local.Config(), folder=folder).steps())


@contextmanager
def _cut_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the machine at the `calls`-th write, sync, rename or removal; what it had done stays."""
    left = calls

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise PowerCut
            left -= 1
            return work(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "rename"), (shutil, "rmtree")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        patch.setattr(Path, "write_text", counted(Path.write_text))
        patch.setattr(Path, "write_bytes", counted(Path.write_bytes))
        try:
            yield
        except PowerCut:
            pass


def test_a_crash_between_any_two_operations_leaves_a_whole_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: the previous save, or the new one if it was already there; never less than one."""
    seen: list[int | None] = []
    for calls in range(40):
        folder = tmp_path / str(calls)
        asyncio.run(_save(folder, 1, keep=1))
        with _cut_after(calls, monkeypatch):
            asyncio.run(_save(folder, 2, keep=1))
        seen.append(_latest(folder))
        asyncio.run(_save(folder, 3, keep=1))
        assert _steps(folder) == [3]
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "step-00000003"]
    assert seen == sorted(seen, key=lambda step: step or 0)
    assert set(seen) == {1, 2}


def test_a_crash_while_a_step_is_saved_again_leaves_one_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3, H5: the old save of a step goes only when the new one is there."""
    for calls in range(40):
        folder = tmp_path / str(calls)
        asyncio.run(_save(folder, 1))
        with _cut_after(calls, monkeypatch):
            asyncio.run(_save(folder, 1))
        assert _latest(folder) == 1
        assert _steps(folder) == [1]


def test_a_crash_while_an_old_save_is_removed_leaves_no_half_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: what bears the name of a save is whole; of a step saved again one remains."""
    asyncio.run(_save(tmp_path, 1))

    def remove_one_file(folder: Path, **options: Any) -> None:
        for path in marker.files_of(folder):
            path.unlink()
            raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", remove_one_file)
        with pytest.raises(PowerCut):
            asyncio.run(_save(tmp_path, 1))
    (kept,) = tmp_path.glob("step-*")
    assert marker.fault(kept, digests=True) == ""
    asyncio.run(_save(tmp_path, 1))
    assert len(list(tmp_path.glob("step-*"))) == 1
    assert not list(tmp_path.glob(".unfinished*"))


@given(st.sampled_from([*FILES, marker.NAME]), st.floats(0, 1), st.booleans())
@settings(deadline=None)
def test_a_save_that_lost_a_byte_or_a_file_is_passed_over(
    name: str, share: float, removed: bool
) -> None:
    """H3: cut at any byte, or gone: the save before it is selected."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for step in (1, 2):
            asyncio.run(_save(folder, step))
        victim = folder / "step-00000002" / name
        if removed:
            victim.unlink()
        else:
            content = victim.read_bytes()
            victim.write_bytes(content[: int(share * (len(content) - 1))])
        assert _latest(folder) == 1
        assert _steps(folder) == [1]


def test_a_changed_byte_is_seen_where_digests_are_checked(tmp_path: Path) -> None:
    """H3: `digests` has an effect (M2)."""
    for step in (1, 2):
        asyncio.run(_save(tmp_path, step))
    (tmp_path / "step-00000002" / "engine/weights").write_bytes(b"012345678_2")
    assert _latest(tmp_path) == 1
    careless = local.build(local.Config(digests=False), folder=tmp_path)
    checkpoint = asyncio.run(careless.latest())
    assert checkpoint is not None
    assert checkpoint.step == 2


def test_when_no_save_is_whole_the_error_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    """A run never starts afresh in silence."""
    asyncio.run(_save(tmp_path, 1))
    (tmp_path / "step-00000001" / "loop.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"loop\.json has 2 bytes, 12 were saved.*Restore"):
        _latest(tmp_path)


def test_retention_never_counts_a_damaged_save(tmp_path: Path) -> None:
    """H4: with one to keep, the last whole one stays until a new one is whole."""
    for step in (1, 2):
        asyncio.run(_save(tmp_path, step))
    (tmp_path / "step-00000002" / marker.NAME).unlink()
    asyncio.run(_save(tmp_path, 3, keep=2))
    assert _steps(tmp_path) == [1, 3]


def test_a_run_that_went_back_keeps_what_it_has_just_saved(tmp_path: Path) -> None:
    """H4: an older step than those on the disk is not its own first victim."""
    for step in (5, 6):
        asyncio.run(_save(tmp_path, step))
    asyncio.run(_save(tmp_path, 3, keep=1))
    assert _steps(tmp_path) == [3]


@pytest.mark.parametrize("room", range(sum(map(len, FILES.values())) + 2))
def test_a_full_disk_is_explained_and_the_save_before_it_is_intact(
    room: int, tmp_path: Path
) -> None:
    """H3: at every byte of what the engine writes."""
    asyncio.run(_save(tmp_path, 1))

    async def save() -> None:
        left = room
        async with local.build(local.Config(), folder=tmp_path).write(2) as unfinished:
            (unfinished / "engine").mkdir()
            for name, content in FILES.items():
                part = content[:left]
                (unfinished / name).write_bytes(part)
                left -= len(part)
                if len(part) < len(content) or room == sum(map(len, FILES.values())):
                    raise OSError(errno.ENOSPC, "No space left on device")

    if room > sum(map(len, FILES.values())):
        asyncio.run(save())
        assert _latest(tmp_path) == 2
        return
    with pytest.raises(CheckpointError, match=r"full.*Free space, or lower `keep`"):
        asyncio.run(save())
    assert _latest(tmp_path) == 1
    assert not list(tmp_path.glob(".unfinished*"))


@pytest.mark.parametrize("name", ["fsync", "rename"])
def test_a_disk_that_fails_in_the_store_itself_is_explained(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's error is the cause of ours."""
    asyncio.run(_save(tmp_path, 1))

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(CheckpointError, match="full") as caught:
            asyncio.run(_save(tmp_path, 2))
    assert isinstance(caught.value.__cause__, OSError)
    assert _latest(tmp_path) == 1


def test_an_error_of_another_library_on_a_full_disk_is_explained_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor libraries report a full disk by errors of their own."""

    async def save() -> None:
        async with local.build(local.Config(), folder=tmp_path).write(2):
            raise RuntimeError("file write failed")

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match="full"):
        asyncio.run(save())


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    """Which folder, and why."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"saving to .*file"):
        asyncio.run(_save(tmp_path / "file" / "checkpoints", 1))


WRITER = """
import asyncio, sys
from pathlib import Path
from hexpo.adapters.checkpoints import local

async def main():
    store = local.build(local.Config(keep=2), folder=Path(sys.argv[1]))
    for step in range(1, 100_000):
        async with store.write(step) as folder:
            for name in "abc":
                (folder / name).write_bytes(f"{step}".encode() * 5_000)
        print(step, flush=True)

asyncio.run(main())
"""


def test_a_killed_writer_leaves_its_last_save(tmp_path: Path) -> None:
    """H3: kill -9 at ten random moments; what was announced is never lost."""
    moments = random.Random(0)
    for number in range(10):
        folder = tmp_path / str(number)
        command = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            stdout = writer.stdout
            assert stdout is not None
            announced = int(stdout.readline())
            time.sleep(moments.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            announced = max([announced, *map(int, stdout.read().split())])
        newest = _latest(folder)
        assert newest in (announced, announced + 1)
        content = (folder / f"step-{newest:08}" / "a").read_bytes()
        assert content == f"{newest}".encode() * 5_000
        asyncio.run(_save(folder, 100_000))
        assert not list(folder.glob(".unfinished*"))
