"""Advantages and aggregation beside verl's own functions, on the same inputs.

    python tests/benchmarks/advantages.py [--rows 512] [--tokens 4096] [--repeats 7] [--threads 2]

verl runs in `.venv-peers` (see peers/environment.py), each side in a process of its own, both with
the settings of threads and memory that the command line gives its own; rounds alternate, the best
of each counts. A layout's table is printed after the results were found equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from beside import Side, Taken, compared
from measure import calibrated, print_table, restart_with_process_settings, times_as_fast
from peers.environment import PEERS
from torch import Tensor

GAMMA, LAM = 0.99, 0.95
PEER_OF = {
    "gae": ("gae",),
    "reinforce_plus_plus": ("reinforce_plus_plus",),
    "grpo": ("grpo", "grpo, vectorised"),
    "grpo, a token each": ("grpo", "grpo, vectorised"),
    "rloo": ("rloo", "rloo, vectorised"),
    "rloo, a token each": ("rloo", "rloo, vectorised"),
    "token-mean": ("token-mean",),
    "seq-mean-token-mean": ("seq-mean-token-mean",),
}
"""Each of our calls, and what verl has for it."""
CLOSE = 2e-4
"""Largest difference of two results, over their scale: verl sums 4,096 steps in fp32."""


def inputs_of(lengths_S: Tensor, *, actions: float) -> dict[str, Any]:
    """Columns of rows in groups of eight; an outcome lies on a row's last token, an action."""
    tokens, last_S = int(lengths_S.sum()), lengths_S.cumsum(0) - 1
    action_T = torch.rand(tokens) < actions
    action_T[last_S] = True
    score_S = torch.rand(len(lengths_S))
    return {
        "lengths_S": lengths_S,
        "group_S": torch.arange(len(lengths_S)) // 8,
        "score_S": score_S,
        "reward_T": torch.zeros(tokens).index_copy(0, last_S, score_S),
        "value_T": torch.randn(tokens),
        "term_T": torch.randn(tokens),
        "action_T": action_T,
        "gamma": GAMMA,
        "lam": LAM,
    }


def difference(ours: Any, theirs: Any, inputs: Mapping[str, Any]) -> float:
    """The largest one at an action token, over the result's scale; 1 for none."""
    lengths_S, action_T = inputs["lengths_S"], inputs["action_T"]
    inside = torch.arange(int(lengths_S.max())) < lengths_S[:, None]
    if isinstance(ours, Mapping):
        ours = (ours["advantage"], ours["return"])
        pairs = [(a[action_T], b[inside][action_T]) for a, b in zip(ours, theirs, strict=True)]
    elif isinstance(theirs, tuple):
        owner_T = torch.repeat_interleave(lengths_S)
        spread_T = ours[owner_T] if len(ours) == len(lengths_S) else ours
        pairs = [(spread_T[action_T], theirs[0][inside][action_T])]
    else:
        pairs = [(ours, theirs)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in pairs)


def compare(
    title: str, inputs: Mapping[str, Any], sides: Mapping[str, Side], arguments: argparse.Namespace
) -> None:
    """Print times, peaks and ratios of one layout."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "inputs.pt"
        torch.save(dict(inputs), file)
        taken = compared(
            sides,
            "advantages",
            file,
            Path(folder),
            repeats=arguments.repeats,
            threads=arguments.threads,
        )
    rows = [
        line
        for name, own in taken["hexpo"].items()
        for peer in (PEER_OF[name] if "verl" in taken else ("",))
        for line in [_line(name, own, peer, taken.get("verl", {}).get(peer), inputs)]
    ]
    own = ("call", "ms", "CPU ms", "peak MB")
    header = (*own, "verl's", *own[1:], "wall", "CPU", "memory", "gap")
    print_table(f"{title}: {len(inputs['lengths_S'])} rows", header, rows)


def _line(
    name: str, own: Taken, peer: str, other: Taken | None, inputs: Mapping[str, Any]
) -> tuple[object, ...]:
    line = (name, *_figures(own))
    if other is None:
        return (*line, *[""] * 8)
    gap = difference(own.result, other.result, inputs)
    if gap > CLOSE:
        raise RuntimeError(f"{name} differs from verl's {peer} by {gap:.1e}: not the same work")
    memory = f"x{own.peak / max(other.peak, 1):.2f}"
    faster = times_as_fast(other.best, own.best)
    return (*line, peer, *_figures(other), *faster, memory, f"{gap:.0e}")


def _figures(taken: Taken) -> tuple[float, float, float]:
    return taken.best.wall * 1e3, taken.best.cpu * 1e3, taken.peak / 1e6


def main() -> None:
    """Run all layouts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096, help="of the longest row")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layouts", type=int, default=3, help="how many of the three")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    ragged_S = torch.randint(64, arguments.tokens + 1, (arguments.rows,))
    ragged_S[0] = arguments.tokens
    full_S = torch.full((arguments.rows,), arguments.tokens)
    layouts = (
        ("ragged, all tokens actions", inputs_of(ragged_S, actions=1.0)),
        ("full rows", inputs_of(full_S, actions=1.0)),
        ("ragged, nine of ten tokens actions", inputs_of(ragged_S, actions=0.9)),
    )[: arguments.layouts]
    with calibrated(), Side(sys.executable, "hexpo_functions.py") as own:
        if not PEERS.python.is_file():
            print("verl is not there: python tests/benchmarks/peers/environment.py")
            for title, inputs in layouts:
                compare(title, inputs, {"hexpo": own}, arguments)
            return
        with Side(PEERS.python, "peers/verl_functions.py") as other:
            for title, inputs in layouts:
                compare(title, inputs, {"hexpo": own, "verl": other}, arguments)


if __name__ == "__main__":
    restart_with_process_settings()
    main()
