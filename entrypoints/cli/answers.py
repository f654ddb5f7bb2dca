"""What a person wants to see in the end: numbers and answers, before and after."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hexpo.application.evaluate import EvaluationReport
from hexpo.application.schedule import RunReport
from hexpo.domain.metrics import values
from hexpo.domain.trajectory import Graded, Scored

SHOWN = 6
"""Prompts whose answers are shown."""


def show(console: Console, report: RunReport) -> None:
    """Held-out numbers and sample answers, before and after training."""
    first, last = report.first_evaluation, report.last_evaluation
    if first is None or last is None:
        return
    if first is last:
        show_evaluation(console, last)
        return
    console.print(_numbers({"before": first, "after": last}))
    before = {row.prompt_id: row for row in first.samples(0, "")[::-1]}
    table = _answer_table(
        f"answers, version {first.version} and version {last.version}", "before", "after"
    )
    for after in _first_of_each(last)[:SHOWN]:
        earlier = before.get(after.trajectory.prompt.id)
        table.add_row(
            _question(after),
            Text(_short(earlier.answer if earlier else "")),
            _score(earlier.score if earlier else None),
            Text(_short(after.trajectory.text)),
            _score(_value(after)),
        )
    console.print(table)


def show_evaluation(console: Console, report: EvaluationReport) -> None:
    """Held-out numbers and sample answers."""
    console.print(_numbers({"value": report}))
    table = _answer_table("answers", "answer")
    for row in _first_of_each(report)[:SHOWN]:
        table.add_row(_question(row), Text(_short(row.trajectory.text)), _score(_value(row)))
    console.print(table)


def show_numbers(
    console: Console, first: Mapping[str, float] | None, last: Mapping[str, float] | None
) -> None:
    """Numbers of held-out rows, before and after."""
    if first is None or last is None:
        return
    sides = {"value": last} if first is last else {"before": first, "after": last}
    console.print(_table(sides, title="held-out rows"))


def _numbers(reports: Mapping[str, EvaluationReport]) -> Table:
    columns = {
        side: {key.rpartition("/")[2]: value for key, value in values(report.metrics).items()}
        for side, report in reports.items()
    }
    return _table(columns, title="held-out prompts")


def _table(columns: Mapping[str, Mapping[str, float]], *, title: str) -> Table:
    table = Table(title=title)
    table.add_column("metric")
    for name in columns:
        table.add_column(name, justify="right")
    for key in [*columns.values()][-1]:
        cells = [f"{column[key]:.4g}" if key in column else "" for column in columns.values()]
        table.add_row(key, *cells)
    return table


def _answer_table(title: str, *sides: str) -> Table:
    table = Table(title=title, show_lines=True)
    table.add_column("prompt", ratio=2, overflow="fold")
    for side in sides:
        table.add_column(side, ratio=2, overflow="fold")
        table.add_column("score", justify="right")
    return table


def _first_of_each(report: EvaluationReport) -> list[Graded]:
    """One answer a prompt, spread over the whole set."""
    rows = [group.rows[0] for group in report.groups if group.rows]
    stride = max(1, len(rows) // SHOWN)
    return rows[::stride]


def _question(row: Graded) -> Text:
    return Text(_short(row.trajectory.prompt.messages[-1].content))


def _value(row: Graded) -> float | None:
    return row.outcome.value if isinstance(row.outcome, Scored) else None


def _score(value: float | None) -> str:
    return "not scored" if value is None else f"{value:.3g}"


def _short(text: str, *, width: int = 160) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= width else f"{one_line[: width - 1]}…"
