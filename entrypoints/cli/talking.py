"""`hexpo chat` and `hexpo export`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hexpo.entrypoints.cli import process
from hexpo.infrastructure import runs

if TYPE_CHECKING:
    from hexpo.entrypoints.library import Run


def chat(run: str, overrides: Sequence[str], *, parent: str) -> int:
    """A dialogue in the terminal; an empty line, Ctrl-D or Ctrl-C ends it."""
    opened, console = _open(run, overrides, parent)
    try:
        asyncio.run(_talk(opened, console))
    except (EOFError, KeyboardInterrupt):
        console.print()
    return 0


def export(run: str, folder: str, overrides: Sequence[str], *, parent: str) -> int:
    """Write a model folder."""
    opened, console = _open(run, overrides, parent)
    step = opened.export(folder)
    console.print(f"wrote the checkpoint of step {step} to {folder}")
    return 0


def _open(run: str, overrides: Sequence[str], parent: str) -> tuple[Run, Console]:
    folder = runs.find(run, parent=Path(parent))
    process.prepare(folder / runs.CONFIG, overrides)

    from hexpo.entrypoints import library

    console = Console(highlight=False)
    opened = library.resume(folder, *overrides, console=console)
    return opened, console


async def _talk(run: Run, console: Console) -> None:
    with console.status("loading"):
        conversation = await run.open_conversation()
    try:
        while line := (await asyncio.to_thread(console.input, "[bold]you:[/] ")).strip():
            console.print("[bold]policy:[/] ", end="")
            async for piece in conversation.say(line):
                console.print(piece, end="", markup=False)
            console.print()
    finally:
        await run.close()
