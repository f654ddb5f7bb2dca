"""Advantages beside a plain reversed loop over a padded matrix, the form that libraries share.

    python tests/benchmarks/advantages.py [rows] [tokens] [repeats]
    PYTHONPATH=.src .venv-peers/bin/python tests/benchmarks/advantages.py

The loop is verl's own where verl can be imported (the second line, see peers/environment.py),
otherwise a stand-in of the same arithmetic. Both sides whiten; rounds alternate; the best counts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import torch
from measure import calibrated, print_table, rounds
from torch import Tensor

from hexpo.domain.advantages import gae, grpo, reinforce_plus_plus, vapo

GAMMA, LAM = 0.99, 0.95


def padded_gae(rewards: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """A reversed loop over the columns of (rows, tokens), then masked whitening."""
    following, trace = torch.zeros(len(mask)), torch.zeros(len(mask))
    reversed_advantages = []
    with torch.no_grad():
        for place in reversed(range(mask.shape[1])):
            here = mask[:, place]
            delta = rewards[:, place] + GAMMA * following - values[:, place]
            candidate = delta + GAMMA * LAM * trace
            following = values[:, place] * here + (1 - here) * following
            trace = candidate * here + (1 - here) * trace
            reversed_advantages.append(trace)
        advantages = torch.stack(reversed_advantages[::-1], dim=1)
        returns = advantages + values
        count = mask.sum()
        mean = (advantages * mask).sum() / count
        variance = ((advantages - mean).square() * mask).sum() / (count - 1)
        return (advantages - mean) * torch.rsqrt(variance + 1e-8), returns


def the_loop() -> tuple[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """verl's function, or the stand-in."""
    try:
        verl = importlib.import_module("verl.trainer.ppo.core_algos")
    except ModuleNotFoundError:
        return "stand-in for verl", padded_gae
    return "verl", lambda r, v, m: verl.compute_gae_advantage_return(r, v, m, GAMMA, LAM)


def padded(column_T: Tensor, lengths: Tensor, width: int) -> Tensor:
    """(rows, width) of a packed column, zeros behind."""
    inside = torch.arange(width) < lengths[:, None]
    return torch.zeros(inside.shape).masked_scatter(inside, column_T.float())


def best(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best milliseconds of each call."""
    return {
        name: 1e3 * min(spent.wall for spent in taken)
        for name, taken in rounds(calls, repeats).items()
    }


def compare(title: str, lengths: Tensor, share: float, repeats: int) -> None:
    """Print times and ratios of one layout, after checking that both sides agree."""
    tokens, width = int(lengths.sum()), int(lengths.max())
    owner_T = torch.repeat_interleave(lengths)
    action_T = torch.rand(tokens) < share
    action_T[lengths.cumsum(0) - 1] = True
    reward_T, value_T = torch.zeros(tokens), torch.randn(tokens)
    reward_T[lengths.cumsum(0) - 1] = torch.randint(0, 2, lengths.shape).float()
    scored_S = torch.ones(len(lengths), dtype=torch.bool)
    roles = {"action_T": action_T, "owner_T": owner_T, "scored_S": scored_S}
    wide = [padded(column, lengths, width) for column in (reward_T, value_T, action_T)]
    name, loop = the_loop()
    calls: dict[str, Callable[[], object]] = {
        name: lambda: loop(wide[0], wide[1], wide[2]),
        "gae": lambda: gae(reward_T=reward_T, value_T=value_T, **roles, gamma=GAMMA, lam=LAM),
        "vapo": lambda: vapo(reward_T=reward_T, value_T=value_T, **roles, gamma=GAMMA),
        "reinforce_plus_plus": lambda: reinforce_plus_plus(reward_T=reward_T, **roles, gamma=GAMMA),
    }
    ours = gae(reward_T=reward_T, value_T=value_T, **roles, gamma=GAMMA, lam=LAM)["advantage"]
    theirs = loop(*wide)[0][torch.arange(width) < lengths[:, None]]
    gap = float((ours - theirs)[action_T].abs().max())
    taken = best(calls, repeats)
    print_table(
        f"{title}: {len(lengths)} rows, {tokens:,} tokens, largest difference {gap:.1e}",
        ("call", "ms", "times as fast"),
        [(call, spent, f"x{taken[name] / spent:.1f}") for call, spent in taken.items()],
    )


def outcomes(rows: int, repeats: int) -> None:
    """Print the time of a group estimator."""
    group_S = torch.arange(rows) // 8
    score_S, scored_S = torch.rand(rows, dtype=torch.float64), torch.ones(rows, dtype=torch.bool)
    call = {"grpo": lambda: grpo(score_S=score_S, scored_S=scored_S, group_S=group_S)}
    print(f"outcomes: {rows:,} rows in groups of 8, grpo {best(call, repeats)['grpo']:.2f} ms")


def main(rows: int = 512, width: int = 4096, repeats: int = 5) -> None:
    """Run all layouts."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    ragged = torch.randint(64, width + 1, (rows,))
    with calibrated():
        compare("ragged, all tokens actions", ragged, 1.0, repeats)
        compare("ragged, nine of ten tokens actions", ragged, 0.9, repeats)
        compare("full rows", torch.full((rows,), width), 1.0, repeats)
        outcomes(8192, repeats)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
