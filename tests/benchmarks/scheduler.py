"""What the driver spends on a trajectory while 100,000 are in flight on 1,000 replicas.

    python tests/benchmarks/scheduler.py
    python tests/benchmarks/scheduler.py --sizes 25000

The loop's own admission, play, retry, grading, order and accounting run against simulated
replicas in virtual time; nothing is trained. A trajectory has two events: it is issued, and it
ends. Time is the driver's processor time, the simulated fleet's own included; what the fleet takes
alone is measured beside it. Memory is what the process grows by while all are in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from measure import calibrated, print_table

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.adapters.simulated.lengths import Lengths, LogNormal
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedReward, SimulatedTokenizer
from hexpo.application.agents import SingleTurn
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.ports.rollout import Request
from hexpo.application.rollouts import Rollouts
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import open_gate, plan
from hexpo.infrastructure.process import collect_rarely

SAMPLES = 16
SAMPLING = Sampling(max_new_tokens=64)


@attrs.frozen
class Seen:
    """One size."""

    flying: int
    event_us: float
    """Processor time of an event of the whole driver."""
    fleet_us: float
    """Of it, what the simulated fleet takes alone."""
    flight_bytes: float
    """Memory of a trajectory in flight."""


def fleet_of(replicas: int) -> SimulatedFleet:
    """Replicas, and answers of 1 to 64 ids."""
    lengths = Lengths(quantile=LogNormal(median=4_000, spread=0.8), longest=28_672)
    settings = FleetSettings(replicas=replicas, speed=RolloutSpeed(slots=128), grain=448)
    return SimulatedFleet(settings, lengths)


def resident() -> int:
    """Bytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def driver(flying: int, replicas: int, versions: int) -> tuple[float, float]:
    """Microseconds of an event, bytes of a trajectory in flight."""
    fleet = fleet_of(replicas)
    agent = SingleTurn(rollout=fleet, tokenizer=SimulatedTokenizer(), sampling=SAMPLING, seed=0)
    player = Player(
        agent,
        SimulatedReward(),
        policy=RetryPolicy(deadline_seconds=1e9),
        give_up_after=3,
    )
    groups = flying // SAMPLES // 2
    gate = open_gate(plan(groups=groups, max_staleness=1))
    rollouts = Rollouts(SimulatedPrompts(1 << 30), player, gate, samples=SAMPLES)
    gc.collect()
    before, began = resident(), time.process_time()
    task = asyncio.create_task(rollouts.run())
    await asyncio.sleep(1e-6)  # every one is issued, none has ended
    grown = resident() - before
    taken = 0
    for version in range(1, versions + 1):
        batch = await rollouts.take(asyncio.Event())
        taken += len(batch or ()) * SAMPLES
        rollouts.published(version)
        rollouts.metrics()
        rollouts.fill()
    issued = rollouts.gate.ledger.issued * SAMPLES
    await asyncio.sleep(1e-6)
    spent = time.process_time() - began
    task.cancel()
    await asyncio.wait([task])
    return spent / (issued + taken) * 1e6, grown / flying


async def fleet_alone(flying: int, replicas: int) -> float:
    """Microseconds of an event of the same requests without a loop around them."""
    fleet = fleet_of(replicas)
    began = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for number in range(flying):
            request = Request(
                id=str(number),
                prompt=(1,),
                sampling=SAMPLING,
                seed=number,
                session=str(number // SAMPLES),
            )
            tasks.create_task(fleet.generate(request))
    return (time.process_time() - began) / (2 * flying) * 1e6


def measured(flying: int, replicas: int) -> Seen:
    """In this process, which looks for garbage as the command line does."""
    collect_rarely()
    event_us, flight_bytes = run(driver(flying, replicas, versions=4))
    return Seen(flying, event_us, run(fleet_alone(flying, replicas)), flight_bytes)


def in_a_child(flying: int, replicas: int) -> Seen:
    """In a process whose memory nothing else has grown."""
    command = [sys.executable, __file__, "--child", str(flying), "--replicas", str(replicas)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Seen(*json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[25_000, 50_000, 100_000])
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--child", type=int, default=0, help="one size, as JSON")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(attrs.astuple(measured(given.child, given.replicas))))
        return
    with calibrated():
        table([in_a_child(size, given.replicas) for size in given.sizes])


def table(seen: Sequence[Seen]) -> None:
    """Print them."""
    header = ("in flight", "event us", "fleet alone us", "driver us", "bytes a trajectory")
    print_table(
        "scheduler",
        header,
        [
            (
                f"{one.flying:,}",
                f"{one.event_us:.1f}",
                f"{one.fleet_us:.1f}",
                f"{one.event_us - one.fleet_us:.1f}",
                f"{one.flight_bytes:,.0f}",
            )
            for one in seen
        ],
    )


if __name__ == "__main__":
    main()
