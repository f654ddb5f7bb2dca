"""How even and how fast the partition is: python tests/benchmarks/balance.py

Prints, for log-normal lengths, the imbalance (heaviest part over mean part, less 1), the same
over what no partition can beat (a part that holds the costliest row), and the median time. With
verl installed its own partition is timed beside ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from torch import Tensor

from hexpo.domain.balance import ModelShape, costs, partition

SHAPE = ModelShape(
    layers=28,
    hidden=3584,
    heads=28,
    head_size=128,
    key_value_heads=4,
    intermediate=18944,
    vocabulary=152064,
)
SETTINGS = ((512, 8), (512, 16), (512, 64), (2048, 64), (4096, 32), (8192, 8), (8192, 64))


def log_normal_lengths(rows: int, *, spread: float, seed: int) -> Tensor:
    noise = torch.randn(rows, generator=torch.Generator().manual_seed(seed))
    return (7.3 + spread * noise).exp().clamp(16, 28_672).long()


def unbeatable(cost_S: Tensor, parts: int) -> float:
    """No equal-count partition has a lighter heaviest part."""
    ordered = cost_S.sort().values
    others = cost_S.numel() // parts - 1
    return max(float(cost_S.sum()) / parts, float(ordered[-1] + ordered[:others].sum()))


def milliseconds(call: Callable[[], object], *, times: int = 9) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - started))
    return statistics.median(taken)


def theirs(cost_S: Tensor, parts: int) -> float | None:
    try:
        from verl.utils.seqlen_balancing import (  # type: ignore[import-not-found]
            get_seqlen_balanced_partitions,
        )
    except ModuleNotFoundError:
        return None
    lengths = cost_S.long().tolist()
    return milliseconds(lambda: get_seqlen_balanced_partitions(lengths, parts, equal_size=True))


def main() -> None:
    torch.set_num_threads(1)
    console = Console(highlight=False)
    console.print("spread rows parts  over mean  over bound  ms (equal counts)")
    for spread in (0.6, 1.0):
        for rows, parts in SETTINGS:
            cost = costs(log_normal_lengths(rows, spread=spread, seed=0), SHAPE)
            index = partition(cost, parts, equal_counts=True)
            heaviest = max(float(cost[part].sum()) for part in index)
            taken = milliseconds(lambda c=cost, k=parts: partition(c, k, equal_counts=True))
            other = theirs(cost, parts)
            beside = "" if other is None else f"  verl {other:.2f} ms, {other / taken:.1f}x"
            over_mean = heaviest / float(cost.mean() * rows / parts) - 1
            over_bound = heaviest / unbeatable(cost, parts) - 1
            console.print(
                f"{spread:6} {rows:4} {parts:5}  {over_mean:9.3%}  {over_bound:10.3%}"
                f"  {taken:.2f}{beside}"
            )


if __name__ == "__main__":
    main()
