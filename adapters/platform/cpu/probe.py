"""Short measurements: how fast this processor multiplies, and whether its threads run at once."""

from __future__ import annotations

import time

import attrs

_SHAPE = (2048, 576, 3072)


@attrs.frozen(kw_only=True)
class Probe:
    """What the processor did, just now: a neighbour's load shows here."""

    bf16: float
    """GFLOP/s of a bf16 product of 2048 x 576 by 576 x 3072."""
    fp32: float
    """GFLOP/s of the same product in fp32."""
    parallelism: float
    """CPU seconds over wall seconds of that work: about the number of threads when idle, near 1
    when they share one core."""


def _rate(dtype_name: str, budget_seconds: float) -> float:
    """GFLOP/s, the median of as many products as fit into the budget (three at least)."""
    import torch

    rows, inner, columns = _SHAPE
    dtype = getattr(torch, dtype_name)
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
    left @ right  # the first product pays for set-up
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - began < budget_seconds:
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return 2 * rows * inner * columns / sorted(times)[len(times) // 2] / 1e9


def measure(*, budget_seconds: float = 0.2) -> Probe:
    """Measure for about twice the budget."""
    cpu, wall = time.process_time(), time.perf_counter()
    bf16 = _rate("bfloat16", budget_seconds)
    fp32 = _rate("float32", budget_seconds)
    spent = time.process_time() - cpu
    return Probe(bf16=bf16, fp32=fp32, parallelism=spent / (time.perf_counter() - wall))
