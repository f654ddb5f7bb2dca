"""Recursions over action tokens: against a plain loop, and what must not matter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.domain.advantages import (
    gae,
    optimal_token_baseline,
    reinforce_plus_plus,
    tir_optimal_token_baseline,
    vapo,
)
from hexpo.domain.advantages.packed import WIDTH, Actions
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import WrongColumn, WrongValue
from hexpo.entrypoints.testing.strategies import batches


def _plain(batch: Batch, value_T: Tensor, *, gamma: float, lam_S: Tensor) -> tuple[Tensor, Tensor]:
    """The recursion as it stands in the paper, token by token, in float64."""
    action_T, owner_T = batch.tokens["action"], batch.owner
    reward_T, value_T = batch.tokens["reward"].double(), value_T.double()
    advantage_T = torch.zeros(len(owner_T), dtype=torch.float64)
    later: dict[int, tuple[float, float]] = {}
    for place in reversed(range(len(owner_T))):
        row = int(owner_T[place])
        if not action_T[place] or not batch.sequences["scored"][row]:
            continue
        value, advantage = later.get(row, (0.0, 0.0))
        delta = float(reward_T[place]) + gamma * value - float(value_T[place])
        advantage_T[place] = delta + gamma * float(lam_S[row]) * advantage
        later[row] = (float(value_T[place]), float(advantage_T[place]))
    live_T = action_T & batch.sequences["scored"][owner_T]
    return advantage_T, torch.where(live_T, advantage_T + value_T, 0.0)


def _columns(batch: Batch) -> dict[str, Tensor]:
    return {
        "reward_T": batch.tokens["reward"],
        "action_T": batch.tokens["action"],
        "owner_T": batch.owner,
        "scored_S": batch.sequences["scored"],
    }


def _values(batch: Batch, seed: int = 0) -> Tensor:
    return torch.randn(len(batch.owner), generator=torch.Generator().manual_seed(seed))


RAGGED = st.one_of(batches(), batches(max_rows=4, longest=5 * WIDTH))


@settings(max_examples=50, deadline=None)
@given(batch=RAGGED, gamma=st.sampled_from((1.0, 0.9, 0.0)), lam=st.sampled_from((1.0, 0.8, 0.0)))
def test_gae_equals_the_plain_recursion(batch: Batch, gamma: float, lam: float) -> None:
    """B6, B7: ragged, equal, one row, no row, rows longer than a block, unscored rows."""
    value_T = _values(batch)
    columns = gae(**_columns(batch), value_T=value_T, gamma=gamma, lam=lam, whitened=False)
    lam_S = torch.full((len(batch),), lam, dtype=torch.float64)
    advantage_T, return_T = _plain(batch, value_T, gamma=gamma, lam_S=lam_S)
    assert_close(columns["advantage"].double(), advantage_T, rtol=2e-5, atol=2e-5)
    assert_close(columns["return"].double(), return_T, rtol=2e-5, atol=2e-5)


@settings(max_examples=50, deadline=None)
@given(batch=RAGGED, alpha=st.sampled_from((0.05, 0.5)))
def test_vapo_has_a_lambda_of_its_own_for_each_row(batch: Batch, alpha: float) -> None:
    """1 - 1 / (alpha L) for the policy, 1 for the critic."""
    value_T = _values(batch)
    columns = vapo(**_columns(batch), value_T=value_T, gamma=0.97, alpha=alpha, whitened=False)
    counts_S = batch.sequences["actions"].double().clamp(min=1)
    lam_S = (1 - 1 / (alpha * counts_S)).clamp(min=0)
    advantage_T, _ = _plain(batch, value_T, gamma=0.97, lam_S=lam_S)
    _, return_T = _plain(batch, value_T, gamma=0.97, lam_S=torch.ones_like(lam_S))
    assert_close(columns["advantage"].double(), advantage_T, rtol=2e-5, atol=2e-5)
    assert_close(columns["return"].double(), return_T, rtol=2e-5, atol=2e-5)


def test_blocks_end_where_rows_do() -> None:
    """Rows of exactly one block, one more, one less, none: no value crosses a row."""
    lengths = torch.tensor([WIDTH, 0, WIDTH + 1, WIDTH - 1, 2 * WIDTH, 33 * WIDTH + 5])
    owner_T = torch.repeat_interleave(lengths)
    actions = Actions.of(
        action_T=torch.ones(len(owner_T), dtype=torch.bool),
        owner_T=owner_T,
        scored_S=torch.ones(len(lengths), dtype=torch.bool),
    )
    assert actions.count_S.tolist() == lengths.tolist()
    ones_BW = actions.take(torch.ones(len(owner_T)))
    left_T = actions.put(actions.suffix_sums(ones_BW, decay=1.0))
    expected = torch.cat([torch.arange(int(n), 0, -1) for n in lengths])
    assert torch.equal(left_T.long(), expected)
    halves_S = torch.full((len(lengths),), 0.5)
    halved_T = actions.put(actions.suffix_sums(ones_BW, decay=halves_S))
    assert_close(halved_T, actions.put(actions.suffix_sums(ones_BW, decay=0.5)))
    assert_close(halved_T, 2 - 2 * 0.5 ** expected.float())


@pytest.mark.parametrize("blocks", [[1], [1, 2, 1], [3, 0, 70, 1]])
@pytest.mark.parametrize(
    ("estimate", "names", "options"),
    [
        (gae, ("reward", "value"), {"whitened": False}),
        (gae, ("reward", "value"), {}),
        (vapo, ("reward", "value"), {}),
        (reinforce_plus_plus, ("reward",), {}),
        (optimal_token_baseline, ("reward", "old", "behaviour", "squares"), {}),
        (tir_optimal_token_baseline, ("reward", "old", "behaviour", "squares"), {}),
    ],
)
def test_rows_that_fill_their_blocks_are_as_all_others(
    estimate: Callable[..., dict[str, Tensor]],
    names: tuple[str, ...],
    options: dict[str, Any],
    blocks: list[int],
) -> None:
    """A column that is its own blocks gives what the gathered one gives, changes none of its
    inputs, and no row sees its neighbour."""
    lengths = WIDTH * torch.tensor(blocks)
    owner_T = torch.repeat_interleave(lengths)
    rows = {"scored_S": torch.ones(len(lengths), dtype=torch.bool)}
    if "group_S" in inspect.signature(estimate).parameters:
        rows["group_S"] = torch.zeros(len(lengths), dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    columns = {f"{name}_T": -torch.rand(len(owner_T), generator=generator) for name in names}
    before = {name: column.clone() for name, column in columns.items()}

    def estimated(columns: dict[str, Tensor], extra: int) -> dict[str, Tensor]:
        """With so many further tokens, which are no actions, in the last row."""
        longer = {name: torch.cat([one, torch.ones(extra)]) for name, one in columns.items()}
        action_T = torch.cat([torch.ones(len(owner_T)), torch.zeros(extra)]).bool()
        longer_T = torch.cat([owner_T, owner_T[-1:].expand(extra)])
        return estimate(**longer, action_T=action_T, owner_T=longer_T, **rows, **options)

    own, gathered = estimated(columns, 0), estimated(columns, 1)
    for name in ("advantage", "return"):
        assert_close(own[name], gathered[name][:-1], rtol=0, atol=1e-6)
    for name, column in before.items():
        assert torch.equal(columns[name], column)
    last = owner_T == len(blocks) - 1
    spoiled = columns | {"reward_T": columns["reward_T"].masked_fill(last, torch.inf)}
    assert torch.equal(estimated(spoiled, 0)["return"][~last], own["return"][~last])


@settings(max_examples=50, deadline=None)
@given(batch=RAGGED, junk=st.sampled_from((float("nan"), float("inf"), -1e30)))
def test_what_stands_at_other_tokens_has_no_effect(batch: Batch, junk: float) -> None:
    """B5, A3: inner and trailing; unscored rows, too."""
    live_T = batch.tokens["action"] & batch.sequences["scored"][batch.owner]
    clean, value_T = _columns(batch), _values(batch)
    spoiled = {**clean, "reward_T": clean["reward_T"].masked_fill(~live_T, junk)}
    spoiled_value_T = value_T.masked_fill(~live_T, junk)
    for estimate in (gae, vapo):
        before = estimate(**clean, value_T=value_T, gamma=0.9)
        after = estimate(**spoiled, value_T=spoiled_value_T, gamma=0.9)
        for name in ("advantage", "return"):
            assert torch.equal(before[name], after[name])
            assert torch.equal(after[name][~live_T], torch.zeros(int((~live_T).sum())))


@settings(max_examples=50, deadline=None)
@given(batch=batches(min_rows=1, longest=2 * WIDTH), numbers=st.randoms(use_true_random=False))
def test_permuting_rows_permutes_tokens(batch: Batch, numbers) -> None:  # type: ignore[no-untyped-def]
    """B8."""
    order = list(range(len(batch)))
    numbers.shuffle(order)
    batch = batch.with_tokens(value=_values(batch))
    moved = batch.select(order)
    before = gae(**_columns(batch), value_T=batch.tokens["value"], gamma=0.9)
    after = gae(**_columns(moved), value_T=moved.tokens["value"], gamma=0.9)
    followed = batch.with_tokens(advantage=before["advantage"]).select(order)
    assert_close(after["advantage"], followed.tokens["advantage"], rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(batch=batches(longest=2 * WIDTH))
def test_whitened_advantages_have_mean_0_and_variance_1(batch: Batch) -> None:
    """Y1: unbiased, over the action tokens of the step; with one token, 0."""
    columns, value_T = _columns(batch), _values(batch)
    live_T = batch.tokens["action"] & batch.sequences["scored"][batch.owner]
    plain = gae(**columns, value_T=value_T, whitened=False)["advantage"][live_T].double()
    white = gae(**columns, value_T=value_T)["advantage"][live_T].double()
    if len(plain) < 2:
        assert torch.equal(white, torch.zeros(len(plain), dtype=torch.float64))
        return
    # Below, float32 advantages hold too few digits to compare.
    assume(float(plain.std()) > 0.03 + 0.01 * float(plain.abs().max()))
    expected = (plain - plain.mean()) / (plain.var() + 1e-8).sqrt()
    assert_close(white, expected, rtol=1e-4, atol=1e-4)


def test_parts_that_add_their_sums_whiten_like_the_whole() -> None:
    """A step's rows may lie on several ranks; they add sums, nothing else."""
    batch = _example()
    value_T = _values(batch)
    whole_sums: list[Tensor] = []

    def record(own: Tensor) -> Tensor:
        whole_sums.append(own)
        return own

    whole_T = gae(**_columns(batch), value_T=value_T, total=record)["advantage"]
    pieces, added, start = [], [torch.zeros_like(sums) for sums in whole_sums], 0
    for part in batch.split([2, 0, 2]):
        asked = iter(enumerate(whole_sums))

        def add(own: Tensor, asked: Iterator[tuple[int, Tensor]] = asked) -> Tensor:
            place, sums = next(asked)
            added[place] += own
            return sums

        own_value_T = value_T[start : start + len(part.owner)]
        start += len(part.owner)
        columns = gae(**_columns(part), value_T=own_value_T, total=add)
        pieces.append(columns["advantage"])
    assert_close(added, whole_sums, rtol=1e-6, atol=1e-6)
    assert_close(torch.cat(pieces), whole_T, rtol=1e-5, atol=1e-5)


def _example() -> Batch:
    """Scored rows, one of them without a token, whose tokens are all actions."""
    length = torch.tensor([3, 5, 0, 4])
    noise = torch.Generator().manual_seed(3)
    sequences = Sequences.of(
        {
            "id": torch.arange(4),
            "length": length,
            "scored": torch.ones(4, dtype=torch.bool),
        }
    )
    tokens = {
        "action": torch.ones(12, dtype=torch.bool),
        "reward": torch.randn(12, generator=noise),
    }
    return Batch.of(sequences, tokens)


def _reward_to_go(action: list[int], reward: list[float], *, gamma: float = 1.0) -> list[float]:
    columns = reinforce_plus_plus(
        reward_T=torch.tensor(reward, dtype=torch.float32),
        action_T=torch.tensor(action).bool(),
        owner_T=torch.zeros(len(action), dtype=torch.int64),
        scored_S=torch.ones(1, dtype=torch.bool),
        gamma=gamma,
        whitened=False,
    )
    assert torch.equal(columns["advantage"], columns["return"])
    return [round(number, 6) for number in columns["return"].tolist()]


def test_a_later_reward_reaches_actions_before_a_tool_call() -> None:
    """O05: one discount an action, tool tokens passed over, junk in padding unread."""
    assert _reward_to_go([1, 0, 0, 1], [0, 0, 0, 1]) == [1, 0, 0, 1]
    assert _reward_to_go([1, 0, 0, 1], [0, 0, 0, 1], gamma=0.5) == [0.5, 0, 0, 1]
    padded = _reward_to_go([1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 7, 7], gamma=0.5)
    assert padded == [0.5, 0, 0, 1, 0, 0]


def test_the_only_token_of_a_step_gets_its_reward() -> None:
    """B6: one token is not none."""
    assert _reward_to_go([1], [3]) == [3]
    assert _reward_to_go([0], [3]) == [0]
    assert _reward_to_go([], []) == []


def test_meaningless_settings_and_columns_are_refused() -> None:
    """M4."""
    batch = _example()
    columns, value_T = _columns(batch), _values(batch)
    with pytest.raises(WrongValue, match="gamma"):
        gae(**columns, value_T=value_T, gamma=1.1)
    with pytest.raises(WrongValue, match="alpha"):
        vapo(**columns, value_T=value_T, alpha=0.0)
    with pytest.raises(WrongColumn, match="column"):
        gae(**columns, value_T=value_T[1:])
    with pytest.raises(WrongColumn, match="floating"):
        gae(**{**columns, "reward_T": columns["reward_T"].long()}, value_T=value_T)
    with pytest.raises(WrongColumn, match="bool"):
        gae(**{**columns, "action_T": columns["action_T"].long()}, value_T=value_T)
