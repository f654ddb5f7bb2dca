"""How even and how fast the partition into parts of equal counts is.

    python tests/benchmarks/balance.py
    PYTHONPATH=.src .venv-peers/bin/python tests/benchmarks/balance.py

For log-normal lengths: the imbalance (heaviest part over mean part, less 1), the same over what no
partition can beat (a part that holds the costliest row), and the median time. Where verl can be
imported (the second line, see peers/environment.py) its own partition is timed beside ours.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from measure import calibrated, median, print_table, spent_by
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
    return 1e3 * median([spent_by(call) for _ in range(times)]).wall


def verl_partition() -> Callable[[list[int], int], list[list[int]]] | None:
    """verl's own, by equal counts; None where it cannot be imported."""
    try:
        from verl.utils.seqlen_balancing import (  # type: ignore[import-not-found]
            get_seqlen_balanced_partitions,
        )
    except ModuleNotFoundError:
        return None
    return lambda lengths, parts: get_seqlen_balanced_partitions(lengths, parts, equal_size=True)


def row_of(rows: int, parts: int, *, spread: float) -> tuple[object, ...]:
    """One line of the table: ours, and verl's imbalance and time where it is there."""
    cost = costs(log_normal_lengths(rows, spread=spread, seed=0), SHAPE)
    mean = float(cost.sum()) / parts
    heaviest = max(float(cost[part].sum()) for part in partition(cost, parts, equal_counts=True))
    taken = milliseconds(lambda: partition(cost, parts, equal_counts=True))
    line = (spread, rows, parts, f"{heaviest / mean - 1:.3%}")
    line += (f"{heaviest / unbeatable(cost, parts) - 1:.3%}", taken)
    theirs = verl_partition()
    if theirs is None:
        return (*line, "", "", "")
    whole = cost.long().tolist()
    other = milliseconds(lambda: theirs(whole, parts))
    worst = max(sum(whole[place] for place in part) for part in theirs(whole, parts))
    return (*line, f"{worst / mean - 1:.3%}", other, f"x{other / taken:.1f}")


def main() -> None:
    torch.set_num_threads(1)
    header = ("spread", "rows", "parts", "over mean", "over bound", "ms")
    header += ("verl over mean", "verl ms", "times as fast")
    with calibrated():
        lines = [
            row_of(rows, parts, spread=spread) for spread in (0.6, 1.0) for rows, parts in SETTINGS
        ]
        print_table("partition into equal counts", header, lines)


if __name__ == "__main__":
    main()
