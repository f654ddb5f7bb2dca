"""An AsyncLLM that is none: a tiny model on this loop, with vLLM's interface and manners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class FakeLLM:
    """As much of `AsyncLLM` as the adapter calls; so many requests run at once."""

    def __init__(self, logits: Callable[[Sequence[int]], Tensor], *, slots: int) -> None:
        self._logits, self._slots = logits, slots
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._running, self._arrivals = 0, 0
        self._paused = False
        self.errored = False
        self.broken: Exception | None = None
        self.resets, self.calls = 0, list[tuple[str, tuple[Any, ...]]]()
        self.named = list[Any]()

    async def generate(
        self,
        prompt: Mapping[str, Any],
        params: Any,
        request_id: str,
        *,
        priority: int = 0,
        lora_request: Any = None,
    ) -> AsyncIterator[Any]:
        assert not self._paused, "the adapter's gate lets nothing in during a pause"
        self.named.append(lora_request)
        await self._slot(priority)
        try:
            ids = list(prompt["prompt_token_ids"])
            generator = torch.Generator().manual_seed(params.seed or 0)
            for count in range(1, params.max_tokens + 1):
                await asyncio.sleep(0.001)
                if self.broken is not None:
                    self.errored = True
                    raise self.broken
                token, logprob = _draw(self._logits(ids)[-1], params, generator)
                ids.append(token)
                is_stop = token in params.stop_token_ids
                reason = "stop" if is_stop else "length" if count == params.max_tokens else None
                entry = {token: SimpleNamespace(logprob=logprob, rank=1)}
                yield _output([token], [entry], reason)
                if reason:
                    return
        finally:
            self._leave()

    async def abort(self, request_id: str) -> None:
        """Nothing of a request stays after its generator ended."""

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert self._running == 0
        self._paused = True

    async def resume_generation(self) -> None:
        self._paused = False

    async def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return True

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[Any]:
        self.calls.append((method, args))
        return [(1, 4, "sum")]

    async def sleep(self, *, level: int, mode: str) -> None:
        self.calls.append(("sleep", (level,)))
        self._paused = True

    async def wake_up(self, *, tags: Sequence[str]) -> None:
        self.calls.append(("wake_up", tuple(tags)))
        self._paused = "kv_cache" not in tags  # as vLLM: whole again, it serves

    def shutdown(self, timeout: float | None = None) -> None:
        self.errored = True

    async def _slot(self, priority: int) -> None:
        self._arrivals += 1
        if self._running < self._slots:
            self._running += 1
            return
        mine = (priority, self._arrivals, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            await mine[2]
        except asyncio.CancelledError:
            if mine in self._waiting:
                self._waiting.remove(mine)
            elif not mine[2].cancelled():
                self._leave()  # it was let in at the same moment
            raise

    def _leave(self) -> None:
        self._running -= 1
        self._waiting = [one for one in self._waiting if not one[2].done()]
        if self._waiting:
            first = min(self._waiting, key=lambda one: one[:2])
            self._waiting.remove(first)
            self._running += 1
            first[2].set_result(None)


def _draw(logits_V: Tensor, params: Any, generator: torch.Generator) -> tuple[int, float]:
    """In vLLM's order: temperature, min_p, top_k, top_p."""
    if params.temperature == 0:
        token = int(logits_V.argmax())
        return token, float(logits_V.log_softmax(-1)[token])
    logits_V = logits_V / params.temperature
    p_V = logits_V.softmax(-1)
    logits_V = logits_V.masked_fill(p_V < params.min_p * p_V.max(), -torch.inf)
    if params.top_k:
        logits_V = logits_V.masked_fill(logits_V < logits_V.topk(params.top_k)[0][-1], -torch.inf)
    p_V, order_V = logits_V.softmax(-1).sort(descending=True)
    cut_V = order_V[p_V.cumsum(-1) - p_V >= params.top_p]
    logits_V = logits_V.index_fill(0, cut_V, -torch.inf)
    token = int(torch.multinomial(logits_V.softmax(-1), 1, generator=generator))
    return token, float(logits_V.log_softmax(-1)[token])


def _output(tokens: list[int], logprobs: list[Any], reason: str | None) -> Any:
    one = SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason=reason)
    return SimpleNamespace(outputs=[one], finished=reason is not None, prompt_logprobs=None)


def sampling(**wanted: Any) -> Any:
    """Stands for SamplingParams."""
    return SimpleNamespace(**wanted)
