"""What every estimator of the catalogue guarantees, whatever columns it reads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.domain.advantages import ADVANTAGES, estimator, gae, packed, reinforce_plus_plus
from hexpo.domain.batch import Batch, Sequences
from hexpo.entrypoints.testing.strategies import batches

ALL = sorted(ADVANTAGES)
ABOUT_OUTCOMES = [name for name in ALL if "teacher" not in ADVANTAGES[name].needs]
READ_AT_SCORED_ROWS = ("score", "components", "greedy")
READ_AT_ACTIONS = ("reward", "value", "old", "behaviour", "squares", "teacher")


def with_every_column(batch: Batch, seed: int) -> Batch:
    """The batch with all that some estimator reads; outcomes are not negative (maxrl)."""
    noise = torch.Generator().manual_seed(seed)
    rows, tokens = len(batch), len(batch.owner)

    def some(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=noise)

    sequences = dict(batch.sequences.table) | {
        "group": torch.randint(0, max(1, rows // 2), (rows,), generator=noise),
        "score": some(rows).double(),
        "components": some(rows, 2).double(),
        "greedy": some(rows).double(),
        "role": torch.randint(0, 2, (rows,), generator=noise),
    }
    return Batch.of(
        Sequences.of(sequences),
        dict(batch.tokens)
        | {"value": some(tokens), "squares": some(tokens), "teacher": -some(tokens)},
    )


def advantage_T(name: str, batch: Batch, *, wide: bool = False) -> Tensor:
    """(T,) what each token of the batch gets; `wide`: from token columns in float64."""
    chosen = estimator(name)
    columns: dict[str, Tensor] = {
        f"{each}_S": batch.sequences[each] for each in chosen.needs.sequences
    }
    for each in chosen.needs.tokens:
        column_T = batch.owner if each == "owner" else batch.tokens[each]
        columns[f"{each}_T"] = (
            column_T.double() if wide and column_T.is_floating_point() else column_T
        )
    made = chosen.function(**columns)
    return made[batch.owner] if isinstance(made, Tensor) else made["advantage"]


CASES = batches(max_rows=7, longest=7)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=12, deadline=None)
@given(batch=CASES, numbers=st.randoms(use_true_random=False))
def test_moving_rows_moves_what_they_get(name: str, batch: Batch, numbers) -> None:  # type: ignore[no-untyped-def]
    """B8."""
    batch = with_every_column(batch, seed=len(batch.owner))
    order = list(range(len(batch)))
    numbers.shuffle(order)
    before = batch.with_tokens(advantage=advantage_T(name, batch))
    moved = batch.select(order)
    assert_close(
        advantage_T(name, moved), before.select(order).tokens["advantage"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("junk", [float("nan"), float("inf")])
@settings(max_examples=8, deadline=None)
@given(batch=CASES)
def test_numbers_without_a_meaning_reach_no_token(name: str, junk: float, batch: Batch) -> None:
    """A3, B5, B7: of rows without a score, and at tokens that are no actions of a scored row."""
    batch = with_every_column(batch, seed=len(batch.owner) + 1)
    scored_S = batch.sequences["scored"]
    live_T = batch.tokens["action"]
    if name in ABOUT_OUTCOMES:  # a teacher speaks of rows without a score as well
        live_T = live_T & scored_S[batch.owner]
    spoiled_S = {
        each: batch.sequences[each].masked_fill(
            ~scored_S.reshape(-1, *[1] * (batch.sequences[each].dim() - 1)), junk
        )
        for each in READ_AT_SCORED_ROWS
    }
    spoiled_T = {each: batch.tokens[each].masked_fill(~live_T, junk) for each in READ_AT_ACTIONS}
    spoiled = Batch.of(
        batch.sequences.with_columns(**spoiled_S),
        dict(batch.tokens) | spoiled_T,
    )
    found_T = advantage_T(name, spoiled)
    assert torch.equal(found_T, advantage_T(name, batch))
    assert found_T.isfinite().all()
    if name in ABOUT_OUTCOMES:
        outside_T = ~scored_S[batch.owner]
        assert torch.equal(found_T[outside_T], torch.zeros(int(outside_T.sum())))


@pytest.mark.parametrize("name", ALL)
def test_an_advantage_is_in_single_precision_and_no_row_gives_none(name: str) -> None:
    """B4: wider columns change its last digits only."""
    batch = with_every_column(_example(), seed=0)
    found_T, wide_T = advantage_T(name, batch), advantage_T(name, batch, wide=True)
    assert found_T.dtype is wide_T.dtype is torch.float32
    assert_close(found_T, wide_T, rtol=1e-5, atol=1e-5)
    assert found_T.count_nonzero() > 0
    assert advantage_T(name, batch.select([])).shape == (0,)


def _example() -> Batch:
    length = torch.tensor([3, 5, 4, 2])
    owner = torch.repeat_interleave(length)
    sequences = Sequences.of(
        {
            "id": torch.arange(4),
            "length": length,
            "actions": length,
            "scored": torch.ones(4, dtype=torch.bool),
            "advantage": torch.ones(4),
        }
    )
    tokens = dict.fromkeys(("reward", "old", "behaviour"), -torch.ones(len(owner)))
    return Batch.of(sequences, {"action": torch.ones(len(owner), dtype=torch.bool), **tokens})


def test_more_tokens_than_small_numbers_count_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B6: slots are numbered in int32 for as long as they fit, then in int64."""
    # Fewer tokens than this, each in a block of its own, and the spare slot behind them all.
    assert packed.FEW * packed.WIDTH == 2**31
    batch = with_every_column(_example(), seed=3)
    columns = {
        "reward_T": batch.tokens["reward"],
        "action_T": batch.tokens["action"],
        "owner_T": batch.owner,
        "scored_S": batch.sequences["scored"],
    }
    narrow = packed.Actions.of(
        **{name: columns[name] for name in ("action_T", "owner_T", "scored_S")}
    )
    few = [
        gae(**columns, value_T=batch.tokens["value"], gamma=0.9),
        reinforce_plus_plus(**columns, gamma=0.9),
    ]
    monkeypatch.setattr(packed, "FEW", len(batch.owner))
    wide = packed.Actions.of(
        **{name: columns[name] for name in ("action_T", "owner_T", "scored_S")}
    )
    many = [
        gae(**columns, value_T=batch.tokens["value"], gamma=0.9),
        reinforce_plus_plus(**columns, gamma=0.9),
    ]
    assert (narrow.slot_T.dtype, wide.slot_T.dtype) == (torch.int32, torch.int64)
    assert narrow.slot_T.tolist() == wide.slot_T.tolist()
    for one, other in zip(few, many, strict=True):
        for name in ("advantage", "return"):
            assert torch.equal(one[name], other[name])
