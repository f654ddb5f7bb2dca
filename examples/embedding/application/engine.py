"""The application's own rollout engine.

It stands for a client of a model server that the application runs anyway. Here it draws letters
evenly, so that the example needs no server: its log-probs are exact, and the trainer corrects for
them, because a ratio starts from the policy that sampled (`algorithm.proximal: behaviour`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection

import torch
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    Span,
)
from hexpo.application.ports.transfer import Update
from hexpo.domain.trajectory import StopReason


class EvenEngine:
    """Every id of the vocabulary is equally likely; the stop id ends an answer."""

    def __init__(self, *, vocabulary: int, stop_id: int) -> None:
        self._vocabulary, self._stop_id = vocabulary, stop_id
        self.requests, self.version = 0, 0
        self.capabilities = RolloutCapabilities(
            pause_modes=frozenset(PauseMode), stop_texts=False, overlap=True
        )

    async def generate(self, request: Request) -> Generation:
        """The whole answer; the same request gives the same one."""
        self.requests += 1
        await asyncio.sleep(0)
        random = torch.Generator().manual_seed(request.seed)
        length = request.sampling.max_new_tokens
        tokens = torch.randint(self._vocabulary, (length,), generator=random)
        ends = (tokens == self._stop_id).nonzero()
        if len(ends):
            tokens = tokens[: int(ends[0]) + 1]
        return Generation(
            tokens=tokens,
            logprobs=torch.full((len(tokens),), -math.log(self._vocabulary)),
            spans=(Span(0, len(tokens), self.version),),
            stop=StopReason.STOP if len(ends) else StopReason.LENGTH,
        )

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """All of it as one piece."""
        answer = await self.generate(request)
        yield Chunk(tokens=tuple(answer.tokens.tolist()), stop=answer.stop)

    async def pause(self, mode: PauseMode) -> None:
        """Nothing is kept running."""

    async def resume(self) -> None:
        """Nothing was stopped."""

    async def load_weights(self, update: Update) -> None:
        """A real client would tell its server; letters stay letters."""
        self.version = update.version

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """Answers are there at once: none can be interrupted."""

    async def sleep(self) -> None:
        """Holds no memory."""

    async def wake(self) -> None:
        """Never asleep."""

    async def close(self) -> None:
        """Holds nothing."""
