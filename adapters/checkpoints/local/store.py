"""Saves as folders, each made beside its place and moved there in one step."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import attrs

from hexpo.adapters.checkpoints.local import marker
from hexpo.application.disk import is_full, of_full_disk
from hexpo.application.ports.checkpoints import Checkpoint, CheckpointStore
from hexpo.domain.errors import CheckpointError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_UNFINISHED = ".unfinished-"
_FOLDER = re.compile(r"step-(\d+)(?:\.(\d+))?")


@attrs.frozen(kw_only=True)
class Config:
    """How many saves are kept, and how they are trusted."""

    keep: int = attrs.field(default=3, validator=attrs.validators.ge(1))
    """How many complete saves stay on the disk, the newest ones."""
    digests: bool = True
    """Read every byte of a save before it is selected; else its names and sizes only."""


@attrs.frozen(order=True)
class _Save:
    """A folder that bears the name of a save, complete or not."""

    step: int
    revision: int
    """Counts saves of one step, so that the new one exists before the old one goes."""
    folder: Path = attrs.field(order=False)


class LocalCheckpoints:
    """See `hexpo.application.ports.checkpoints.CheckpointStore`.

    A save is filled in a folder of another name, synced, sealed by a marker with sizes and
    digests, and only then renamed. So a crash at any byte leaves a folder that has no save's
    name, which the next writer removes. One process writes at a time, under a lock.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self._config = config
        self._folder = folder

    def write(self, step: int) -> AbstractAsyncContextManager[Path]:
        return self._write(step)

    async def latest(self) -> Checkpoint | None:
        return await asyncio.to_thread(self._latest)

    async def steps(self) -> list[int]:
        return await asyncio.to_thread(
            lambda: sorted({save.step for save in self._saves() if _is_whole(save)})
        )

    @asynccontextmanager
    async def _write(self, step: int) -> AsyncIterator[Path]:
        with _explained(self._folder), self._lock():
            await _uninterrupted(self._clean)
            unfinished = self._folder / f"{_UNFINISHED}{step}"
            try:
                with _explained(self._folder):  # while the disk is still as full as it was
                    unfinished.mkdir()
                    yield unfinished
                    await _uninterrupted(lambda: self._commit(unfinished, step))
            finally:
                # After the commit there is no such folder any more.
                shutil.rmtree(unfinished, ignore_errors=True)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """The right to write here; the system frees it when the process ends, however."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CheckpointError(
                    f"{self._folder} is being written by another save: two runs share the folder, "
                    "or two saves overlap; give each run a folder of its own"
                ) from error
            yield

    def _clean(self) -> None:
        """Remove what killed writers left."""
        for path in self._folder.glob(f"{_UNFINISHED}*"):
            _log.info("removing an unfinished save: %s", path.name)
            shutil.rmtree(path, ignore_errors=True)

    def _commit(self, unfinished: Path, step: int) -> None:
        """Make a filled folder the save of its step, then drop what is no longer kept."""
        if (unfinished / marker.NAME).exists():
            raise CheckpointError(f"{marker.NAME} is the marker's own name: save under another one")
        marker.seal(unfinished, step)
        revision = max((s.revision + 1 for s in self._saves() if s.step == step), default=0)
        name = f"step-{step:08}" + (f".{revision}" if revision else "")
        made = _Save(step, revision, self._folder / name)
        os.rename(unfinished, made.folder)
        marker.sync(self._folder)
        for old in self._outdated(made):
            _remove(old)

    def _outdated(self, made: _Save) -> list[_Save]:
        """Earlier saves of the same step, and complete ones beyond those to keep, never `made`."""
        replaced = [s for s in self._saves() if s.step == made.step and s != made]
        whole = [s for s in self._saves() if s.step != made.step and _is_whole(s)]
        spare = len(whole) - (self._config.keep - 1)
        return replaced + (whole[:spare] if spare > 0 else [])

    def _saves(self) -> list[_Save]:
        """Folders that bear a save's name, oldest step first."""
        if not self._folder.is_dir():
            return []
        matches = ((_FOLDER.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted(
            _Save(int(match[1]), int(match[2] or 0), path) for match, path in matches if match
        )

    def _latest(self) -> Checkpoint | None:
        faults = []
        for save in reversed(self._saves()):
            found = marker.fault(save.folder, digests=self._config.digests)
            if not found:
                return Checkpoint(save.step, save.folder)
            _log.warning("save %s is passed over: %s", save.folder.name, found)
            faults.append(found)
        if faults:
            raise CheckpointError(
                f"no save in {self._folder} is whole: {'; '.join(faults)}. Restore the file, or "
                "remove the folder to start afresh"
            )
        return None


def _is_whole(save: _Save) -> bool:
    return not marker.fault(save.folder, digests=False)


def _remove(save: _Save) -> None:
    """Take a save away; its name goes first, so that half a save never bears one."""
    condemned = save.folder.with_name(f"{_UNFINISHED}{save.folder.name}")
    os.rename(save.folder, condemned)
    shutil.rmtree(condemned, ignore_errors=True)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn the system's errors of a save, and any error on a full disk, into CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        if is_full(error, folder):
            raise of_full_disk(error, folder) from error
        if isinstance(error, OSError):
            raise CheckpointError(
                f"saving to {folder} failed ({error}); the save before it is intact"
            ) from error
        raise


async def _uninterrupted(work: Callable[[], _T]) -> _T:
    """Do blocking work in a thread; a cancellation waits until it is over."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise


def build(config: Config, *, folder: Path) -> CheckpointStore:
    """Saves in `folder`, which is made at the first one."""
    return LocalCheckpoints(config, folder)
