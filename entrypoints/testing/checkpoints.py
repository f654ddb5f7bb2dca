"""The contract of the CheckpointStore port: parametrise a test over `CONTRACT`.

@pytest.mark.parametrize("check", CONTRACT)
def test_checkpoints(check: Check, tmp_path: Path) -> None:
    asyncio.run(check(my_store, tmp_path / "run"))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.domain.errors import CheckpointError
from hexpo.entrypoints.testing.expecting import expect, refusal

Open = Callable[[Path], CheckpointStore]
"""Gives a store of this folder that keeps two saves, as each process of a run would open it."""
Check = Callable[[Open, Path], Coroutine[Any, Any, None]]
"""Raises AssertionError where a store breaks the contract; the folder is not there yet."""


async def _save(store: CheckpointStore, step: int, text: str) -> None:
    async with store.write(step) as folder:
        expect(not _names(folder), "the folder to fill is not empty")
        _fill(folder, text)


def _fill(folder: Path, text: str) -> None:
    (folder / "engine").mkdir()
    (folder / "engine" / "weights").write_text(text)


def _is_there(folder: Path) -> bool:
    return folder.exists()


def _names(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


async def _expect_newest(store: CheckpointStore, step: int, text: str) -> None:
    checkpoint = await store.latest()
    if checkpoint is None:
        raise AssertionError(f"nothing is selected, where the save of step {step} is whole")
    expect(checkpoint.step == step, f"step {checkpoint.step} is selected, not {step}")
    found = (checkpoint.folder / "engine" / "weights").read_text()
    expect(found == text, f"the save of step {step} holds {found!r}, not {text!r}")


async def _expect_steps(store: CheckpointStore, *steps: int) -> None:
    found = await store.steps()
    expect(found == list(steps), f"saves of {found} are kept, not of {list(steps)}")


async def a_store_that_was_never_written_holds_nothing(open_store: Open, folder: Path) -> None:
    """Reading makes no folder."""
    store = open_store(folder)
    expect(await store.latest() is None, "something is selected before the first save")
    await _expect_steps(store)
    expect(not _is_there(folder), "reading made a folder")


async def the_newest_complete_save_is_selected_by_any_process(
    open_store: Open, folder: Path
) -> None:
    """What counts is on the disk."""
    store = open_store(folder)
    for step in (9, 10):
        await _save(store, step, f"weights of {step}")
    await _expect_newest(open_store(folder), 10, "weights of 10")


async def a_step_saved_again_replaces_the_first_save(open_store: Open, folder: Path) -> None:
    """And counts once."""
    store = open_store(folder)
    for text in ("first", "second", "third"):
        await _save(store, 4, text)
    await _expect_newest(store, 4, "third")
    await _expect_steps(store, 4)


async def the_last_few_are_kept_counting_those_of_earlier_processes(
    open_store: Open, folder: Path
) -> None:
    """Two, in the store under test."""
    for step in (1, 2, 3, 4):
        await _save(open_store(folder), step, str(step))
    await _expect_steps(open_store(folder), 3, 4)


async def an_error_inside_the_block_leaves_the_save_before_it(
    open_store: Open, folder: Path
) -> None:
    """The error comes out as it was, and nothing is left behind."""
    store = open_store(folder)
    await _save(store, 1, "whole")
    before = _names(folder)

    async def fail() -> None:
        async with store.write(2) as part:
            _fill(part, "half")
            raise ValueError("weights are not finite")

    with refusal(ValueError, "not finite"):
        await fail()
    expect(_names(folder) == before, "the failed save left something behind")
    await _expect_newest(store, 1, "whole")


async def a_cancelled_save_leaves_the_save_before_it(open_store: Open, folder: Path) -> None:
    """Cancelled while it is being filled; the next save of that step works."""
    store = open_store(folder)
    await _save(store, 1, "whole")
    began = asyncio.Event()

    async def endless() -> None:
        async with store.write(2) as part:
            _fill(part, "half")
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(endless())
    await began.wait()
    task.cancel()
    with refusal(asyncio.CancelledError):
        await task
    await _expect_newest(store, 1, "whole")
    await _save(store, 2, "after")
    await _expect_newest(store, 2, "after")


async def two_saves_at_once_are_refused(open_store: Open, folder: Path) -> None:
    """Two runs that share a folder would remove each other's saves."""
    async with open_store(folder).write(1):
        with refusal(CheckpointError, "another save"):
            async with open_store(folder).write(2):
                pass
    await _expect_steps(open_store(folder), 1)


CONTRACT: tuple[Check, ...] = (
    a_store_that_was_never_written_holds_nothing,
    the_newest_complete_save_is_selected_by_any_process,
    a_step_saved_again_replaces_the_first_save,
    the_last_few_are_kept_counting_those_of_earlier_processes,
    an_error_inside_the_block_leaves_the_save_before_it,
    a_cancelled_save_leaves_the_save_before_it,
    two_saves_at_once_are_refused,
)
"""Every check."""
