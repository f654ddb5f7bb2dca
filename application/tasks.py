"""Running tasks together: the first failure is the one that is shown."""

from __future__ import annotations


def first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The earliest real error inside a task group's report; its siblings stay attached to it as
    notes, so that nothing is hidden (O5, L4)."""
    leaves = list(_leaves(group))
    first, others = leaves[0], leaves[1:]
    for other in others:
        if repr(other) != repr(first):
            first.add_note(f"also failed: {type(other).__name__}: {other}")
    return first


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
