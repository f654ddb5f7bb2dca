"""Which prompts may be issued, which groups may be trained, and where each of them ended.

All of it is pure: a frozen value and functions that return the next one.
"""

from hexpo.domain.schedule.accounting import Ledger, Reason
from hexpo.domain.schedule.capacity import Plan, plan
from hexpo.domain.schedule.gate import (
    Admission,
    Dropped,
    End,
    Gate,
    Requeued,
    Trained,
    admit,
    open_gate,
    overdue,
    passed,
    publish,
    settle,
)
from hexpo.domain.schedule.order import Order, next_group, window_of

__all__ = [
    "Admission",
    "Dropped",
    "End",
    "Gate",
    "Ledger",
    "Order",
    "Plan",
    "Reason",
    "Requeued",
    "Trained",
    "admit",
    "next_group",
    "open_gate",
    "overdue",
    "passed",
    "plan",
    "publish",
    "settle",
    "window_of",
]
