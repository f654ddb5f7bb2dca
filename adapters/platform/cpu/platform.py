"""The CPU platform: threads that wait without spinning, kept memory, rates that are said."""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from hexpo.adapters.platform.cpu import cores, memory, probe
from hexpo.application.ports.platform import Health, Platform


@attrs.frozen(kw_only=True)
class Config:
    """Settings of the CPU platform; variables that the user has set win over all of them."""

    threads: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    """Threads for tensor work; None: one a core that this process may use."""
    sharers: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Processes that compute at the same time and share the cores; a run sets it itself."""
    spins: int = attrs.field(default=10_000, validator=attrs.validators.ge(0))
    """How often an idle thread looks for work before it sleeps (GNU's OpenMP; about 10
    microseconds). 0: it sleeps at once, and each small product waits until it is woken. For ever,
    the runtime's default, everything gets several times slower as soon as another process runs."""
    keep_memory: bool = True
    """Freed tensors' memory is kept for the next ones (glibc only): 10-30 % less CPU time."""
    trim_above_gib: float = attrs.field(default=3.0, validator=attrs.validators.ge(0))
    """Between steps, kept memory is given back if the process holds more than this: batches of
    uneven lengths leave holes, and each trim has the kernel clear the pages once more."""
    deterministic: bool = False
    """Refuse operations that have no reproducible implementation."""


class CpuPlatform:
    """See `hexpo.application.ports.platform.Platform`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def collective(self) -> str:
        return "gloo"

    def _threads(self) -> int:
        if self._config.threads is not None:
            return self._config.threads
        wanted = os.environ.get("OMP_NUM_THREADS")
        if wanted:
            return cores.threads_of(wanted)
        return max(1, cores.count_cores().usable // self._config.sharers)

    def environment(self) -> Mapping[str, str]:
        """Thread runtime and allocator settings; both read them once, when the process starts."""
        variables = {"OMP_NUM_THREADS": str(self._threads())}
        if self._config.spins and "OMP_WAIT_POLICY" not in os.environ:
            variables["GOMP_SPINCOUNT"] = str(self._config.spins)
        else:
            variables["OMP_WAIT_POLICY"] = "passive"
        if self._config.keep_memory and memory.is_glibc():
            variables["GLIBC_TUNABLES"] = memory.tunables()
        return variables

    def prepare(self) -> None:
        """Set torch's threads, and determinism if it was asked for."""
        import torch

        torch.set_num_threads(self._threads())
        if self._config.deterministic:
            torch.use_deterministic_algorithms(mode=True)

    def peak_memory(self) -> int:
        return memory.peak_bytes()

    def release(self) -> None:
        """Trim the heap where the process has grown above `trim_above_gib`."""
        if memory.resident_bytes() > self._config.trim_above_gib * 2**30:
            memory.trim()

    def health(self) -> Health:
        """Count cores and multiply matrices for half a second."""
        import torch

        found, flags = cores.count_cores(), cores.instruction_sets()
        rates = probe.measure()
        faster = "bf16" if rates.bf16 > rates.fp32 else "fp32"
        facts = {
            "cores": f"{found.physical} ({found.logical} hardware threads, "
            + ("no quota)" if found.quota is None else f"quota {found.quota:g})"),
            "threads": f"{torch.get_num_threads()} (would choose {self._threads()})",
            "parallelism": f"{rates.parallelism:.1f} (CPU seconds / wall seconds)",
            "bf16 product": f"{rates.bf16:.0f} GFLOP/s",
            "fp32 product": f"{rates.fp32:.0f} GFLOP/s",
            "faster precision": f"{faster} ({_why(flags)})",
            "instruction sets": " ".join(flags) or "unknown",
            "waiting": _waiting(),
            "allocator": "kept" if _keeps_memory() else "default",
            "memory": f"{memory.total_bytes() / 2**30:.0f} GiB",
        }
        return Health(available=True, reason=_verdict(rates, torch.get_num_threads()), facts=facts)


def _waiting() -> str:
    if spins := os.environ.get("GOMP_SPINCOUNT"):
        return f"threads look for work {spins} times, then sleep"
    return os.environ.get("OMP_WAIT_POLICY", "default: threads spin")


def _why(flags: tuple[str, ...]) -> str:
    if "amx_bf16" in flags:
        return "the processor has bf16 tiles (AMX)"
    if "avx512_bf16" in flags:
        return "the processor has bf16 products (AVX-512), no tiles (AMX)"
    return "the processor has no bf16 products: bf16 saves memory, and costs time"


def _keeps_memory() -> bool:
    return "glibc.malloc.mmap_threshold" in os.environ.get("GLIBC_TUNABLES", "")


def _verdict(rates: probe.Probe, threads: int) -> str:
    if threads > 1 and rates.parallelism < 0.6 * threads:
        return (
            f"usable, but {threads} threads did the work of {rates.parallelism:.1f}: other "
            "processes are running, or the threads share one core"
        )
    return "usable"


def build(config: Config) -> Platform:
    """A platform that has touched nothing yet."""
    return CpuPlatform(config)
