"""What every checkpoint store promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hexpo.adapters.checkpoints import local
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.domain.errors import CheckpointError

Open = Callable[[Path], CheckpointStore]

OPENERS: dict[str, Open] = {
    "local": lambda folder: local.build(local.Config(keep=2), folder=folder),
}


@pytest.fixture(params=OPENERS, ids=str)
def open_store(request: pytest.FixtureRequest) -> Open:
    return OPENERS[request.param]


async def _save(store: CheckpointStore, step: int, text: str) -> None:
    async with store.write(step) as folder:
        assert list(folder.iterdir()) == [], "the folder to fill is empty"
        (folder / "engine").mkdir()
        (folder / "engine" / "weights").write_text(text)


async def _newest(store: CheckpointStore) -> tuple[int, str] | None:
    checkpoint = await store.latest()
    if checkpoint is None:
        return None
    return checkpoint.step, (checkpoint.folder / "engine" / "weights").read_text()


def test_a_store_that_was_never_written_holds_nothing(open_store: Open, tmp_path: Path) -> None:
    """Reading makes no folder."""

    async def check() -> None:
        store = open_store(tmp_path / "checkpoints")
        assert await store.latest() is None
        assert await store.steps() == []

    asyncio.run(check())
    assert list(tmp_path.iterdir()) == []


def test_the_newest_complete_save_is_selected_by_any_process(
    open_store: Open, tmp_path: Path
) -> None:
    """H3: what counts is on the disk."""

    async def check() -> None:
        store = open_store(tmp_path)
        for step in (9, 10):
            await _save(store, step, f"weights of {step}")
        assert await _newest(open_store(tmp_path)) == (10, "weights of 10")

    asyncio.run(check())


def test_a_step_saved_again_replaces_the_first_save(open_store: Open, tmp_path: Path) -> None:
    """H5: and counts once."""

    async def check() -> None:
        store = open_store(tmp_path)
        for text in ("first", "second", "third"):
            await _save(store, 4, text)
        assert await _newest(store) == (4, "third")
        assert await store.steps() == [4]

    asyncio.run(check())


def test_the_last_few_are_kept_counting_those_of_earlier_processes(
    open_store: Open, tmp_path: Path
) -> None:
    """H4."""

    async def check() -> None:
        for step in (1, 2, 3, 4):
            await _save(open_store(tmp_path), step, str(step))
        assert await open_store(tmp_path).steps() == [3, 4]

    asyncio.run(check())


def test_an_error_inside_the_block_leaves_the_save_before_it(
    open_store: Open, tmp_path: Path
) -> None:
    """H3, H4: the error comes out as it was, and nothing is left behind."""
    store = open_store(tmp_path)

    async def fail() -> None:
        async with store.write(2) as folder:
            (folder / "part").write_text("half")
            raise ValueError("weights are not finite")

    asyncio.run(_save(store, 1, "whole"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="not finite"):
        asyncio.run(fail())
    assert sorted(tmp_path.rglob("*")) == before
    assert asyncio.run(_newest(store)) == (1, "whole")


def test_a_cancelled_save_leaves_the_save_before_it(open_store: Open, tmp_path: Path) -> None:
    """H3: cancelled while it is being filled."""

    async def check() -> None:
        store = open_store(tmp_path)
        await _save(store, 1, "whole")
        began = asyncio.Event()

        async def endless() -> None:
            async with store.write(2) as folder:
                (folder / "part").write_text("half")
                began.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(endless())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await _newest(store) == (1, "whole")
        await _save(store, 2, "after")
        assert await _newest(store) == (2, "after")

    asyncio.run(check())


def test_two_saves_at_once_are_refused(open_store: Open, tmp_path: Path) -> None:
    """Two runs that share a folder would remove each other's saves."""

    async def check() -> None:
        async with open_store(tmp_path).write(1):
            with pytest.raises(CheckpointError, match="another save"):
                async with open_store(tmp_path).write(2):
                    pass
        assert await open_store(tmp_path).steps() == [1]

    asyncio.run(check())
