"""Scores an answer by the task that made its question. Runs in a grader process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

INTEGER = re.compile(r"(?<![\w.])(?<!\w,)-?(?:\d{1,3}(?:,\d{3})+|\d+)(?!\.?\d)(?!,\d{3})")


def make(
    extract: str,
    pattern: str | None,
    partial_credit: bool,  # noqa: FBT001
) -> Callable[[Mapping[str, Any]], Mapping[str, float]]:
    """The grader. Raises ImportError if reasoning-gym is not installed."""
    import reasoning_gym

    tasks: dict[str, Any] = {}

    def grade(sample: Mapping[str, Any]) -> Mapping[str, float]:
        extra = sample["extra"]
        if not {"task", "options", "entry"} <= set(extra):
            raise NotImplementedError("the row is not from prompts/reasoning_gym: it has no entry")
        key = json.dumps([extra["task"], extra["options"]], default=str, sort_keys=True)
        if key not in tasks:
            options = {**extra["options"], "seed": 0}
            tasks[key] = reasoning_gym.create_dataset(extra["task"], **options)
        answer = extract_from(sample["answer"], extract, pattern)
        score = tasks[key].score_answer(answer, extra["entry"])
        if not partial_credit:
            score = float(score >= 1.0)
        return {"score": score, "extracted": float(answer is not None)}

    return grade


def extract_from(text: str, extract: str, pattern: str | None) -> str | None:
    """The part of an answer that is graded; None if the text lacks it."""
    if extract == "whole":
        return text.strip() or None
    if extract == "last_line":
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else None
    matches = list(
        (INTEGER if extract == "last_integer" else re.compile(pattern or "")).finditer(text)
    )
    if not matches:
        return None
    last = matches[-1]
    return str(last.group(1) if last.re.groups else last.group())
