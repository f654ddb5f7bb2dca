"""Wanted against visible, as numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.cluster.local import Config, build
from hexpo.adapters.cluster.local.devices import Devices
from hexpo.adapters.cluster.wire import room
from hexpo.application.ports.cluster import ProcessSpec, Resources
from hexpo.domain.errors import NotEnough, WrongValue

NEEDS = st.builds(
    Resources,
    cpus=st.integers(0, 8).map(float),
    accelerators=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]),
)


def _wanted(name: str, needs: Resources, **more: str) -> ProcessSpec:
    return ProcessSpec(name=name, entry="a:b", needs=needs, **more)


@given(st.lists(st.tuples(NEEDS, st.sampled_from(["", "x", "y"])), max_size=8))
def test_sharing_never_needs_more_than_not_sharing(wanted: list[tuple[Resources, str]]) -> None:
    """O1: a share needs what its largest needs, so at least that and at most the sum."""
    specs = [_wanted(str(n), needs, share=share) for n, (needs, share) in enumerate(wanted)]
    units = room.units(specs)
    assert sorted(m.name for unit in units for m in unit.members) == sorted(s.name for s in specs)
    together = room.total(unit.needs for unit in units)
    assert together.cpus <= sum(spec.needs.cpus for spec in specs)
    for unit in units:
        assert unit.needs.cpus == max(member.needs.cpus for member in unit.members)


def test_a_shortage_names_every_kind_with_all_numbers() -> None:
    """O1."""
    wanted = Resources(cpus=3, accelerators=2, memory_gib=1)
    with pytest.raises(NotEnough) as caught:
        room.require(
            wanted,
            Resources(cpus=1, accelerators=0, memory_gib=4),
            Resources(cpus=2, accelerators=0, memory_gib=8),
            where="node-7",
        )
    assert str(caught.value).startswith(
        "node-7: 3 CPUs wanted, 1 free of 2 visible; 2 accelerators wanted, 0 free of 0 visible."
    )


def test_sharers_that_want_different_nodes_are_refused() -> None:
    """One device lies on one node."""
    wanted = [
        _wanted("a", Resources(), share="d", together="g1"),
        _wanted("b", Resources(), share="d", together="g2"),
    ]
    with pytest.raises(WrongValue, match="one node"):
        room.units(wanted)


@given(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0, -1.0]), max_size=30))
def test_no_device_is_lent_twice(orders: list[float]) -> None:
    """Parts of one device add up to at most one, and everything comes back; -1 returns the last."""
    names = ("0", "1", "2", "3")
    devices, held = Devices(names), dict[str, tuple[float, tuple[str, ...]]]()
    for number, count in enumerate(orders):
        if count < 0:
            if held:
                devices.release(held.popitem()[0])
            continue
        try:
            held[str(number)] = count, devices.take(str(number), count)
        except NotEnough:
            continue
    for name in names:
        assert sum(min(count, 1) for count, got in held.values() if name in got) <= 1
    for holder in held:
        devices.release(holder)
    assert devices.take("all", 4) == names


def test_parts_that_are_too_small_are_no_whole_device() -> None:
    """Two halves of two devices are not one device."""
    devices = Devices(("0", "1"))
    devices.take("a", 0.5)
    assert devices.take("b", 0.5) == ("0",)
    devices.take("c", 0.5)
    with pytest.raises(NotEnough, match="1 accelerators wanted, 0 with room"):
        devices.take("d", 1)


def test_a_start_that_finds_only_parts_gives_back_what_it_took(tmp_path: Path) -> None:
    """O1: a shortage leaves all free, also when it shows after the first device was taken."""
    cluster = build(Config(accelerators=("0", "1"), cpus=8), folder=tmp_path)

    async def main() -> None:
        before = await cluster.resources()
        with pytest.raises(NotEnough, match="with room"):  # 1.8 of 2 are wanted
            await cluster.start([_wanted(name, Resources(accelerators=0.6)) for name in "abc"])
        assert await cluster.resources() == before
        await cluster.close()

    asyncio.run(main())
