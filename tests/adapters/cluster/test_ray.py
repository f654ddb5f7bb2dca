"""Ray: what lies where, and nothing outlives its driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.cluster.ray import placing
from hexpo.adapters.cluster.wire import room
from hexpo.application.ports.cluster import ProcessSpec, Resources
from hexpo.domain.errors import Unsupported

ENTRIES = Path(__file__).parents[2] / "data" / "cluster"
DRIVER = """
import asyncio, signal, sys
from pathlib import Path
import ray
from hexpo.adapters.cluster.ray import Config, build
from hexpo.application.ports.cluster import ProcessSpec, Resources

async def main(folder, entries):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: print("told", flush=True))
    cluster = build(Config(cpus=2), folder=Path(folder))
    specs = [
        ProcessSpec(name=str(n), entry="cluster_entries:desk", environment={"PYTHONPATH": entries})
        for n in range(2)
    ]
    first, second = await cluster.start(specs)
    grandchild = await first.call("start_another")
    kinds = ray._private.worker._global_node.all_processes.values()
    own = [one.process.pid for kind in kinds for one in kind]
    print(await first.call("folder"), first.pid, second.pid, grandchild, *own, flush=True)
    await second.call("spin", 600.0)

asyncio.run(main(*sys.argv[1:]))
"""
NEEDS = st.builds(
    Resources,
    cpus=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    accelerators=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
)
SPECS = st.lists(st.tuples(NEEDS, st.sampled_from(["", "", "g1", "g2"])), max_size=8)


def _wanted(name: str, needs: Resources, **more: str) -> ProcessSpec:
    return ProcessSpec(name=name, entry="a:b", needs=needs, **more)


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.mark.slow
def test_no_worker_survives_a_killed_driver(tmp_path: Path) -> None:
    """O3: kill -9 of the driver ends Ray's own processes, a busy worker, an idle one and what they
    started; no folder is left, and nothing in shared memory. F7: Ray does not take a driver's
    SIGTERM away."""
    pytest.importorskip("ray")
    driver = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path), str(ENTRIES)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        folder, *numbers = driver.stdout.readline().split()
        pids = [int(number) for number in numbers]
        assert len(pids) > 4
        assert all(_runs(pid) for pid in pids)
        note = Path(f"/dev/shm/__KMP_REGISTERED_LIB_{pids[0]}_{os.getuid()}")
        note.write_text("")  # as Intel's OpenMP does in a worker of vLLM
        for _ in range(2):
            driver.send_signal(signal.SIGTERM)
            assert driver.stdout.readline() == "told\n"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        until = time.monotonic() + 30
        left = (Path(folder), note)
        while (
            any(map(_runs, pids)) or any(path.exists() for path in left)
        ) and time.monotonic() < until:
            time.sleep(0.05)
    assert not [pid for pid in pids if _runs(pid)]
    assert not [path for path in left if path.exists()]


@given(SPECS)
def test_every_process_is_in_one_group_and_a_group_asks_for_all_of_it(
    wanted: list[tuple[Resources, str]],
) -> None:
    """O1: what is reserved is what is wanted; a `together` lies on one node, the rest is spread."""
    specs = [_wanted(str(n), needs, together=t) for n, (needs, t) in enumerate(wanted)]
    units = room.units(specs)
    groups = placing.groups(units)
    placed = [spec.name for group in groups for unit in group.units for spec in unit.members]
    assert sorted(placed) == sorted(spec.name for spec in specs)
    for group in groups:
        together = {spec.together for unit in group.units for spec in unit.members}
        assert len(together) == 1
        assert (group.strategy == "STRICT_PACK") == (together != {""})
    reserved = [placing.bundle(unit.needs, "GPU") for group in groups for unit in group.units]
    for name, kind in (("CPU", "cpus"), ("GPU", "accelerators")):
        asked = sum(getattr(needs, kind) for needs, _ in wanted)
        assert sum(bundle.get(name, 0) for bundle in reserved) == pytest.approx(asked, abs=0.01)
    assert all(reserved)


def test_a_tensor_parallel_replica_has_to_fit_into_one_node() -> None:
    """O1: its devices are one bundle, and a `together` is one node's."""
    split = Resources(cpus=1, accelerators=4)
    units = room.units(
        [
            _wanted("rollout-0", split),
            _wanted("a", split, together="g"),
            _wanted("b", split, together="g"),
        ]
    )
    found = dict(placing.on_one_node(placing.groups(units)))
    assert found == {"rollout-0": split, "g": Resources(cpus=2, accelerators=8)}


def test_sharers_split_their_bundle_and_of_several_devices_are_refused() -> None:
    """Ray lends no part of several devices."""
    (unit,) = room.units(
        [
            _wanted("rank-0", Resources(cpus=1, accelerators=1), share="turn-0"),
            _wanted("rollout-0", Resources(cpus=1, accelerators=1), share="turn-0"),
        ]
    )
    asked = [placing.options(spec, unit, "GPU") for spec in unit.members]
    assert [each["num_gpus"] for each in asked] == [0.5, 0.5]
    assert [each["num_cpus"] for each in asked] == [0.5, 0.5]
    (wide,) = room.units(
        [
            _wanted("rank-0", Resources(accelerators=1), share="turn-0"),
            _wanted("rollout-0", Resources(accelerators=2), share="turn-0"),
        ]
    )
    with pytest.raises(Unsupported, match=r"turn-0 wants 2 accelerators together"):
        placing.groups([wide])


def test_the_chosen_interface_reaches_both_backends_unless_a_process_says_otherwise() -> None:
    """Between nodes gloo and nccl have to be told which network to use."""
    said = {"NCCL_SOCKET_IFNAME": "ib0"}
    spec = ProcessSpec(name="rank-0", entry="a:b", environment=said)
    (unit,) = room.units([spec])
    assert placing.options(spec, unit, "GPU", interface="eth1")["runtime_env"]["env_vars"] == {
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "ib0",
    }
    assert placing.options(spec, unit, "NPU")["runtime_env"]["env_vars"] == said
