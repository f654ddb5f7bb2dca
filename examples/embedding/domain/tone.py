"""What a good answer is, in this business."""

from __future__ import annotations


def brevity(answer: str, *, ideal: int = 4) -> float:
    """1 for an answer of the ideal length in characters, falling to 0 at twice or none of it."""
    return max(0.0, 1.0 - abs(len(answer) - ideal) / ideal)
