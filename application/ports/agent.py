"""Port: one episode of one prompt."""

from __future__ import annotations

from typing import Protocol

import attrs

from hexpo.domain.trajectory import Ticket, Trajectory


@attrs.frozen(kw_only=True)
class AgentCapabilities:
    """What an agent loop can do."""

    observes: bool = False
    """Its trajectories hold `observation`: what tools and users say in later turns, weighed."""


class AgentLoop(Protocol):
    """Plays a prompt with the policy: one answer, or turns with an environment and tools.

    Promises: ids are never encoded again; what the policy did not sample has `action` false.
    Failures: an episode that fails is a trajectory with `failure` set; only programming errors
    and EngineFailed are raised.
    Cancellation: frees what the episode holds.
    """

    async def run(self, ticket: Ticket, sample: int) -> Trajectory:
        """Play sample number `sample` of the ticket."""
        ...
