"""vLLM's asynchronous engine behind the port."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import attrs

from hexpo.adapters.rollout.vllm.answer import Answer, logprob_of
from hexpo.adapters.rollout.vllm.failures import translated
from hexpo.adapters.rollout.vllm.leftovers import end
from hexpo.adapters.rollout.vllm.sampling import parameters, require_servable
from hexpo.adapters.rollout.vllm.scores import Scores, read_scores
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed, IllegalTransition, Unsupported, WrongValue
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason

WEIGHTS, CACHE = "weights", "kv_cache"
"""Parts that sleep, as vLLM calls them."""
KILL_SECONDS = 1.0
"""How long vLLM's own processes may take to end: they have no request any more, and with the five
seconds that it gives them by itself they were killed at their end as well (0.32)."""


@attrs.frozen(kw_only=True, eq=False)
class Served:
    """What is known of the served model."""

    vocabulary: int
    max_tokens: int
    stop_ids: frozenset[int]
    decode: Callable[[Sequence[int]], str] | None
    top_k: int
    """Most ids a position that `score` may be asked for."""
    receives: bool
    """Its workers have a receiver."""
    adapter: Any = None
    """What requests name once adapters came; None: weights come whole."""


class VllmEngine:
    """Implements `RolloutEngine` over `AsyncLLM`.

    An answer that waits over an update leaves the engine with what it has, and goes on behind it
    under the new weights: its cache is computed anew (G7). A pause closes a gate in here, so
    between `pause` and `resume` vLLM has no request.
    """

    def __init__(
        self,
        llm: Any,
        served: Served,
        *,
        capabilities: RolloutCapabilities,
        sampling: Callable[..., Any],
    ) -> None:
        """Args: llm: an AsyncLLM. sampling: vLLM's SamplingParams, deltas as output."""
        self._llm, self._served, self._sampling = llm, served, sampling
        self._capabilities = capabilities
        self._answers: set[Answer] = set()
        self._others: set[asyncio.Task[Any]] = set()
        """Scores that are made, and answers that leave because their caller went."""
        self._open = asyncio.Event()
        self._open.set()
        self._names = itertools.count()
        self._version = 0
        self._closed = False
        self._invalid = ""
        """Why the weights are not to be used."""
        self._asleep: set[str] = set()
        """Parts that gave their memory back."""
        self._named: dict[str, Any] = {}
        """What every request names beside itself: the adapter, once it came."""

    @property
    def capabilities(self) -> RolloutCapabilities:
        return self._capabilities

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: Request) -> Generation:
        answer = self._enter(request)
        await self._finish(answer)
        return answer.generation()

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        answer = self._enter(request)
        chunks = answer.chunks = asyncio.Queue[Chunk]()
        running = asyncio.create_task(self._finish(answer))
        try:
            while True:
                reading = asyncio.create_task(chunks.get())
                await asyncio.wait({reading, running}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    running.result()  # raises what ended it
                    return
                yield reading.result()
                if reading.result().stop is not None:
                    return
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def score(self, prompt_ids: Sequence[int], *, top_k: int = 0) -> Scores:
        """Log-probs of ids that are given, at temperature 1, and of the likeliest ones.

        Raises: WrongValue: no ids, one outside the vocabulary, too many, or `top_k` above the
            engine's. EngineFailed.
        """
        self._require_alive()
        if not 0 <= top_k <= self._served.top_k:
            raise WrongValue(
                f"score: top_k = {top_k}; this engine gives at most {self._served.top_k}"
                " (rollout.options.top_k)"
            )
        request = Request(
            id="score", prompt=tuple(prompt_ids), sampling=Sampling(max_new_tokens=1), seed=0
        )
        self._require_servable(request)
        await self._open.wait()
        scoring = asyncio.create_task(self._score(request.prompt, top_k))
        self._count(scoring)
        return await scoring

    async def pause(self, mode: PauseMode) -> None:
        self._require_alive()
        self._open.clear()
        for answer in list(self._answers):
            if mode is PauseMode.ABORT and (answer.inside or answer.ids):
                self._cut(answer, StopReason.ABORTED)
            elif mode is PauseMode.KEEP and answer.inside and answer.reading is not None:
                answer.reading.cancel()
        await self._idle()
        with translated("pausing"):
            await self._llm.pause_generation(mode="abort", clear_cache=False)

    async def resume(self) -> None:
        """The cache takes its memory only now, after whatever the new weights needed.

        Raises EngineFailed: the weights are not whole (G8).
        """
        self._require_alive()
        if self._invalid:
            raise EngineFailed(f"vllm cannot resume: {self._invalid}; load weights first")
        await self._wake(CACHE)
        with translated("resuming"):
            await self._llm.resume_generation()
        self._open.set()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        for answer in list(self._answers):
            if requests is None or answer.request.id in requests:
                self._cut(answer, StopReason.ABORTED)

    async def load_weights(self, update: Update) -> Digest | None:
        """Raises IllegalTransition: not paused. EngineFailed: the weights did not come whole; the
        engine cannot resume before they do."""
        self._require_alive()
        if self._open.is_set() or self._is_busy:
            raise IllegalTransition(f"load_weights({update.version}) while generating: pause first")
        if WEIGHTS in self._asleep:
            raise IllegalTransition(f"load_weights({update.version}) while asleep: wake first")
        digest = None
        if self._served.receives:
            self._invalid = f"version {update.version} did not arrive whole"
            digest = await self._receive(update)
            if self._served.adapter is not None:
                self._named = {"lora_request": self._served.adapter}
        with translated(f"dropping the cache before version {update.version}"):
            if not await self._llm.reset_prefix_cache():
                raise EngineFailed("vllm still holds cache blocks although nothing runs")
        self._version, self._invalid = update.version, ""
        return digest

    async def sleep(self) -> None:
        self._require_alive()
        if not self._capabilities.sleep:
            raise Unsupported(
                "this vllm engine cannot sleep; set rollout.options.sleep on an accelerator"
            )
        if self._open.is_set() or self._is_busy:
            raise IllegalTransition("sleep while generating: pause first")
        if WEIGHTS in self._asleep:
            return
        await self._wake(CACHE)  # vLLM sleeps as a whole
        self._invalid = "its weights are gone since it slept"
        with translated("sleeping"):
            await self._llm.sleep(level=2, mode="abort")
        self._asleep = {WEIGHTS, CACHE}

    async def wake(self) -> None:
        """Memory for weights alone: that for the cache is taken when the engine resumes."""
        self._require_alive()
        await self._wake(WEIGHTS)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.interrupt()
        await self._idle()
        self._open.set()
        llm, self._llm = self._llm, None
        await asyncio.to_thread(end, llm, KILL_SECONDS)

    async def _wake(self, part: str) -> None:
        """Takes a part's memory again, if it gave it back; what is whole then serves at once, so
        it is paused again."""
        if part not in self._asleep:
            return
        with translated(f"waking its {part}"):
            await self._llm.wake_up(tags=[part])
            self._asleep.discard(part)
            await self._llm.pause_generation(mode="abort", clear_cache=True)

    @property
    def _is_busy(self) -> bool:
        return bool(self._others) or any(answer.inside for answer in self._answers)

    def _enter(self, request: Request) -> Answer:
        self._require_alive()
        self._require_servable(request)
        answer = Answer(request, self._served.stop_ids, self._served.decode)
        self._answers.add(answer)
        return answer

    def _require_servable(self, request: Request) -> None:
        require_servable(
            request,
            vocabulary=self._served.vocabulary,
            max_tokens=self._served.max_tokens,
            stop_texts=self._served.decode is not None,
        )

    def _require_alive(self) -> None:
        if self._closed:
            raise EngineFailed("vllm: the engine is closed")
        if self._llm.errored:
            raise EngineFailed("vllm: the engine died before; its process's log says why")

    async def _finish(self, answer: Answer) -> None:
        """Read until the answer ends; over a pause it goes on behind what it has."""
        timer, seconds = None, answer.request.deadline_seconds
        if seconds is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._cut, answer, StopReason.TIMEOUT)
        try:
            while answer.stop is None:
                answer.reading = asyncio.create_task(self._read(answer))
                await asyncio.wait([answer.reading])
                if not answer.reading.cancelled():
                    answer.reading.result()
                if answer.ending is not None:
                    answer.end(answer.ending)
        finally:
            self._answers.discard(answer)
            if timer is not None:
                timer.cancel()
            if answer.reading is not None and not answer.reading.done():
                answer.reading.cancel()
                self._count(answer.reading)

    async def _read(self, answer: Answer) -> None:
        """One stay of an answer in the engine, under one version."""
        await self._open.wait()
        request, version = answer.request, self._version
        is_greedy = request.sampling.temperature == 0
        name = f"{request.id}/{next(self._names)}"
        wanted = parameters(
            request, done=len(answer.ids), stop_ids=answer.stop_ids, own_stops=answer.own_stops
        )
        answer.inside = True
        try:
            with translated(f"request {request.id!r}"):
                async for output in self._llm.generate(
                    {"prompt_token_ids": list(answer.whole)},
                    self._sampling(**wanted),
                    name,
                    priority=request.priority,
                    **self._named,
                ):
                    one = output.outputs[0]
                    logprobs = one.logprobs or [None] * len(one.token_ids)
                    for token, found in zip(one.token_ids, logprobs, strict=True):
                        if answer.stop is None:
                            value = logprob_of(token, found, is_greedy=is_greedy)
                            answer.take(token, value, version)
                    if answer.stop is not None:
                        break
                    if output.finished and one.finish_reason not in ("abort", "length", "stop"):
                        raise EngineFailed(f"it ended as {one.finish_reason!r}")
        finally:
            answer.inside = False
            if not self._llm.errored:
                await self._llm.abort(name)  # where it left early; else nobody has this name

    async def _score(self, ids: Sequence[int], top_k: int) -> Scores:
        params = self._sampling(
            max_tokens=1, temperature=0.0, prompt_logprobs=top_k, detokenize=False
        )
        found: list[Any] = []
        with translated("scoring"):
            name = f"score/{next(self._names)}"
            prompt = {"prompt_token_ids": list(ids)}
            stream = self._llm.generate(prompt, params, name, **self._named)
            async for output in stream:
                found.extend(output.prompt_logprobs or ())
            return read_scores(ids, found, top_k=top_k)

    async def _receive(self, update: Update) -> Digest:
        with translated(f"receiving version {update.version}"):
            found = await self._llm.collective_rpc("hexpo_load", args=(pickle.dumps(update),))
        digests = {Digest(tensors=n, bytes=size, checksum=sum_) for n, size, sum_ in found}
        if len(digests) != 1:
            raise EngineFailed(f"vllm's ranks read different weights of version {update.version}")
        return digests.pop()

    def _count(self, task: asyncio.Task[Any]) -> None:
        """A pause waits for it."""
        self._others.add(task)
        task.add_done_callback(self._discount)

    def _discount(self, task: asyncio.Task[Any]) -> None:
        self._others.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits has it; an answer that leaves has nobody

    async def _idle(self) -> None:
        """Wait until vLLM has no request of ours."""
        while busy := {
            *self._others,
            *(a.reading for a in self._answers if a.inside and a.reading is not None),
        }:
            await asyncio.wait(busy)
            await asyncio.sleep(0)  # whoever waits for one goes first

    def _cut(self, answer: Answer, why: StopReason) -> None:
        """End an answer that did not end by itself."""
        answer.ending = answer.ending or why
        if answer.reading is not None:
            answer.reading.cancel()
