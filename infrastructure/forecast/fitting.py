"""Speeds from what a real run wrote down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.domain.errors import DataError


@attrs.frozen(kw_only=True)
class Speeds:
    """What one run's engines took, on the devices that it had."""

    rollout: RolloutSpeed
    training: TrainingCost
    load_seconds: float
    prompt_tokens: int
    """Mean."""


@attrs.frozen
class _Step:
    """One step of the run."""

    wait: float
    train: float
    publish: float
    longest: float
    answers: float
    """Tokens of all answers."""
    tokens: float
    """With their prompts."""
    rows: int


def speeds_of(folder: Path, *, replicas: int = 1, slots: int = 256) -> Speeds:
    """Speeds from the metrics and samples of an on-policy run.

    A batch whose answers all start together takes `token_seconds` times the longest of them and
    `request_seconds` times all their tokens: two numbers, fitted to the steps by least squares;
    likewise training, from its tokens and from what every step takes. The first step, in which
    everything is warmed up, is left out where there are others.

    Args: replicas: engines that generated the run's answers.
    Raises: DataError: files are missing, hold no step, or are those of a run with staleness.
    """
    steps = list(_steps(folder))
    if not steps:
        raise DataError(f"{folder} holds no step that has both metrics and samples")
    steps = steps[1:] or steps
    token, request = fit(
        [one.wait for one in steps],
        [one.longest for one in steps],
        [one.answers / replicas for one in steps],
    )
    train_token, train_step = fit(
        [one.train for one in steps], [one.tokens for one in steps], [1.0] * len(steps)
    )
    prompts = sum(one.tokens - one.answers for one in steps) / sum(one.rows for one in steps)
    return Speeds(
        rollout=RolloutSpeed(token_seconds=token, request_seconds=request, slots=slots),
        training=TrainingCost(token_seconds=train_token, publish_seconds=train_step),
        load_seconds=sum(one.publish for one in steps) / len(steps),
        prompt_tokens=round(prompts),
    )


def fit(
    seconds: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> tuple[float, float]:
    """a, b >= 0 with a first + b second nearest to seconds, in the sense of least squares."""
    xx = sum(x * x for x in first)
    yy = sum(y * y for y in second)
    xy = sum(x * y for x, y in zip(first, second, strict=True))
    xs = sum(x * s for x, s in zip(first, seconds, strict=True))
    ys = sum(y * s for y, s in zip(second, seconds, strict=True))
    determinant = xx * yy - xy * xy
    if determinant > 1e-12 * xx * yy:
        a, b = (xs * yy - ys * xy) / determinant, (ys * xx - xs * xy) / determinant
        if a >= 0 and b >= 0:
            return a, b
    # On an edge: one of the two alone, whichever leaves less.
    left = xs * xs / xx if xx else 0.0
    right = ys * ys / yy if yy else 0.0
    return (
        (max(0.0, xs / xx), 0.0) if left >= right and xx else (0.0, max(0.0, ys / max(yy, 1e-300)))
    )


def _steps(folder: Path) -> Iterator[_Step]:
    samples: dict[int, list[tuple[int, int]]] = {}
    for row in _rows(folder / "samples.jsonl"):
        if row.get("phase") == "train":
            prompt = int(row["prompt_length"])
            length = max(0, len(row["tokens"]) - prompt)
            samples.setdefault(int(row["step"]), []).append((prompt, length))
    for row in _rows(folder / "metrics.jsonl"):
        lengths = samples.get(int(row["step"]))
        if lengths is None or "time/wait" not in row:
            continue
        if float(row.get("schedule/age", 0.0)) > 0:
            raise DataError(
                f"{folder} trained with staleness: its waiting says nothing of how fast it"
                " generates. Measure a run with asynchrony.max_staleness=0"
            )
        yield _Step(
            wait=float(row["time/wait"]),
            train=float(row["time/train"]) + float(row.get("time/score", 0.0)),
            publish=float(row.get("time/publish", 0.0)),
            longest=float(max(length for _, length in lengths)),
            answers=float(sum(length for _, length in lengths)),
            tokens=float(sum(prompt + length for prompt, length in lengths)),
            rows=len(lengths),
        )


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise DataError(
            f"speeds are measured from {path}, which cannot be read: {error}; the run needs the"
            " tracker jsonl"
        ) from error
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:  # a run that was killed may leave half a line
            return
