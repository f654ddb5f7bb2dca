"""Several rollout engines behind one port: routing, fencing, leases.

Whoever fails, is late, or reports another version or other weights than its peers is *fenced*: it
gets no request and no update any more, and what runs in it goes on elsewhere. The run goes on
while enough replicas live.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs

from hexpo.application.leasing import Lease
from hexpo.application.membership import Member, Running, Standing, Usage
from hexpo.application.pieces import Pieces
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    RolloutEngine,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.application.routing import LeastLoaded
from hexpo.domain.errors import EngineFailed, WrongValue
from hexpo.domain.metrics import Measure, largest, latest, mean_of, smallest, total
from hexpo.domain.trajectory import StopReason

log = logging.getLogger(__name__)

