"""A rollout replica that is up as soon as torch is: for benchmarks of the driver alone.

Its answers are drawn from the request's seed, and weights are received, summed up and forgotten.
What it does not load would have ended with its process; the driver sees the same service.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import Any

from hexpo.adapters.rollout.wire.served import RolloutService
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.application.ports.cluster import Context
from hexpo.application.ports.transfer import Digest, Receive, Update
from hexpo.domain.digest import Digester

REPLICA = "quick:replica"
"""Stands for `hexpo.infrastructure.serve.ROLLOUT_REPLICA`."""


class Forgetful(SimulatedRollout):
    """Confirms what it received, by its digest."""

    def __init__(self, receive: Receive) -> None:
        super().__init__(lambda _: Script(length=4, seconds=0.0))
        self._receive = receive

    async def load_weights(self, update: Update) -> Digest | None:
        """Reads all of it."""
        digest = await asyncio.to_thread(self._read, update)
        await super().load_weights(update)
        return digest

    def _read(self, update: Update) -> Digest:
        digester = Digester()
        for name, tensor in self._receive(update):
            digester.add(name, tensor)
        return digester.digest


async def replica(value: Mapping[str, Any], context: Context) -> RolloutService:
    """Entry."""
    transfer = importlib.import_module(f"hexpo.adapters.transfer.{value['transfer']['kind']}")
    return RolloutService(Forgetful(transfer.build_receiver(reader=context.name)))
