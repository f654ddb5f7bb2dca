"""A weight transfer that is tried again, without the replica whose failure broke it."""

from __future__ import annotations

import logging

import attrs

from hexpo.application.ports.transfer import WeightTransfer
from hexpo.application.replicas import Replicas
from hexpo.application.tasks import apart
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import Metrics, merge, total

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Delivery:
    """Implements WeightTransfer to several replicas. A replica that dies can break an attempt for
    all, since the sender waits for it; once it is fenced, the others get what they missed."""

    transfer_once: WeightTransfer
    replicas: Replicas
    further: int = 2
    """Tries after the first one."""

    async def transfer(self, version: int) -> Metrics:
        """See the port. Raises EngineFailed: of the last try, or of a failure that fenced nobody
        twice in a row; notes tell the earlier ones."""
        earlier: list[EngineFailed] = []
        while True:
            fenced = len(self.replicas.fenced)
            try:
                moved = await apart(self.transfer_once.transfer(version))
            except EngineFailed as error:
                helped = len(self.replicas.fenced) > fenced or not earlier
                if not helped or len(earlier) >= self.further:
                    first = (earlier or [error])[0]
                    for later in [*earlier[1:], error] if earlier else []:
                        first.add_note(f"then: {later}")
                    raise first from first.__cause__
                earlier.append(error)
                log.warning("version %d did not arrive and is sent again: %s", version, error)
                continue
            return merge([moved, {"transfer/retries": total(float(len(earlier)))}])
