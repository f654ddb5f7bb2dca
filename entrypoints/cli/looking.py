"""`hexpo plan`, `doctor`, `runs` and `algorithms`: commands that only show."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from hexpo.domain.errors import ConfigurationError
from hexpo.entrypoints.cli import process
from hexpo.entrypoints.cli.main import USER_ERROR


def plan(config: str, overrides: Sequence[str]) -> int:
    """Show a configuration's values, numbers and conflicts; exit code 2 if it cannot run."""
    from hexpo.infrastructure.config.layers import Origin
    from hexpo.infrastructure.config.load import load
    from hexpo.infrastructure.plan import plan as make

    console, made = Console(), make(load(config, overrides=overrides))
    values = Table(title="configuration", box=None, pad_edge=False)
    values.add_column("key", no_wrap=True)
    values.add_column("value", overflow="fold")
    values.add_column("from")
    for value in made.values:
        is_default = value.origin is Origin.DEFAULT
        shown = escape(str(value.value))
        values.add_row(
            value.key,
            shown if is_default else f"[bold]{shown}[/]",
            value.origin.value,
            style="dim" if is_default else "",
        )
    console.print(values)
    for title, numbers in (
        ("numbers", made.numbers),
        ("memory", made.memory),
        ("placement", made.placement),
    ):
        rows = ((number.name, number.value, number.why) for number in numbers)
        console.print(_table(title, ("", "", "why"), rows))
    if not made.problems:
        console.print("[green]checks:[/] nothing is wrong")
        return 0
    console.print(_table("wrong", ("key", "what"), ((p.key, p.message) for p in made.problems)))
    return USER_ERROR


def doctor() -> int:
    """Show the machine as a run would find it, its platforms, and each technology: there, or
    missing and why."""
    process.prepare()
    from hexpo.infrastructure.health import examine

    console = Console()
    with console.status("looking"):
        report = examine()
    console.print(
        _table(
            "installation",
            ("", ""),
            (
                ("hexpo", report.hexpo),
                ("python", report.python),
                ("system", report.system),
                ("torch", report.torch),
                ("compiler", report.compiler.version),
                ("disk free", _gib(report.disk_free)),
                ("memory", f"{_gib(report.memory_available)} of {_gib(report.memory_total)} free"),
            ),
        )
    )
    console.print(
        _table(
            "platforms",
            ("platform", "state", "why", "facts"),
            (
                (
                    name,
                    "available" if health.available else "missing",
                    health.reason,
                    "\n".join(f"{key}: {value}" for key, value in health.facts.items()),
                )
                for name, health in report.platforms.items()
            ),
        )
    )
    console.print(
        _table(
            "technologies",
            ("adapter", "state", "accepted", "why"),
            (
                (
                    found.technology.adapter,
                    found.status.value,
                    found.technology.accepted,
                    found.reason,
                )
                for found in report.technologies
            ),
        )
    )
    return 0


def runs(folder: str) -> int:
    """List run folders."""
    from hexpo.infrastructure.runs import listing

    console = Console()
    found = listing(Path(folder))
    if not found:
        console.print(f"there is no run in {folder}")
        return 0
    rows = (
        (
            run.name,
            run.state.value,
            f"{run.step if run.step is not None else 0}/{run.steps or '?'}",
            "" if run.reward is None else f"{run.reward:.3f}",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.changed)) if run.changed else "",
            run.error,
        )
        for run in found
    )
    console.print(_table(folder, ("run", "state", "step", "reward", "changed", "error"), rows))
    return 0


def algorithms(wanted: str | None) -> int:
    """List the catalogues, one kind of them, or one name in full."""
    from hexpo.domain.algorithms import ELSEWHERE, KINDS, lines

    console = Console()
    foreign = {name: one for names in ELSEWHERE.values() for name, one in names.items()}
    chosen = [line for line in lines() if wanted in (None, line.kind, line.name)]
    if not chosen and wanted in foreign:
        console.print(escape(f"{wanted} is a name of another library: {foreign[wanted].hint}"))
        return 0
    if not chosen:
        near = difflib.get_close_matches(str(wanted), [line.name for line in lines()], n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"kinds: {', '.join(KINDS)}"
        raise ConfigurationError(f"there is no algorithm or kind {wanted!r}; {hint}")
    for line in chosen:
        console.print(f"[bold]{escape(line.name)}[/]  [dim]{escape(line.kind)}[/]")
        options = ", ".join(f"{name}={value}" for name, value in line.options.items())
        reads = ", ".join(line.needs) if wanted == line.name else ""
        for label, text in (
            ("", line.summary if wanted == line.name else ""),
            ("", line.formula or line.summary),
            ("options", options),
            ("reads", reads),
            ("needs", ", ".join(line.asks)),
            ("unit", f"{line.unit} {line.mode}".strip()),
            ("source", line.source),
        ):
            if text:
                shown = f"[dim]{label}:[/] {escape(text)}" if label else escape(text)
                console.print(Padding(shown, (0, 0, 0, 4)))
    return 0


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for place, column in enumerate(columns):
        table.add_column(
            column, overflow="fold", no_wrap=place == 0
        )  # what a row is of stays whole
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
