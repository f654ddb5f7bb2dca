"""One device, and both sides of a scenario's run that take turns on it."""

from __future__ import annotations

from hexpo.adapters.simulated.memory import Device, Footprint, Held, RolloutWithMemory
from hexpo.application.learning import POLICY
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.residency import Mover, Residency
from hexpo.domain.schedule.residency import Part, Resident

_ROOM = 100
"""Bytes: enough for a policy beside a rollout's weights, not for its cache too."""
_ROLLOUT = Footprint(weights=20, working=60)
_POLICY = Footprint(weights=20, working=50)


class Shared:
    """Its memory is counted: what does not fit fails, and so does an engine that is not there."""

    def __init__(self, rollout: RolloutEngine) -> None:
        self.device = Device(_ROOM)
        self.rollout = RolloutWithMemory(rollout, self.device, _ROLLOUT)
        self.policy = Held(self.device, _POLICY, name=POLICY)
        self.residency = Residency(
            (
                Resident(name="rollout", part=Part.ROLLOUT, group="all"),
                Resident(name=POLICY, part=Part.POLICY, group="all"),
            ),
            {
                "rollout": Mover.of_rollout(self.rollout),
                POLICY: Mover(out=self.policy.offload, into=self.policy.onload),
            },
        )
