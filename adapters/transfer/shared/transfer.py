"""Weight transfer within one process."""

from __future__ import annotations

import time

import attrs

from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import Metrics, total


@attrs.frozen
class SharedTransfer:
    """Tells the one rollout engine, which holds the trainer's module, to take its weights over."""

    rollout: RolloutEngine

    async def transfer(self, version: int) -> Metrics:
        """Returns when the engine confirmed. Raises EngineFailed if it reports another version."""
        began = time.perf_counter()
        await self.rollout.load_weights(Update(version=version))
        if self.rollout.version != version:
            raise EngineFailed(
                f"the rollout engine reports version {self.rollout.version} after loading"
                f" {version}; its weights cannot be trusted"
            )
        return {"time/transfer": total(time.perf_counter() - began)}


def build(*, rollout: RolloutEngine) -> SharedTransfer:
    """A transfer to the engine of this process."""
    return SharedTransfer(rollout)
