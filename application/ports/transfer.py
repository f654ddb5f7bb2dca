"""Port: how a version reaches the rollout."""

from __future__ import annotations

from typing import Protocol

from hexpo.domain.metrics import Metrics


class WeightTransfer(Protocol):
    """Moves the trainer's present weights to every rollout replica.

    Promises: returns after *all* replicas confirmed; only then does the version count.
    Raises: EngineFailed: names the replica that did not confirm within the bound.
    Cancellation: replicas are left paused and without a valid version.
    """

    async def transfer(self, version: int) -> Metrics:
        """Move `version`. Call while the rollout is paused."""
        ...
