"""A version that did not arrive is sent again, without whoever broke it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.application.delivery import Delivery
from hexpo.application.ports.rollout import PauseMode
from hexpo.application.ports.transfer import Update
from hexpo.application.replicas import Replicas, ReplicaSettings
from hexpo.domain.errors import EngineFailed, WrongValue
from hexpo.domain.metrics import Metrics, total, values


class Frail(SimulatedRollout):
    """Dies at its first update where it is told so."""

    def __init__(self, *, dies: bool) -> None:
        super().__init__(lambda request: Script())
        self.dies = dies

    async def load_weights(self, update: Update) -> None:
        if self.dies:
            raise EngineFailed("the socket broke")
        await super().load_weights(update)


class Sender:
    """A transfer in which whoever breaks, breaks it for all."""

    def __init__(self, replicas: Replicas, failures: Sequence[Exception] = ()) -> None:
        self.replicas, self.failures = replicas, list(failures)
        self.sent: list[tuple[int, list[str]]] = []

    async def transfer(self, version: int) -> Metrics:
        self.sent.append((version, self.replicas.readers()))
        await asyncio.sleep(1.0)
        before = len(self.replicas.fenced)
        await self.replicas.load_weights(Update(version=version))
        if self.failures:
            raise self.failures.pop(0)
        if len(self.replicas.fenced) > before:
            raise EngineFailed("a reader went away in the middle")
        return {"transfer/bytes": total(8.0)}


Outcome = dict[str, float] | Exception


async def outcome(sender: Sender) -> Outcome:
    """Of version 1: what was moved, or why it was not."""
    await sender.replicas.pause(PauseMode.KEEP)
    try:
        delivery = Delivery(transfer_once=sender, replicas=sender.replicas)
        return values(await delivery.transfer(1))
    except (EngineFailed, WrongValue) as error:
        return error
    finally:
        await sender.replicas.close()


def delivered(dying: int, failures: Sequence[Exception] = ()) -> tuple[Sender, Outcome]:
    """Version 1, to four replicas of which the first ones die of it."""

    async def deliver() -> tuple[Sender, Outcome]:
        engines = {f"rollout-{n}": Frail(dies=n < dying) for n in range(4)}
        sender = Sender(Replicas(engines, ReplicaSettings(least_share=0.25)), failures)
        return sender, await outcome(sender)

    return run(deliver())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def test_a_version_that_arrives_is_sent_once() -> None:
    """G2: nothing is repeated without need."""
    sender, moved = delivered(0)
    assert [version for version, _ in sender.sent] == [1]
    assert moved == {"transfer/bytes": 8.0, "transfer/retries": 0.0}


def test_the_others_get_what_they_missed_once_the_broken_one_is_fenced() -> None:
    """G2: the second try has one reader less, and its bytes are counted alone."""
    sender, moved = delivered(1)
    assert [len(readers) for _, readers in sender.sent] == [4, 3]
    assert list(sender.replicas.fenced) == ["rollout-0"]
    assert sender.replicas.version == 1
    assert moved == {"transfer/bytes": 8.0, "transfer/retries": 1.0}


def test_a_failure_that_fences_nobody_is_tried_once_more_and_then_told_from_the_first() -> None:
    """O5: the first failure is the one shown; the later ones are its notes."""
    failures = [EngineFailed(word) for word in ("first", "second", "third")]
    sender, error = delivered(0, failures)
    assert error is failures[0]
    assert failures[0].__notes__ == ["then: second"]
    assert len(sender.sent) == 2


def test_a_passing_failure_is_over_at_the_second_try() -> None:
    """A sender that hiccups once costs a repetition, not the run."""
    sender, moved = delivered(0, [EngineFailed("a hiccup")])
    assert len(sender.sent) == 2
    assert moved == {"transfer/bytes": 8.0, "transfer/retries": 1.0}
    assert not sender.replicas.fenced


def test_there_are_no_more_tries_than_allowed() -> None:
    """F4: even where each try fences somebody."""

    async def deliver() -> tuple[Sender, Outcome]:
        engines = {f"rollout-{n}": Frail(dies=False) for n in range(6)}
        dying = iter(engines.values())

        class Deadly(Sender):
            async def transfer(self, version: int) -> Metrics:
                next(dying).dies = True
                return await super().transfer(version)

        sender = Deadly(Replicas(engines, ReplicaSettings(least_share=0.1)))
        return sender, await outcome(sender)

    sender, error = run(deliver())
    assert isinstance(error, EngineFailed)
    assert str(error) == "a reader went away in the middle"
    assert len(sender.sent) == 3
    assert len(error.__notes__) == 2


def test_what_is_no_failure_of_an_engine_is_not_tried_again() -> None:
    """A mistake of the program stays one."""
    mistake = WrongValue("no such bucket")
    sender, error = delivered(0, [mistake])
    assert error is mistake
    assert len(sender.sent) == 1


@pytest.mark.parametrize("dying", [0, 1, 2, 3])
def test_whoever_lives_has_the_version(dying: int) -> None:
    """G2: and whoever died is fenced."""
    sender, moved = delivered(dying)
    assert isinstance(moved, dict)
    assert sorted(sender.replicas.fenced) == [f"rollout-{n}" for n in range(dying)]
    assert sender.replicas.version == 1


def test_where_none_lives_the_error_names_them_all() -> None:
    """O5, G2."""
    _, error = delivered(4)
    assert isinstance(error, EngineFailed)
    assert "4 of 4 rollout replicas failed" in str(error)
    assert all(f"rollout-{n} (the socket broke)" in str(error) for n in range(4))
