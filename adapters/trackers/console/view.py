"""What the console shows, as a value and its drawing."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text


@attrs.frozen(kw_only=True)
class View:
    """The present state of a run."""

    title: str = ""
    step: int = 0
    steps: int = 0
    numbers: tuple[tuple[str, str], ...] = ()
    """Labels and values of the last step."""
    seconds_left: float | None = None
    """None until a step has ended."""
    doing: str = ""
    done: int = 0
    wanted: int = 0
    sample: str = ""
    """The last answer, on one line."""


def number(value: float) -> str:
    """Three significant digits, thousands apart: 0.412, 1,203, 2.1e-05."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """42 s, 2:05 or 1:02:05."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60}:{rest % 60:02}" if rest >= 60 else f"{rest} s"


def line(view: View) -> str:
    """The step on one line."""
    parts = [f"step {view.step}/{view.steps}"]
    parts += [f"{label} {value}" for label, value in view.numbers]
    if view.seconds_left is not None:
        parts.append(f"{duration(view.seconds_left)} left")
    return "  ".join(parts)


def render(view: View) -> RenderableType:
    """The live view: steps, numbers, work inside the step, last answer."""
    bar = Table.grid(padding=(0, 1))
    left = "" if view.seconds_left is None else f"{duration(view.seconds_left)} left"
    bar.add_row(
        Text(view.title, style="bold"),
        ProgressBar(total=max(view.steps, 1), completed=view.step, width=30),
        Text(f"{view.step}/{view.steps}"),
        Text(left, style="dim"),
    )
    rows: list[RenderableType] = [bar]
    if view.numbers:
        text = Text(no_wrap=True, overflow="ellipsis")
        for label, value in view.numbers:
            text.append(f"{label} ", style="dim").append(f"{value}  ", style="bold")
        rows.append(text)
    if view.doing:
        rows.append(Text(f"{view.doing} {view.done}/{view.wanted}", style="dim"))
    if view.sample:
        rows.append(Text(view.sample, style="italic", no_wrap=True, overflow="ellipsis"))
    return Group(*rows)


def evaluation(
    name: str, step: int, numbers: Mapping[str, float], before: Mapping[str, float]
) -> Table:
    """An evaluation's numbers, with what changed since the one before."""
    table = Table(title=f"{name} at step {step}", title_justify="left", title_style="bold")
    table.add_column("metric")
    table.add_column("value", justify="right")
    if before:
        table.add_column("change", justify="right")
    for metric, value in numbers.items():
        row = [metric, number(value)]
        if before:
            row.append(f"{value - before[metric]:+.3g}" if metric in before else "")
        table.add_row(*(Text(cell) for cell in row))
    return table
