"""Penalties, placement, group filters, curriculum and resampling."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hexpo.domain.advantages import grpo, reinforce_plus_plus
from hexpo.domain.batch import Batch
from hexpo.domain.errors import WrongValue
from hexpo.domain.metrics import values
from hexpo.domain.shaping import (
    Flat,
    PassRates,
    Preference,
    Refill,
    draw,
    has_spread,
    in_band,
    outcomes,
    overlong_penalty,
    place_rewards,
    resample,
)
from hexpo.entrypoints.testing.strategies import Scores, batches, groups_of_scores


def test_the_overlong_penalty_grows_over_the_buffer() -> None:
    """K5: from 0 at the start of the buffer to the factor at the limit."""
    penalty_S = overlong_penalty(
        actions_S=torch.tensor([0, 80, 81, 90, 100, 110]), maximum=100, buffer=20, factor=2.0
    )
    assert penalty_S.tolist() == pytest.approx([0, 0, -0.1, -1.0, -2.0, -3.0])


def test_a_buffer_longer_than_the_limit_is_refused() -> None:
    """M4."""
    actions_S = torch.tensor([1])
    with pytest.raises(WrongValue, match="longer than 10"):
        overlong_penalty(actions_S=actions_S, maximum=10, buffer=11)
    with pytest.raises(WrongValue, match="buffer"):
        overlong_penalty(actions_S=actions_S, maximum=10, buffer=0)
    with pytest.raises(WrongValue, match="factor"):
        overlong_penalty(actions_S=actions_S, maximum=10, buffer=5, factor=-1.0)


def test_a_reward_on_padding_is_no_part_of_the_outcome() -> None:
    """O04: with it both signs flip."""
    action_T = torch.tensor([True, True, False, True, True, True])
    owner_T = torch.tensor([0, 0, 0, 1, 1, 1])
    score_S = outcomes(
        reward_T=torch.tensor([0, 0, 5.0, 0, 1, 0]), action_T=action_T, owner_T=owner_T, rows=2
    )
    assert score_S.tolist() == [0.0, 1.0]
    advantage_S = grpo(
        score_S=score_S,
        scored_S=torch.ones(2, dtype=torch.bool),
        group_S=torch.zeros(2, dtype=torch.int64),
    )
    spread_T = torch.where(action_T, advantage_S[owner_T], 0.0)
    expected = torch.tensor([-0.707107, -0.707107, 0, 0.707107, 0.707107, 0.707107])
    assert_close(spread_T, expected, rtol=0, atol=2e-6)


def test_a_reward_that_would_land_on_trailing_tool_output_moves_to_the_last_action() -> None:
    """O05, B6: undecayed."""
    action_T, owner_T = torch.tensor([True, True, False]), torch.zeros(3, dtype=torch.int64)
    reward_T, placed_N = place_rewards(
        reward_N=torch.tensor([1.0]), end_N=torch.tensor([2]), action_T=action_T, owner_T=owner_T
    )
    assert reward_T.tolist() == [0.0, 1.0, 0.0]
    assert placed_N.tolist() == [True]
    for gamma, expected in ((1.0, [1.0, 1.0, 0.0]), (0.5, [0.5, 1.0, 0.0])):
        columns = reinforce_plus_plus(
            reward_T=reward_T,
            action_T=action_T,
            owner_T=owner_T,
            scored_S=torch.ones(1, dtype=torch.bool),
            gamma=gamma,
        )
        assert columns["return"].tolist() == expected


@given(batch=batches(min_rows=1, min_length=1), seed=st.integers(0, 1000))
def test_placed_rewards_keep_their_sum_in_each_row(batch: Batch, seed: int) -> None:
    """B9: a row without an action before a step gets none of it; nothing crosses a row."""
    noise = torch.Generator().manual_seed(seed)
    tokens, action_T, owner_T = len(batch.owner), batch.tokens["action"], batch.owner
    end_N = torch.randint(0, tokens, (7,), generator=noise)
    reward_N = torch.randn(7, generator=noise, dtype=torch.float64)
    reward_T, placed_N = place_rewards(
        reward_N=reward_N, end_N=end_N, action_T=action_T, owner_T=owner_T
    )
    assert torch.equal(reward_T[~action_T], torch.zeros(int((~action_T).sum())).double())
    for row in range(len(batch)):
        mine_N = placed_N & (owner_T[end_N] == row)
        assert_close(reward_T[owner_T == row].sum(), reward_N[mine_N].sum())
    for place, end in enumerate(end_N.tolist()):
        before = (owner_T == owner_T[end]) & (torch.arange(tokens) <= end) & action_T
        assert bool(placed_N[place]) == bool(before.any())


@given(case=groups_of_scores())
def test_a_group_is_kept_iff_two_of_its_scored_outcomes_differ(case: Scores) -> None:
    """K7, B2: what is dropped is what gives no advantage."""
    kept_S = has_spread(score_S=case.score_S, scored_S=case.scored_S, group_S=case.group_S)
    for group in case.group_S.unique():
        rows = case.group_S == group
        taken = case.score_S[rows & case.scored_S]
        expected = len(taken) > 1 and float(taken.max()) > float(taken.min())
        assert kept_S[rows].tolist() == [expected] * int(rows.sum())


def test_a_least_spread_may_be_asked_for() -> None:
    """A spread of exactly that size is not enough."""
    columns = {
        "score_S": torch.tensor([0.0, 0.25, 0.0, 0.5]).double(),
        "scored_S": torch.ones(4, dtype=torch.bool),
        "group_S": torch.tensor([0, 0, 1, 1]),
    }
    assert has_spread(**columns, least=0.25).tolist() == [False, False, True, True]
    with pytest.raises(WrongValue, match="least"):
        has_spread(**columns, least=-1.0)


def test_a_refill_stays_in_its_budget_and_says_what_is_short() -> None:
    """K7: wanted 4, at most 3 more."""
    step = Refill(wanted=4, budget=3)
    assert step.missing == 4
    step = step.ask()
    assert step.missing == 0
    assert not step.is_settled
    step = step.after(kept=1, filtered=2)
    assert step.missing == 2
    step = step.ask().after(kept=1, filtered=2)
    assert step.missing == 1
    assert not step.is_settled
    step = step.ask().after(filtered=1)
    assert step.missing == 0
    assert step.is_settled
    assert values(step.metrics) == {
        "groups/filtered": 5,
        "groups/refilled": 3,
        "groups/short": 2,
    }


@given(
    arrivals=st.lists(st.booleans(), max_size=40),
    wanted=st.integers(0, 6),
    budget=st.integers(0, 6),
)
def test_a_refill_always_settles_within_its_budget(
    arrivals: list[bool], wanted: int, budget: int
) -> None:
    """F4, K7: whatever arrives, it neither waits for ever nor asks for more than it may."""
    step = Refill(wanted=wanted, budget=budget).ask()
    for kept in [*arrivals, *[False] * (wanted + budget)]:
        assert step.asked <= wanted + budget
        if step.is_settled:
            break
        assert step.asked > step.kept + step.filtered
        step = step.after(kept=int(kept), filtered=int(not kept)).ask()
    assert step.is_settled
    assert step.kept <= wanted


def test_what_did_not_arrive_is_not_counted() -> None:
    """Each count moves by itself."""
    step = Refill(wanted=3, budget=0).ask()
    assert (step.after(kept=1).kept, step.after(kept=1).filtered) == (1, 0)
    assert (step.after(filtered=1).kept, step.after(filtered=1).filtered) == (0, 1)


def test_more_arrivals_than_were_asked_for_are_refused() -> None:
    """Accounting adds up."""
    with pytest.raises(WrongValue, match="of 2 asked for"):
        Refill(wanted=2, budget=1).ask().after(kept=2, filtered=1)


def test_an_unknown_treatment_or_preference_names_the_nearest() -> None:
    """M1."""
    with pytest.raises(WrongValue, match="did you mean resample"):
        Flat("resampel")
    with pytest.raises(WrongValue, match="did you mean max_min"):
        Preference("maxmin")


def test_a_pass_rate_starts_with_the_first_result_and_then_moves() -> None:
    """0.75 of the old rate stays."""
    rates = PassRates(decay=0.75).after({"a": 1.0})
    assert rates.of("a") == 1.0
    assert rates.of("b") == 0.5
    rates = rates.after({"a": 0.0, "b": 0.25})
    assert rates.of("a") == 0.75
    assert rates.of("b") == 0.25
    assert pickle.loads(pickle.dumps(rates)) == rates
    with pytest.raises(WrongValue, match="'c'"):
        rates.after({"c": 1.5})


def test_a_band_keeps_what_was_never_asked() -> None:
    """A prompt can't be judged before it was tried."""
    rates = PassRates().after({"easy": 1.0, "hard": 0.0, "fair": 0.5})
    names = ["easy", "new", "hard", "fair"]
    assert in_band(names, rates, low=0.1, high=0.9) == [False, True, False, True]
    with pytest.raises(WrongValue, match="high"):
        in_band(names, rates, low=0.9, high=0.1)


def test_prompts_are_drawn_where_success_is_uncertain() -> None:
    """Seeded, without repeats; the floor keeps the others reachable."""
    rates = PassRates().after({"easy": 1.0, "fair": 0.5})
    names = ["easy", "fair"]
    counts = [0, 0]
    noise = torch.Generator().manual_seed(0)
    for _ in range(300):
        counts[draw(names, rates, count=1, generator=noise, floor=0.05)[0]] += 1
    assert 20 <= counts[0] <= 85  # a sixth
    again = [draw(names, rates, count=2, generator=torch.Generator().manual_seed(4)) for _ in "ab"]
    assert again[0] == again[1]
    assert sorted(again[0]) == [0, 1]
    assert draw([], rates, count=0, generator=noise) == []
    with pytest.raises(WrongValue, match="3 different prompts of 2"):
        draw(names, rates, count=3, generator=noise)


@pytest.mark.parametrize(
    ("preference", "share"),
    [
        (Preference.POWER, (1 / 6, 0.0, 4 / 6, 1 / 6)),
        (Preference.MAX_MIN, (0.0, 0.0, 0.5, 0.5)),
        (Preference.MAX_RANDOM, (1 / 6, 0.0, 4 / 6, 1 / 6)),
    ],
)
def test_rows_are_drawn_again_by_their_scores(
    preference: Preference, share: tuple[float, ...]
) -> None:
    """PF-PPO: 1, unscored, 2 and -1, many times over; an unscored row is never drawn."""
    times = 2000
    score_S = torch.tensor([1.0, 50.0, 2.0, -1.0]).double().repeat(times)
    scored_S = torch.tensor([True, False, True, True]).repeat(times)
    drawn = resample(
        score_S=score_S,
        scored_S=scored_S,
        generator=torch.Generator().manual_seed(0),
        preference=preference,
    )
    assert len(drawn) == 3 * times
    counts = torch.bincount(drawn % 4, minlength=4) / len(drawn)
    assert_close(counts, torch.tensor(share), rtol=0, atol=0.025)


def test_rows_without_any_weight_are_drawn_alike() -> None:
    """All outcomes 0; and no row at all."""
    noise = torch.Generator().manual_seed(0)
    drawn = resample(
        score_S=torch.zeros(400).double(),
        scored_S=torch.ones(400, dtype=torch.bool),
        generator=noise,
    )
    assert len(drawn.unique()) > 200
    none = resample(score_S=torch.zeros(2), scored_S=torch.zeros(2).bool(), generator=noise)
    assert none.tolist() == []


def test_a_running_rate_mixes_old_and_new_shares_by_the_decay() -> None:
    """decay old + (1 - decay) new, with numbers none of which is 0 or 1."""
    rates = PassRates(decay=0.75).after({"a": 0.5}).after({"a": 0.25})
    assert rates.of("a") == 0.75 * 0.5 + 0.25 * 0.25


def test_the_whole_band_and_the_floor_are_the_defaults() -> None:
    """A curriculum that names no bound leaves no prompt out and keeps each reachable."""
    rates = PassRates().after({"easy": 1.0, "hard": 0.0, "fair": 0.5})
    names = ["easy", "hard", "fair"]
    assert in_band(names, rates) == [True, True, True]

    def drawn(seed: int, **floor: float) -> list[int]:
        noise = torch.Generator().manual_seed(seed)
        return draw(names, rates, count=2, generator=noise, **floor)

    assert all(drawn(seed) == drawn(seed, floor=0.05) for seed in range(60))
