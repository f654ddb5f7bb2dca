"""The asynchronous half: who runs, who waits, and what interrupts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from hexpo.adapters.models.decode import Decoder, WeightsMode
from hexpo.adapters.models.kernels import Kernels
from hexpo.adapters.rollout.embedded.answer import Answer, StopRule
from hexpo.adapters.rollout.embedded.batch import Batch, Drawn
from hexpo.adapters.rollout.embedded.threads import use_threads
from hexpo.application.flow import Valve
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed, IllegalTransition, Unsupported, WrongValue
from hexpo.domain.schedule.flow import Stage
from hexpo.domain.trajectory import StopReason

Result = TypeVar("Result")


class EmbeddedEngine:
    """Continuous batching in this process.

    One task, the pump, exists while there is something to do: it steps all running answers in a
    worker thread. The valve says who runs, in order of priority and arrival, and what a pause is.
    """

    def __init__(
        self,
        decoder: Decoder,
        kernels: Kernels,
        *,
        slots: int,
        max_tokens: int,
        stop_ids: Collection[int],
        decode: Callable[[Sequence[int]], str],
        threads: int = 0,
    ) -> None:
        """Args: threads: processor threads of a step; 0 takes torch's own number."""
        self._decoder, self._max_tokens = decoder, max_tokens
        self._stop_ids, self._decode = frozenset(stop_ids), decode
        self._batch = Batch(decoder, kernels, sessions=slots)
        self._thread = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="rollout",
            initializer=partial(use_threads, threads) if threads else None,
        )
        self._valve: Valve[Answer] = Valve(self._begin, self._cut, slots=slots)
        self._running: list[Answer] = []
        self._pump: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._version = 0
        self._arrivals = 0

    @property
    def capabilities(self) -> RolloutCapabilities:
        return RolloutCapabilities(
            pause_modes=frozenset(PauseMode),
            filtered_logprobs=True,
            stop_texts=True,
            overlap=self._decoder.mode is WeightsMode.PACKED,
        )

    @property
    def version(self) -> int:
        return self._version

    @property
    def busy(self) -> int:
        """Answers that hold a slot."""
        return len(self._running)

    async def generate(self, request: Request) -> Generation:
        answer = self._submit(request)
        try:
            return await answer.done
        finally:
            self._interrupt(answer, StopReason.ABORTED)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        answer = self._submit(request)
        chunks = answer.chunks = asyncio.Queue[Chunk | None]()
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
                if chunk.stop is not None:
                    return
            await answer.done
        finally:
            self._interrupt(answer, StopReason.ABORTED)

    async def pause(self, mode: PauseMode) -> None:
        self._require_alive()
        self._valve.hold(mode)
        self._start()  # a drain lets those that were kept go on
        await self._valve.still()
        self._require_alive()

    async def resume(self) -> None:
        self._require_alive()
        self._valve.resume()
        self._start()

    async def load_weights(self, update: Update) -> Digest | None:
        self._require_alive()
        flow = self._valve.flow
        if flow.working or (flow.running and flow.is_going):
            raise IllegalTransition(f"load_weights({update.version}) while generating: pause first")
        try:
            await self._in_worker(self._batch.refresh, list(self._running))
        except Exception as error:
            self._fail(error)
            raise EngineFailed(
                f"embedded rollout: loading version {update.version} failed"
            ) from error
        self._version = update.version
        for answer in list(self._running):
            if answer.ending is not None:
                self._leave(answer, answer.ending)
        return None

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        for answer in [*self._running, *self._valve.waiting]:
            if requests is None or answer.request.id in requests:
                self._interrupt(answer, StopReason.ABORTED)

    async def sleep(self) -> None:
        raise Unsupported("the embedded rollout shares the trainer's weights and cannot sleep")

    async def wake(self) -> None:
        """Never asleep."""

    async def close(self) -> None:
        await self._valve.stop()
        for answer in [*self._running, *self._valve.waiting]:
            self._leave(answer, StopReason.ABORTED)
        self._thread.shutdown(wait=False)

    def _submit(self, request: Request) -> Answer:
        self._require_alive()
        self._require_servable(request)
        loop = asyncio.get_running_loop()
        rule = StopRule(request, self._stop_ids, self._decode)
        answer = Answer(request, rule, self._arrivals, loop.create_future())
        self._arrivals += 1
        if request.deadline_seconds is not None:
            answer.timer = loop.call_later(
                request.deadline_seconds, self._interrupt, answer, StopReason.TIMEOUT
            )
        self._valve.enter(answer)
        return answer

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise EngineFailed("embedded rollout: the engine died before") from self._failure
        if self._valve.flow.stage is Stage.CLOSED:
            raise EngineFailed("embedded rollout: the engine is closed")

    def _require_servable(self, request: Request) -> None:
        prompt, wanted = request.prompt, request.sampling.max_new_tokens
        name = f"request {request.id!r}"
        if not prompt:
            raise WrongValue(f"{name}: the prompt is empty; send at least one id")
        wrong = next((i for i in prompt if not 0 <= i < self._decoder.vocabulary), None)
        if wrong is not None:
            raise WrongValue(
                f"{name}: id {wrong} lies outside the vocabulary of {self._decoder.vocabulary}"
            )
        if not 0 <= request.given < len(prompt):
            raise WrongValue(
                f"{name}: given is {request.given} of {len(prompt)} ids; those of the answer stand"
                " behind at least one of the prompt"
            )
        if len(prompt) + wanted > self._max_tokens:
            raise WrongValue(
                f"{name}: a prompt of {len(prompt)} ids and {wanted} new ones are more than "
                f"max_tokens = {self._max_tokens}; shorten it or raise max_tokens"
            )

    def _begin(self, answer: Answer) -> None:
        self._running.append(answer)
        self._start()

    def _cut(self) -> None:
        for answer in list(self._running):
            self._interrupt(answer, StopReason.ABORTED)

    def _start(self) -> None:
        """Make sure that the pump runs if it has anything to do."""
        if (self._pump is None or self._pump.done()) and self._has_work():
            self._pump = asyncio.get_running_loop().create_task(self._run())

    def _has_work(self) -> bool:
        return bool(self._running) and self._valve.flow.is_going

    async def _in_worker(
        self, function: Callable[[Sequence[Answer]], Result], answers: Sequence[Answer]
    ) -> Result:
        """Run in the one thread that may touch the decoder: a pause waits for it."""
        with self._valve.working():
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, answers)

    async def _run(self) -> None:
        try:
            while self._has_work():
                running, version = list(self._running), self._version
                drawn = await self._in_worker(self._batch.step, running)
                self._deliver(running, drawn, version)
        except asyncio.CancelledError as error:
            self._fail(error)
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits gets it, with its traceback
            self._fail(error)

    def _deliver(self, running: Sequence[Answer], drawn: Sequence[Drawn], version: int) -> None:
        for answer, one in zip(running, drawn, strict=True):
            if answer.ending is not None:
                self._leave(answer, answer.ending)
                continue
            stop = answer.take(one.token, one.logprob, version)
            if stop is not None:
                self._leave(answer, stop)

    def _interrupt(self, answer: Answer, stop: StopReason) -> None:
        """End an answer that did not end by itself; while a step runs, right after it."""
        if answer.done.done() and not answer.done.cancelled():
            return
        if answer in self._running and self._valve.flow.working:
            answer.ending = answer.ending or stop
        else:
            self._leave(answer, stop)

    def _leave(self, answer: Answer, stop: StopReason) -> None:
        if answer.has_left:
            return
        answer.has_left = True
        if answer in self._running:
            self._running.remove(answer)
            self._batch.free(answer, keep=stop in (StopReason.STOP, StopReason.LENGTH))
        self._valve.leave(answer)
        answer.finish(stop)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for answer in [*self._running, *self._valve.waiting]:
            failure = EngineFailed(f"embedded rollout: {type(error).__name__}: {error}")
            failure.__cause__ = error
            answer.has_left = True
            answer.fail(failure)
        self._running.clear()
        self._valve.close()
