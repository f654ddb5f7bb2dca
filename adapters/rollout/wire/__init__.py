"""A rollout engine in another process: its service there, its proxy here, and weights that arrive
from a transfer."""

from hexpo.adapters.rollout.wire.filling import fill, policy_targets
from hexpo.adapters.rollout.wire.receiving import ReceivingRollout
from hexpo.adapters.rollout.wire.remote import RemoteRollout, connect
from hexpo.adapters.rollout.wire.served import RolloutService

__all__ = [
    "ReceivingRollout",
    "RemoteRollout",
    "RolloutService",
    "connect",
    "fill",
    "policy_targets",
]
