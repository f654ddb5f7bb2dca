"""Scores an answer by the task that made its question. Runs in a grader process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

# A minus right after a word or a bracket is a subtraction, not a sign.
NUMBER = re.compile(r"(?:(?<![\w)])-)?\d+(?:,\d{3})*(\.\d+)?")


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
    if extract == "last_integer":
        return _last_integer(text)
    matches = list(re.finditer(pattern or "", text))
    if not matches:
        return None
    return matches[-1].group(1 if matches[-1].re.groups else 0)


def _last_integer(text: str) -> str | None:
    numbers = list(NUMBER.finditer(text))
    if not numbers or (numbers[-1].group(1) or "").strip(".0"):
        return None
    return numbers[-1].group().replace(",", "").partition(".")[0]
