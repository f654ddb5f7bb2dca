"""Taking turns on one device, in virtual time, with memory that is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.memory import Device, Footprint, Held, RolloutWithMemory
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.application.ports.rollout import PauseMode
from hexpo.application.ports.transfer import Update
from hexpo.application.residency import Mover, Residency
from hexpo.domain.errors import EngineFailed, IllegalTransition, WrongValue
from hexpo.domain.schedule.residency import Part, Phase, Resident

RESIDENTS = (
    Resident(name="rollout", part=Part.ROLLOUT, group="all"),
    Resident(name="policy", part=Part.POLICY, group="all"),
)


class Bench:
    """A device of 100 bytes: the rollout takes 20 + 70, the policy 60."""

    def __init__(self) -> None:
        self.device = Device(100, bytes_per_second=10.0)
        engine = SimulatedRollout(lambda request: Script())
        self.rollout = RolloutWithMemory(engine, self.device, Footprint(weights=20, working=70))
        self.policy = Held(self.device, Footprint(weights=20, working=40))
        self.residency = Residency(
            RESIDENTS,
            {
                "rollout": Mover.of_rollout(self.rollout),
                "policy": Mover(out=self.policy.offload, into=self.policy.onload),
            },
        )


def simulated(scenario: Callable[[Bench], Awaitable[None]]) -> Bench:
    async def main() -> Bench:
        bench = Bench()
        await bench.rollout.start()
        await scenario(bench)
        return bench

    return run(main())


def test_memory_is_free_before_the_other_side_starts() -> None:
    """I3: both together would not fit; no allocation ever fails."""

    async def scenario(bench: Bench) -> None:
        for version in (1, 2, 3):
            await bench.rollout.pause(PauseMode.ABORT)
            async with bench.residency.phase(Phase.TRAIN) as turn:
                assert bench.device.taken == {"rollout": 0, "policy": 60}
                await asyncio.sleep(5.0)
                await turn.become(Phase.TRANSFER)
                assert bench.device.taken == {"rollout": 20, "policy": 60}
                await bench.rollout.load_weights(Update(version=version))
            assert bench.device.taken == {"rollout": 20, "policy": 0}
            await bench.rollout.resume()
            assert bench.device.taken == {"rollout": 90, "policy": 0}

    assert simulated(scenario).device.peak == 90


def test_an_allocation_over_capacity_is_an_error() -> None:
    """The test above can fail: in the other order it does."""

    async def scenario(bench: Bench) -> None:
        with pytest.raises(EngineFailed, match="out of memory: policy wants 60 bytes, 10 of 100"):
            await bench.policy.onload()

    simulated(scenario)


def test_a_rollout_without_weights_does_not_generate() -> None:
    """I3: waking brings memory, not weights."""

    async def scenario(bench: Bench) -> None:
        await bench.rollout.pause(PauseMode.ABORT)
        async with bench.residency.phase(Phase.TRAIN):
            pass
        with pytest.raises(IllegalTransition, match="no weights"):
            await bench.rollout.resume()

    simulated(scenario)


def test_a_nested_block_restores_only_what_it_moved() -> None:
    """I4: and the outer block's devices are as they were."""

    async def scenario(bench: Bench) -> None:
        async with bench.residency.phase(Phase.TRAIN):
            changes = len(bench.device.history)
            async with bench.residency.phase(Phase.SCORE):
                assert bench.residency.here == {"policy"}
            assert len(bench.device.history) == changes
            assert bench.residency.present_phase is Phase.TRAIN
        assert bench.residency.here == {"rollout"}

    simulated(scenario)


def test_the_blocks_own_failure_is_shown_and_the_devices_are_given_back() -> None:
    """O5, I4."""

    async def scenario(bench: Bench) -> None:
        with pytest.raises(ZeroDivisionError):
            async with bench.residency.phase(Phase.TRAIN):
                raise ZeroDivisionError
        assert bench.residency.here == {"rollout"}
        assert bench.device.taken == {"rollout": 20, "policy": 0}

    simulated(scenario)


def test_separate_models_never_move_and_need_no_mover() -> None:
    """A placement on devices of one's own makes every phase a block that does nothing."""
    apart = [
        Resident(name="rollout", part=Part.ROLLOUT, group="a"),
        Resident(name="policy", part=Part.POLICY, group="b"),
    ]
    assert not Residency(apart).takes_turns
    assert not Residency().takes_turns
    with pytest.raises(WrongValue, match="policy, rollout must give way"):
        Residency(RESIDENTS)
