"""Port: an engine that generates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from enum import Enum
from typing import Protocol

import attrs
from torch import Tensor

from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason


class PauseMode(Enum):
    """What becomes of running requests when the engine pauses."""

    KEEP = "keep"
    """They wait inside; their cache is recomputed under the next weights."""
    ABORT = "abort"
    """They return at once with their partial answer and `StopReason.ABORTED`."""
    DRAIN = "drain"
    """They end first."""


@attrs.frozen(kw_only=True)
class RolloutCapabilities:
    """What a rollout adapter can do; `plan` refuses what it cannot."""

    pause_modes: frozenset[PauseMode] = frozenset()
    filtered_logprobs: bool = False
    """Log-probs are those of the filtered and renormalised distribution."""
    stop_texts: bool = False
    overlap: bool = False
    """May generate while the trainer changes its weights (it does not read them live)."""
    sleep: bool = False
    """Can give its device memory back between generations."""
    adapters: bool = False
    """Takes low-rank adapters by themselves and adds them to the base that it holds; else they come
    merged."""
    replicas: int = 1
    """Copies that answer side by side; one of several may be leased."""


@attrs.frozen(kw_only=True)
class Request:
    """One answer wanted."""

    id: str
    """Names the request in logs and in `interrupt`; unique among the running ones."""
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    """The answer's own randomness: independent of what else is in the batch."""
    given: int = 0
    """How many ids at the prompt's end are this answer's own earlier tokens: an answer that an
    update cut goes on behind them, with the remaining budget and the same randomness."""
    session: str = ""
    """Requests that share a prefix name the same session, so that it is computed once."""
    priority: int = 0
    """Lower is served first; equal ones in order of arrival."""
    deadline_seconds: float | None = None
    """After so long the answer ends as it is, with `StopReason.TIMEOUT`."""


@attrs.frozen
class Span:
    """Consecutive answer tokens that one policy version sampled."""

    start: int
    end: int
    version: int


@attrs.frozen(kw_only=True, eq=False)
class Generation:
    """One answer."""

    tokens: Tensor
    """(A,) int64 sampled ids, the stop id included."""
    logprobs: Tensor
    """(A,) float32 of each sampled id, under the distribution it was drawn from (temperature and
    filters in); NaN where the engine gave none."""
    spans: tuple[Span, ...]
    """Which version sampled which tokens; together they cover all A."""
    stop: StopReason


@attrs.frozen(kw_only=True, eq=False)
class Chunk:
    """Some more tokens of a streamed answer."""

    tokens: tuple[int, ...]
    stop: StopReason | None = None
    """Set on the last chunk."""


class RolloutEngine(Protocol):
    """Generates answers under its present policy version.

    Promises: ids exactly as sampled; one log-prob, one version a token. The same request gives
    the same answer whatever else runs, up to the engine's declared numerical noise.
    Raises: WrongValue: a request that can't be served (too long, an id outside the vocabulary),
    by name. EngineFailed: the engine died; every waiting call gets it.
    Cancellation: cancelling `generate` frees the request's slot; nothing of it stays.
    """

    @property
    def capabilities(self) -> RolloutCapabilities: ...

    @property
    def version(self) -> int:
        """The policy version whose weights are loaded."""
        ...

    async def generate(self, request: Request) -> Generation:
        """The whole answer."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """The answer as it grows (chat)."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating; new requests wait. Returns when nothing runs."""
        ...

    async def resume(self) -> None:
        """Go on."""
        ...

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """End running requests, all or those named, with their partial answers and
        `StopReason.ABORTED`. The engine itself goes on, and a pause that drains ends at once."""
        ...

    async def load_weights(self, update: Update) -> Digest | None:
        """Take over the weights of `update.version` from where the transfer put them. Drops every
        cache made under older ones. Call while paused.

        Returns: what was read, to compare with what was sent; None where nothing was copied.
        """
        ...

    async def sleep(self) -> None:
        """Give the device's memory back: weights and caches. Call while paused; returns when the
        memory is free. Raises Unsupported: the engine cannot."""
        ...

    async def wake(self) -> None:
        """Take memory again. The weights are gone: nothing generates before `load_weights`."""
        ...

    async def close(self) -> None:
        """Free everything; running requests end aborted. Safe to call twice."""
        ...
