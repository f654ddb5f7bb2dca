"""A few grader processes, shared by any number of event loops in any threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from hexpo.adapters.rewards.wire.process import GraderFile, GraderProcess
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.trajectory import Cause, Failed, Outcome

_LOG = logging.getLogger(__name__)

STARTS = 3
"""A process that dies while idle is no fault of the sample; so many may do so in a row."""

Sample = Mapping[str, Any]


class _Call:
    """One `grade`: its outcomes so far, and the future that waits for the last."""

    def __init__(self, samples: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[Outcome]] = self._loop.create_future()
        self._outcomes: dict[int, Outcome] = {}
        self._samples = samples
        self._lock = threading.Lock()

    def settle(self, index: int, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes[index] = outcome
            complete = len(self._outcomes) == self._samples
        if complete:
            outcomes = [self._outcomes[i] for i in range(self._samples)]
            self._in_loop(lambda: self.future.set_result(outcomes))

    def fail(self, error: RewardUnavailable) -> None:
        self._in_loop(lambda: self.future.set_exception(error))

    def _in_loop(self, finish: Any) -> None:
        def unless_done() -> None:
            if not self.future.done():
                finish()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(unless_done)


_Task = tuple[_Call, int, Sample]


class GraderPool:
    """Grades samples in `workers` processes, each driven by one thread.

    Processes start with the first call (or `start`). A sample that hangs costs its process, and
    the next one is loading before the outcome is out, so its slot comes back.
    """

    def __init__(self, grader: GraderFile, *, workers: int) -> None:
        self._grader = grader
        self._workers = workers
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._slots: list[_Slot] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._closed = False

    def start(self) -> None:
        """Start the processes now, so that the first call does not wait for their loading.

        Raises: RewardUnavailable: the pool was closed.
        """
        with self._lock:
            self._open()

    async def grade(self, samples: Sequence[Sample]) -> Sequence[Outcome]:
        """One outcome a sample, in order.

        Cancelling lets a sample that is being graded run to its bound, and drops the others.

        Raises: RewardUnavailable: the grader can't be loaded, or the pool was closed.
        """
        if not samples:
            return ()
        call = _Call(len(samples))
        with self._lock:  # so that `close` finds either no task of this call or all
            self._open()
            for index, sample in enumerate(samples):
                self._tasks.put((call, index, sample))
        return tuple(await call.future)

    def _open(self) -> None:
        if self._closed:
            raise RewardUnavailable(f"{self._grader.name} was closed")
        if os.getpid() != self._owner:  # a fork copied the pool, not its threads
            self._owner, self._slots, self._tasks = os.getpid(), [], SimpleQueue()
        if not self._slots:
            self._slots = [_Slot(self._grader, self._tasks) for _ in range(self._workers)]

    def close(self) -> None:
        """End all processes and threads; whoever still waits gets RewardUnavailable."""
        with self._lock:
            self._closed = True
            slots = self._slots if os.getpid() == self._owner else []
            self._slots = []
        for slot in slots:
            slot.stop()
        for _ in slots:
            self._tasks.put(None)
        for slot in slots:
            slot.join()
        while not self._tasks.empty():
            task = self._tasks.get()
            if task is not None:
                task[0].fail(RewardUnavailable(f"{self._grader.name} was closed"))


class _Slot:
    """One process at a time, and the thread that waits for it."""

    def __init__(self, grader: GraderFile, tasks: SimpleQueue[_Task | None]) -> None:
        self._grader = grader
        self._tasks = tasks
        self._process: GraderProcess | None = None
        self._stopped = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._serve, name=f"grader of {grader.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """From another thread: no further process is started, and the running one dies."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.interrupt()

    def join(self) -> None:
        """Wait for the thread, which ends at the first None among its tasks."""
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(RewardUnavailable):  # the first task will say it
            self._running()
        while (task := self._tasks.get()) is not None:
            self._work(*task)
        if self._process is not None:
            self._process.kill()

    def _work(self, call: _Call, index: int, sample: Sample) -> None:
        if call.future.done():  # cancelled, or failed as a whole
            return
        try:
            call.settle(index, self._grade(sample))
        except RewardUnavailable as error:
            call.fail(error)
        except Exception as error:  # noqa: BLE001 - this thread must not die: its caller would wait for ever
            _LOG.exception("%s: the pool failed", self._grader.name)
            call.fail(RewardUnavailable(f"{self._grader.name}: the pool failed: {error!r}"))

    def _grade(self, sample: Sample) -> Outcome:
        try:
            payload = pickle.dumps(sample)
        except Exception as error:  # noqa: BLE001 - a row that can't travel fails alone, as a value
            message = f"can't be sent to the grader's process: {type(error).__name__}: {error}"
            return Failed(cause=Cause.UNSUPPORTED, message=message)
        for _ in range(STARTS):
            process = self._running()
            process.wait_ready()
            outcome = process.ask(payload)
            if outcome is not None:
                self._running()  # if this sample cost the process, the next one is loading now
                return outcome
        raise RewardUnavailable(f"{self._grader.name}: its processes die before they get a sample")

    def _running(self) -> GraderProcess:
        with self._lock:
            if self._stopped:
                raise RewardUnavailable(f"{self._grader.name} was closed")
            if self._process is None or not self._process.alive:
                self._process = GraderProcess(self._grader)
            return self._process
