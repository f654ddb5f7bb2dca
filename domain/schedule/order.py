"""Which finished group is trained next."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from hexpo.domain.errors import WrongValue
from hexpo.domain.schedule.gate import Gate


class Order(Enum):
    """Who waits for whom."""

    SUBMISSION = "submission"
    """As admitted: nobody is favoured, the slowest group holds the line."""
    COMPLETION = "completion"
    """As finished: fast, and early finishers are favoured; overdue groups are dropped as stale at
    each publication, and their share and length are the reported bias."""
    WINDOW = "window"
    """Younger groups may pass the oldest one, but no more than w - 1 of them."""


def window_of(order: Order, *, window: int | None = None) -> int | None:
    """The window of a gate's plan. Raises WrongValue: a width without `Order.WINDOW`, or none."""
    if (window is not None) != (order is Order.WINDOW):
        raise WrongValue(
            f"order {order.value} with window {window}: a window belongs to order"
            f" {Order.WINDOW.value}, and that order needs one"
        )
    return {Order.SUBMISSION: 1, Order.COMPLETION: None, Order.WINDOW: window}[order]


def next_group(gate: Gate, finished: Collection[int]) -> int | None:
    """Number of the finished group to train now, or None where all must wait.

    In a window it is the oldest one; without a window the one that finished first.

    Args: finished: alive groups that are ready, in order of completion; a dict or set is quickest.
    """
    window = gate.plan.window
    if window is None:
        return next((number for number in finished if gate.may_train(number)), None)
    reach = range(gate.oldest, min(gate.oldest + window, gate.next_number))
    if len(finished) < len(reach):
        found = min((number for number in finished if number in reach), default=None)
    else:
        found = next((number for number in reach if number in finished), None)
    return found if found is not None and gate.may_train(found) else None
