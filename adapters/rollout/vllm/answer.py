"""One request on its way: what was sampled, under which version, and when it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from hexpo.application.ports.rollout import Chunk, Generation, Request, Span
from hexpo.domain.trajectory import StopReason

MARGIN = 8
"""Tokens decoded before the place where a stop text could begin."""


class Answer:
    """Changed on the event loop only."""

    def __init__(
        self,
        request: Request,
        stop_ids: Collection[int],
        decode: Callable[[Sequence[int]], str] | None,
    ) -> None:
        self.request, self._decode = request, decode
        self.stop_ids = frozenset(stop_ids) | frozenset(request.sampling.stop_ids)
        self.ids: list[int] = []
        """Sampled here."""
        self.stop: StopReason | None = None
        self.ending: StopReason | None = None
        """Why it must end although no token says so."""
        self.reading: asyncio.Task[None] | None = None
        """Reads the engine's answer, or waits until it may."""
        self.inside = False
        """The engine has it."""
        self.chunks: asyncio.Queue[Chunk] | None = None
        """Where a stream reads."""
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        longest = max((len(text.encode()) for text in request.sampling.stop_texts), default=0)
        self._window = longest + MARGIN

    @property
    def whole(self) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return (*self.request.prompt, *self.ids)

    @property
    def own_stops(self) -> bool:
        """The engine's rule for stop ids is ours from here on."""
        return self.request.sampling.min_new_tokens <= len(self.ids) + 1

    def take(self, token: int, logprob: float, version: int) -> None:
        """Append a sampled token; sets `stop` if the answer ends there."""
        self.ids.append(token)
        self._logprobs.append(logprob)
        self._versions.append(version)
        self.stop = self._check()
        if self.chunks is not None:
            self.chunks.put_nowait(Chunk(tokens=(token,), stop=self.stop))

    def end(self, stop: StopReason) -> None:
        """It ends as it is."""
        if self.stop is None:
            self.stop = stop
            if self.chunks is not None:
                self.chunks.put_nowait(Chunk(tokens=(), stop=stop))

    def generation(self) -> Generation:
        """What the caller gets."""
        stop = StopReason.ABORTED if self.stop is None else self.stop
        return Generation(
            tokens=torch.tensor(self.ids, dtype=torch.int64),
            logprobs=torch.tensor(self._logprobs, dtype=torch.float32),
            spans=_spans(self._versions),
            stop=stop,
        )

    def _check(self) -> StopReason | None:
        sampling = self.request.sampling
        if len(self.ids) >= sampling.min_new_tokens and (
            self.ids[-1] in self.stop_ids or self._completes_text()
        ):
            return StopReason.STOP
        return StopReason.LENGTH if len(self.ids) >= sampling.max_new_tokens else None

    def _completes_text(self) -> bool:
        texts = self.request.sampling.stop_texts
        if not texts or self._decode is None:
            return False
        prompt, given = self.request.prompt, self.request.given
        tail = [*prompt[len(prompt) - given :], *self.ids][-self._window :]
        before, now = self._decode(tail[:-1]), self._decode(tail)
        same = next(
            (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
            min(len(before), len(now)),
        )
        return any(now.find(text, max(0, same - len(text) + 1)) >= 0 for text in texts)


def logprob_of(token: int, found: Mapping[int, Any] | None, *, is_greedy: bool) -> float:
    """The log-prob of the sampled id, looked up by id; NaN where the engine gave none (C3).

    A greedy choice is certain: 0, whatever the engine reports of the distribution before it.
    """
    if is_greedy:
        return 0.0
    entry = None if found is None else found.get(token)
    value = math.nan if entry is None or entry.logprob is None else float(entry.logprob)
    return value if value <= 0 else math.nan


def _spans(versions: Sequence[int]) -> tuple[Span, ...]:
    starts = [i for i, v in enumerate(versions) if i == 0 or v != versions[i - 1]]
    ends = [*starts[1:], len(versions)][: len(starts)]
    return tuple(Span(a, b, versions[a]) for a, b in zip(starts, ends, strict=True))
