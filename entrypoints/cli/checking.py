"""`hexpo doctor --preflight`: a run's processes, tried."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from hexpo.domain.errors import ConfigurationError
from hexpo.entrypoints.cli import process
from hexpo.entrypoints.cli.main import FAILURE

if TYPE_CHECKING:  # it imports torch, which must not happen before the process is prepared
    from hexpo.infrastructure.config.schema import RunConfig


def preflight(config: str, overrides: Sequence[str], *, bound: float) -> int:
    """Place every process, let the ranks exchange one number, ask one engine; exit code 1 at the
    first that fails."""
    if bound <= 0:
        raise ConfigurationError(f"--bound {bound:g}: a trial needs more than 0 seconds")
    process.prepare(Path(config), overrides)
    from hexpo.infrastructure.config import check
    from hexpo.infrastructure.config.load import load

    resolved = load(config, overrides=overrides)
    check.require_sound(resolved.config)
    return asyncio.run(_try_all(resolved.config, Console(highlight=False), bound))


async def _try_all(config: RunConfig, console: Console, bound: float) -> int:
    from hexpo.infrastructure.preflight import preflight

    code = 0
    with console.status("trying the run's processes"):
        async for trial in preflight(config, bound_seconds=bound):
            word = "[green]passed[/]" if trial.passed else "[bold red]failed[/]"
            console.print(f"{word} {trial.name}, {trial.seconds:.1f} s: {escape(trial.found)}")
            code = 0 if trial.passed else FAILURE
    return code
