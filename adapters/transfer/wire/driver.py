"""The driver's part: send, let all replicas load side by side, compare what they read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import attrs

from hexpo.adapters.transfer.wire.endings import is_consequence
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import Metrics, latest, total


class Sender(Protocol):
    """The half of a training engine that is needed here."""

    async def send(self, update: Update) -> Digest: ...


class Rendezvous(Protocol):
    """Where sender and receivers of one kind of transfer meet."""

    @property
    def overlaps(self) -> bool:
        """Receivers read while the sender writes: both must run at once."""
        ...

    def open(self, version: int, readers: Sequence[str]) -> Mapping[str, Any]:
        """The address of a new attempt. May block."""
        ...

    def failed(self) -> None:
        """The last attempt failed: nothing of it may be used again."""
        ...

    def close(self) -> None:
        """Remove whatever is left. Safe to call twice."""
        ...


class SendAndLoad:
    """Implements `WeightTransfer` for every kind that has a sender and receivers."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        *,
        training: Sender,
        replicas: Mapping[str, RolloutEngine],
        readers: Callable[[], Sequence[str]] | None = None,
        bound_seconds: float,
    ) -> None:
        """Args: replicas: who loads, by the name that errors give it; one entry where an engine
            stands for several replicas.
        readers: names of the receivers that will read the next version; None: all `replicas`.
        bound_seconds: longest time that a whole transfer may take (G10).
        """
        self._rendezvous, self._training, self._replicas = rendezvous, training, replicas
        self._readers, self._bound = readers or (lambda: list(replicas)), bound_seconds

    async def transfer(self, version: int) -> Metrics:
        """See the port. Raises EngineFailed: who was late, who failed, or who read something else
        than was sent: all of them are named, the first failure first (O5)."""
        began = time.perf_counter()
        address = await asyncio.to_thread(self._rendezvous.open, version, list(self._readers()))
        try:
            sent, loaded, seconds = await self._move(Update(version=version, address=address))
            self._require_confirmed(version, sent, loaded)
        except BaseException:
            self._rendezvous.failed()
            raise
        return {
            "time/transfer": total(time.perf_counter() - began),
            "time/send": total(seconds),
            "transfer/bytes": latest(float(sent.bytes)),
        }

    async def close(self) -> None:
        """Remove whatever the transfers left. Safe to call twice."""
        await asyncio.to_thread(self._rendezvous.close)

    async def _move(self, update: Update) -> tuple[Digest, dict[str, Digest | None], float]:
        end = time.perf_counter() + self._bound
        began = time.perf_counter()
        seconds = 0.0

        async def send() -> Digest:
            nonlocal seconds
            digest = await self._training.send(update)
            seconds = time.perf_counter() - began
            return digest

        sending = asyncio.create_task(send(), name="the trainer")
        loading: dict[str, asyncio.Task[Digest | None]] = {}
        try:
            if not self._rendezvous.overlaps:
                await _ended([sending], end)
            for name, replica in self._replicas.items():
                loading[name] = asyncio.create_task(replica.load_weights(update), name=name)
            await _ended([sending, *loading.values()], end)
        finally:
            for task in (sending, *loading.values()):
                task.cancel()
        return sending.result(), {name: task.result() for name, task in loading.items()}, seconds

    def _require_confirmed(
        self, version: int, sent: Digest, loaded: Mapping[str, Digest | None]
    ) -> None:
        wrong = []
        for name, read in loaded.items():
            has = self._replicas[name].version
            if has != version:
                wrong.append(f"{name} reports version {has} after loading {version}")
            elif sent.tensors and read != sent:
                wrong.append(f"{name} read {_described(read)}, sent were {_described(sent)}")
        if wrong:
            raise EngineFailed(
                f"version {version} did not arrive: {'; '.join(wrong)}; their weights cannot be"
                " trusted"
            )


class Bounded(Protocol):
    """What every kind's settings have."""

    @property
    def bound_seconds(self) -> float:
        """Longest transfer."""
        ...


Settings = TypeVar("Settings", bound=Bounded)


@attrs.frozen
class Build(Generic[Settings]):
    """Makes the driver's part of one kind of transfer: its adapter's `build`."""

    meet: Callable[[Settings], Rendezvous]

    def __call__(
        self,
        config: Settings,
        *,
        training: Sender,
        replicas: Mapping[str, RolloutEngine],
        readers: Callable[[], Sequence[str]] | None = None,
    ) -> SendAndLoad:
        """A transfer.

        Args: training: sends, by the sender of the adapter's folder.
            replicas: load, by its receivers; keys name them in errors.
            readers: names that the receivers were built with; None: the keys of `replicas`.
        """
        return SendAndLoad(
            self.meet(config),
            training=training,
            replicas=replicas,
            readers=readers,
            bound_seconds=config.bound_seconds,
        )


async def _ended(tasks: Sequence[asyncio.Task[Any]], end: float) -> None:
    """Wait until all succeeded. Raises EngineFailed: names those that failed and those that were
    late; the first failure is its cause."""
    failures: list[tuple[str, BaseException]] = []

    def note(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failures.append((task.get_name(), error))

    for task in tasks:
        task.add_done_callback(note)
    _, late = await asyncio.wait(tasks, timeout=max(0.0, end - time.perf_counter()))
    await asyncio.sleep(0)  # callbacks of those that ended before they were added
    failures.sort(key=lambda failure: is_consequence(failure[1]))  # stable: else by time
    words = [f"{name} failed ({error})" for name, error in failures]
    words += [f"{task.get_name()} did not answer" for task in tasks if task in late]
    words += [f"{t.get_name()} was cancelled" for t in tasks if t.done() and t.cancelled()]
    if words:
        raise EngineFailed(f"weight transfer: {'; '.join(words)}") from (
            failures[0][1] if failures else None
        )


def _described(digest: Digest | None) -> str:
    if digest is None:
        return "nothing"
    return f"{digest.tensors} tensors of {digest.bytes} bytes with checksum {digest.checksum}"
