"""Compares an answer with the truth as mathematics. Runs in a grader process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any


def make() -> Callable[[Mapping[str, Any]], Mapping[str, float]]:
    """The grader. Its time bound is the process's: math-verify's own needs a main thread."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def parse(text: str) -> Any:
        return math_verify.parse(text, parsing_timeout=None, raise_on_error=True)

    def grade(sample: Mapping[str, Any]) -> Mapping[str, float]:
        if sample["truth"] is None:
            raise NotImplementedError("the row has no truth to compare with")
        truth = str(sample["truth"])
        # A bare LaTeX truth is only seen as one inside a box.
        gold = parse(f"\\boxed{{{truth}}}") or parse(truth)
        if not gold:
            raise NotImplementedError(f"the truth can't be read as mathematics: {truth!r:.200}")
        found = parse(sample["answer"])
        if not found:
            return {"score": 0.0, "parsed": 0.0}
        equal = math_verify.verify(gold, found, timeout_seconds=None, raise_on_error=True)
        return {"score": float(equal), "parsed": 1.0}

    return grade
