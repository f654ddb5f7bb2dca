"""A replica that is lent for a while stays at its version, and comes back."""

from __future__ import annotations

import asyncio

import attrs
import pytest
from tests.application.faulty import GOOD, ask, fleet, simulated, update

from hexpo.application.membership import Standing
from hexpo.application.ports.rollout import PauseMode
from hexpo.domain.errors import EngineFailed, NotEnough


def test_a_lease_stays_at_its_version_while_the_others_go_on() -> None:
    """Y10: leased replicas take no update and no request of training; then they catch up."""

    async def scenario() -> None:
        engines, replicas = fleet(3, catch_up=True)
        async with replicas.lease(1) as lease:
            (leased,) = [n for n, s in replicas.standings.items() if s is Standing.LEASED]
            for version in (1, 2):
                await update(replicas, version)
            async with asyncio.TaskGroup() as tasks:
                measured = tasks.create_task(lease.generate(ask(0)))
                for number in range(1, 7):
                    tasks.create_task(replicas.generate(ask(number)))
            assert lease.version == 0
            assert {span.version for span in measured.result().spans} == {0}
            assert [request.id for request in engines[leased].asked] == ["r0"]
            assert engines[leased].loads == 0
        await asyncio.sleep(10.0)
        assert replicas.standings[leased] is Standing.SERVING
        assert engines[leased].version == 2
        with pytest.raises(EngineFailed, match="lease"):
            await lease.generate(ask(9))

    simulated(scenario)


@pytest.mark.parametrize("how", ["digest", "lies"])
def test_a_replica_that_catches_up_with_other_weights_is_fenced(how: str) -> None:
    """G2: after a lease it is looked at as it is in an update with the others."""

    async def scenario() -> None:
        engines, replicas = fleet(3, catch_up=True)
        async with replicas.lease(1):
            (leased,) = [n for n, s in replicas.standings.items() if s is Standing.LEASED]
            await update(replicas, 1)
            if how == "digest":
                engines[leased].digest = attrs.evolve(GOOD, checksum="other")
            else:
                engines[leased].lies = True
        await asyncio.sleep(10.0)
        assert list(replicas.fenced) == [leased]
        words = "checksum other" if how == "digest" else "reports version 0 after loading 1"
        assert words in str(replicas.fenced[leased])

    simulated(scenario)


def test_a_lease_that_ends_after_the_end_leaves_nothing_behind() -> None:
    """F7: an update was going on when everything was closed; whoever comes back waits for none."""

    async def scenario() -> None:
        _, replicas = fleet(3, catch_up=True)
        async with replicas.lease(1):
            await replicas.pause(PauseMode.KEEP)
            await replicas.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert Standing.LEASED not in replicas.standings.values()

    simulated(scenario)


def test_whoever_asks_for_a_lease_during_an_update_that_never_ends_learns_of_the_end() -> None:
    """F7: an update broke off and everything was closed; nobody is left to say that it is over."""

    async def scenario() -> None:
        _, replicas = fleet(3)
        await replicas.pause(PauseMode.KEEP)

        async def evaluate() -> None:
            async with replicas.lease(1):
                pass

        waiting = asyncio.create_task(evaluate())
        await asyncio.sleep(1.0)
        await replicas.close()
        for late in (waiting, evaluate()):
            with pytest.raises(EngineFailed, match="closed"):
                async with asyncio.timeout(10.0):
                    await late

    simulated(scenario)


def test_an_update_that_begins_after_the_end_keeps_nobody_waiting() -> None:
    """F7: it is refused, and so is who asks for a lease after it."""

    async def scenario() -> None:
        _, replicas = fleet(3)
        await replicas.close()
        with pytest.raises(EngineFailed, match="closed"):
            await replicas.pause(PauseMode.KEEP)
        with pytest.raises(EngineFailed, match="closed"):
            async with asyncio.timeout(10.0), replicas.lease(1):
                pass

    simulated(scenario)


def test_a_returned_replica_waits_for_the_next_version_where_none_is_kept() -> None:
    """Y10: it serves only under the present version."""

    async def scenario() -> None:
        engines, replicas = fleet(2)
        async with replicas.lease(1):
            (leased,) = [n for n, s in replicas.standings.items() if s is Standing.LEASED]
            await update(replicas, 1)
        await asyncio.sleep(5.0)
        assert replicas.standings[leased] is Standing.RETURNING
        await replicas.generate(ask(0))
        assert not engines[leased].asked
        await update(replicas, 2)
        assert replicas.standings[leased] is Standing.SERVING
        assert engines[leased].version == 2

    simulated(scenario)


def test_no_lease_takes_the_last_serving_replica() -> None:
    """Training goes on."""

    async def scenario() -> None:
        _, replicas = fleet(2)
        with pytest.raises(NotEnough, match="2 of 2"):
            async with replicas.lease(2):
                pass

    simulated(scenario)
