"""Threads, memory and rates of ordinary processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexpo.adapters.platform import cpu
from hexpo.adapters.platform.cpu import cores, memory, platform
from hexpo.adapters.platform.cpu.probe import Probe
from hexpo.domain.errors import WrongValue


def _system(folder: Path, *, siblings: dict[int, str], quota: str | None = None) -> Path:
    for number, text in siblings.items():
        topology = folder / f"devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    if quota is not None:
        (folder / "fs/cgroup").mkdir(parents=True)
        (folder / "fs/cgroup/cpu.max").write_text(quota)
    return folder


@pytest.mark.parametrize(
    ("quota", "usable"),
    [("max 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("800000 100000", 2)],
)
def test_threads_are_one_a_core_within_the_quota(
    quota: str, usable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four hardware threads on two cores: two threads, fewer where the control group pays less."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    system = _system(tmp_path, siblings={0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, quota=quota)
    found = cores.count_cores(system=system)
    assert (found.logical, found.physical, found.usable) == (4, 2, usable)


def test_cores_outside_the_affinity_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process pinned to one of four cores starts one thread."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    system = _system(tmp_path, siblings={n: str(n) for n in range(4)})
    assert cores.count_cores(system=system).usable == 1


def test_an_unknown_topology_counts_every_hardware_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No /sys, as on macOS."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2})
    assert cores.count_cores(system=tmp_path) == cores.Cores(3, 3, None)


def test_instruction_sets_are_read_from_the_processor(tmp_path: Path) -> None:
    """Those that decide about bf16, in a fixed order."""
    description = tmp_path / "cpuinfo"
    description.write_text("model : x\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16x\n")
    assert cores.instruction_sets(description=description) == ("avx512_bf16", "avx512f", "avx2")
    assert cores.instruction_sets(description=tmp_path / "none") == ()


def test_a_users_thread_count_is_read_and_a_senseless_one_refused() -> None:
    """M4."""
    assert cores.threads_of("3") == 3
    assert cores.threads_of("3,2") == 3
    for text in ("0", "-1", "many", ""):
        with pytest.raises(WrongValue, match="OMP_NUM_THREADS"):
            cores.threads_of(text)


def test_threads_come_from_the_setting_then_the_user_then_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each setting has an effect (M2)."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert cpu.build(cpu.Config()).environment()["OMP_NUM_THREADS"] == "7"
    assert cpu.build(cpu.Config(threads=3)).environment()["OMP_NUM_THREADS"] == "3"
    monkeypatch.delenv("OMP_NUM_THREADS")
    usable = str(cores.count_cores().usable)
    assert cpu.build(cpu.Config()).environment()["OMP_NUM_THREADS"] == usable


def test_each_variable_has_its_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """M2; a waiting policy that the user has set is not overruled."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    plain = cpu.build(cpu.Config(spins=0, keep_memory=False)).environment()
    assert set(plain) == {"OMP_NUM_THREADS", "OMP_WAIT_POLICY"}
    full = cpu.build(cpu.Config()).environment()
    assert full["GOMP_SPINCOUNT"] == "10000"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in cpu.build(cpu.Config()).environment()
    if memory.is_glibc():
        assert "glibc.malloc.mmap_threshold=4294967296" in full["GLIBC_TUNABLES"].split(":")


@pytest.mark.skipif(not memory.is_glibc(), reason="tunables and trimming are glibc's")
def test_kept_memory_is_kept_until_it_is_released() -> None:
    """I2: 256 MiB freed stay with the process under the tunables, and go at `release`."""
    code = """
import ctypes
from pathlib import Path
from hexpo.adapters.platform import cpu
platform = cpu.build(cpu.Config(trim_above_gib=0.125))
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
empty = resident()
block = libc.malloc(256 << 20)
wall = libc.malloc(64)
ctypes.memset(block, 1, 256 << 20)
libc.free(block)
kept = resident() - empty
platform.release()
print(kept, resident() - empty)
"""
    environment = dict(cpu.build(cpu.Config(threads=1)).environment())
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    kept, left = map(int, answer.stdout.split())
    assert kept >= 250
    assert left < 50


def test_peak_memory_is_the_processs_own_and_not_its_parents(tmp_path: Path) -> None:
    """I5: `ru_maxrss` of a child begins at its parent's peak."""
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    assert memory.peak_bytes(status=status) == 2048 * 1024
    assert memory.peak_bytes(status=tmp_path / "none") > 1 << 20
    block = bytearray(64 << 20)
    assert memory.peak_bytes() >= len(block)


def test_the_verdict_names_threads_that_share_a_core() -> None:
    """Passive waiting leaves some processes with all threads on one core for life."""
    assert platform._verdict(Probe(bf16=1, fp32=1, parallelism=1.9), 2) == "usable"
    assert "did the work of 1.0" in platform._verdict(Probe(bf16=1, fp32=1, parallelism=1.0), 2)
    assert platform._verdict(Probe(bf16=1, fp32=1, parallelism=1.0), 1) == "usable"


def test_health_says_which_precision_is_faster_and_why() -> None:
    """bf16 is slow on processors without instructions for it."""
    facts = cpu.build(cpu.Config(threads=1)).health().facts
    assert facts["faster precision"].split()[0] in {"bf16", "fp32"}
    assert "no bf16 products" in platform._why(("avx512f", "avx2"))
    assert "AMX" in platform._why(("amx_bf16", "avx512_bf16"))
