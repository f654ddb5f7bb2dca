"""Port: an engine that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import attrs

from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.batch import Sequences
from hexpo.domain.estimators import Estimator
from hexpo.domain.metrics import Metrics
from hexpo.domain.objective import Objective


@attrs.frozen(kw_only=True)
class TrainingCapabilities:
    """What a training adapter can do; `plan` refuses what it cannot."""

    packing: bool = False
    """Sequences end to end without padding, equal to separate ones."""
    lora: bool = False
    """Low-rank adapters on a frozen base."""
    value_head: bool = False
    """Can be a critic."""
    offload: bool = False
    """Can give its device memory back."""
    views: frozenset[str] = frozenset()
    """Names that `view` accepts."""


@attrs.frozen(kw_only=True)
class StepResult:
    """What became of one optimizer step."""

    applied: bool
    """False: the gradient was not finite; weights and optimizer state are as before."""
    metrics: Metrics
    """Gradient norm before clipping, learning rate, skipped steps."""
    cause: str = ""
    """Why it was skipped: the first bad tensor, and the sample ids of its part."""


class TrainingEngine(Scorer, Protocol):
    """A scorer that learns. Rows are named; the engine fetches their tokens from the row store.

    Promises: no split into micro-batches or ranks changes a gradient. A step applies whole or is
    skipped whole. Rows reach `accumulate` weighted for the whole optimizer step
    (`Objective.weigh`).
    Raises: EngineFailed: with the engine's own first error as its cause.
    Cancellation: safe between micro-batches; accumulated gradients are then void.
    """

    @property
    def capabilities(self) -> TrainingCapabilities: ...

    async def compute(self, rows: Sequences, estimator: Estimator) -> Metrics:
        """Run a token estimator where the rows lie; it writes the columns `advantage` and, for a
        critic, `return`. Statistics of the whole step (whitening) span all rows given."""
        ...

    async def accumulate(self, rows: Sequences, objective: Objective) -> Metrics:
        """Add the rows' gradients. May be called for parts of a step, in any order."""
        ...

    async def step(self) -> StepResult:
        """Apply what was accumulated, and forget it."""
        ...

    async def publish(self) -> int:
        """Announce the present weights as the next policy version, and return its number."""
        ...

    async def send(self, update: Update) -> Digest:
        """Send the present weights, under the names and in the type that engines load, by the
        sender that this engine was built with. Raises Unsupported: it was built without one."""
        ...

    async def offload(self) -> None:
        """Give the device's memory back: weights, gradients and optimizer state wait in host
        memory. Returns when the memory is free. Saving works meanwhile."""
        ...

    async def onload(self) -> None:
        """Bring back what `offload` took away, bit for bit. Nothing where nothing is away."""
        ...

    def view(self, name: str) -> Scorer:
        """Another policy held by this engine: `reference` is the model before training."""
        ...

    async def save(self, folder: Path) -> None:
        """Take weights, optimizer, schedule, random state and version as they are now, and write
        them, at the latest until `saved` returns. Shares no live storage: training may go on."""
        ...

    async def saved(self) -> None:
        """Return when what `save` took is written whole. Raises: why it could not be."""
        ...

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises CheckpointError: a part is missing or misfits."""
        ...

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face model folder (weights, configuration, tokenizer)."""
        ...

    async def close(self) -> None:
        """Free everything. Safe to call twice."""
        ...
