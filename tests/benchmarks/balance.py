"""How even and how fast the partition into parts of equal counts is, beside verl's own.

    python tests/benchmarks/balance.py [--repeats 9]

For log-normal lengths: the imbalance (heaviest part over mean part, less 1), the same over what no
partition can beat (a part that holds the costliest row), median times and peak memory. verl runs in
`.venv-peers` (see peers/environment.py), each side in a process of its own; rounds alternate.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from beside import Side, compared
from measure import calibrated, print_table, times_as_fast
from peers.environment import PEERS
from torch import Tensor

from hexpo.domain.balance import ModelShape, costs

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


def imbalance(cost_S: Tensor, parts: Sequence[Tensor | Sequence[int]], *, over: float) -> str:
    """The heaviest part over a number, less 1.

    Raises: RuntimeError: it is no partition, or the counts are not equal.
    """
    places = [torch.as_tensor(part) for part in parts]
    if not torch.cat(places).sort().values.equal(torch.arange(len(cost_S))):
        raise RuntimeError("not each place once")
    if len({len(part) for part in places}) != 1:
        raise RuntimeError("parts of different counts")
    return f"{max(float(cost_S[part].sum()) for part in places) / over - 1:.3%}"


def row_of(
    rows: int, parts: int, *, spread: float, sides: Mapping[str, Side], repeats: int
) -> tuple[object, ...]:
    """One line of the table."""
    cost_S = costs(log_normal_lengths(rows, spread=spread, seed=0), SHAPE)
    mean, bound = float(cost_S.sum()) / parts, unbeatable(cost_S, parts)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "inputs.pt"
        torch.save({"cost_S": cost_S, "parts": parts}, file)
        taken = compared(sides, "partition", file, Path(folder), repeats=repeats, threads=1)
    line: tuple[object, ...] = (spread, rows, parts)
    for calls in taken.values():
        own = calls["partition"]
        line += (imbalance(cost_S, own.result, over=mean), own.spent.cpu * 1e3, own.peak / 1e6)
    if "verl" not in taken:
        return (*line, *[""] * 6)
    own, other = (taken[side]["partition"] for side in ("hexpo", "verl"))
    over_bound = imbalance(cost_S, own.result, over=bound)
    return (*line, over_bound, *times_as_fast(other.spent, own.spent))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    header: tuple[str, ...] = ("spread", "rows", "parts", "over mean", "CPU ms", "peak MB")
    header += ("verl over mean", *header[4:], "over bound", "wall", "CPU")
    with calibrated(), Side(sys.executable, "hexpo_functions.py") as own:
        if PEERS.python.is_file():
            with Side(PEERS.python, "peers/verl_functions.py") as other:
                _print(header, {"hexpo": own, "verl": other}, repeats)
        else:
            print("verl is not there: python tests/benchmarks/peers/environment.py")
            _print(header, {"hexpo": own}, repeats)


def _print(header: Sequence[str], sides: Mapping[str, Side], repeats: int) -> None:
    lines = [
        row_of(rows, parts, spread=spread, sides=sides, repeats=repeats)
        for spread in (0.6, 1.0)
        for rows, parts in SETTINGS
    ]
    print_table("partition into equal counts", header, lines)


if __name__ == "__main__":
    main()
