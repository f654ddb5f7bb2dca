"""One request on its way: what was sampled, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import torch

from hexpo.adapters.models.decode import Lane
from hexpo.application.ports.rollout import Chunk, Generation, Request, Span
from hexpo.domain.trajectory import StopReason

MARGIN = 8
"""Tokens decoded before the place where a stop text could begin."""


class StopRule:
    """Says after each token whether the answer ends there."""

    def __init__(
        self, request: Request, stop_ids: Collection[int], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._sampling = request.sampling
        self._ids = frozenset(stop_ids) | frozenset(request.sampling.stop_ids)
        self._decode = decode
        longest = max((len(text.encode()) for text in request.sampling.stop_texts), default=0)
        self._window = longest + MARGIN

    def check(self, answer: Sequence[int], *, earlier: int = 0) -> StopReason | None:
        """Why the answer ends with its last id, or None.

        Args: earlier: so many of its ids were sampled before this request: they may begin a stop
            text, and are outside its budget.
        """
        new = len(answer) - earlier
        if new >= self._sampling.min_new_tokens and (
            answer[-1] in self._ids or self._completes_text(answer)
        ):
            return StopReason.STOP
        return StopReason.LENGTH if new >= self._sampling.max_new_tokens else None

    def _completes_text(self, answer: Sequence[int]) -> bool:
        if not self._sampling.stop_texts:
            return False
        tail = answer[-self._window :]
        before, now = self._decode(tail[:-1]), self._decode(tail)
        same = 0
        for a, b in zip(before, now, strict=False):
            if a != b:
                break
            same += 1
        return any(
            now.find(text, max(0, same - len(text) + 1)) >= 0 for text in self._sampling.stop_texts
        )


class Answer:
    """A request and what was sampled for it. Changed on the event loop only, except `lane`, which
    belongs to the stepping thread while a step runs."""

    def __init__(
        self, request: Request, rule: StopRule, order: int, done: asyncio.Future[Generation]
    ) -> None:
        self.request, self.order, self.done = request, order, done
        self.lane: Lane | None = None
        self.ids: list[int] = list(request.prompt)
        self.chunks: asyncio.Queue[Chunk | None] | None = None
        """Where a stream reads; None ends it after an error."""
        self.ending: StopReason | None = None
        """Set when it must end although no token says so."""
        self.has_left = False
        """Neither waits nor runs any more."""
        self.timer: asyncio.TimerHandle | None = None
        self._rule = rule
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._start = len(request.prompt) - request.given
        # One after the other from the seed: the i-th belongs to the i-th token of the whole
        # answer, in how many requests it may come.
        generator = torch.Generator().manual_seed(request.seed)
        count = request.given + request.sampling.max_new_tokens
        self._uniforms: list[float] = torch.rand(
            count, dtype=torch.float64, generator=generator
        ).tolist()

    def __lt__(self, other: Answer) -> bool:
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[int, int]:
        return self.request.priority, self.order

    @property
    def uniform(self) -> float:
        """The random number of the next token: the answer's own."""
        return self._uniforms[len(self.ids) - self._start]

    def take(self, token: int, logprob: float, version: int) -> StopReason | None:
        """Append a sampled token; why the answer ends there, or None."""
        self.ids.append(token)
        self._logprobs.append(logprob)
        self._versions.append(version)
        stop = self._rule.check(self.ids[self._start :], earlier=self.request.given)
        if self.chunks is not None and stop is None:
            self.chunks.put_nowait(Chunk(tokens=(token,)))
        return stop

    def finish(self, stop: StopReason) -> None:
        """Hand the answer to whoever waits."""
        if self.timer is not None:
            self.timer.cancel()
        if self.done.done():
            return
        answer = self.ids[len(self.request.prompt) :]
        self.done.set_result(
            Generation(
                tokens=torch.tensor(answer, dtype=torch.int64),
                logprobs=torch.tensor(self._logprobs, dtype=torch.float32),
                spans=_spans(self._versions),
                stop=stop,
            )
        )
        if self.chunks is not None:
            last = tuple(answer[-1:]) if stop in (StopReason.STOP, StopReason.LENGTH) else ()
            self.chunks.put_nowait(Chunk(tokens=last, stop=stop))

    def fail(self, error: Exception) -> None:
        """Raise in whoever waits."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.done.done():
            self.done.set_exception(error)
        if self.chunks is not None:
            self.chunks.put_nowait(None)


def _spans(versions: Sequence[int]) -> tuple[Span, ...]:
    starts = [i for i, v in enumerate(versions) if i == 0 or v != versions[i - 1]]
    ends = [*starts[1:], len(versions)][: len(starts)]
    return tuple(Span(a, b, versions[a]) for a, b in zip(starts, ends, strict=True))
