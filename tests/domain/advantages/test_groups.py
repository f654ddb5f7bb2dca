"""What every group estimator guarantees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.domain.advantages import (
    Scale,
    gpg,
    group_report,
    grpo,
    grpo_passk,
    maxrl,
    opo,
    reinforce_plus_plus_baseline,
    rloo,
)
from hexpo.domain.errors import WrongColumn, WrongValue
from hexpo.domain.metrics import values
from hexpo.entrypoints.testing.strategies import Scores, groups_of_scores

Estimate = Callable[[Scores], Tensor]


def _lengths(case: Scores) -> Tensor:
    return 1 + torch.arange(len(case.score_S)) % 3


def _grpo(scale: Scale) -> Estimate:
    return lambda c: grpo(score_S=c.score_S, scored_S=c.scored_S, group_S=c.group_S, scale=scale)


def _opo(c: Scores) -> Tensor:
    return opo(score_S=c.score_S, scored_S=c.scored_S, group_S=c.group_S, actions_S=_lengths(c))


PLAIN = {"rloo": rloo, "gpg": gpg, "grpo_passk": grpo_passk}
GROUPED: dict[str, Estimate] = {
    "grpo": _grpo(Scale.GROUP),
    "grpo batch": _grpo(Scale.BATCH),
    "grpo none": _grpo(Scale.NONE),
    "opo": _opo,
    **{
        name: lambda c, f=f: f(score_S=c.score_S, scored_S=c.scored_S, group_S=c.group_S)
        for name, f in PLAIN.items()
    },
}
# The lengths that opo gets here go by place, so that rows cannot move without them.
MOVABLE = {name: f for name, f in GROUPED.items() if name != "opo"}
PER_GROUP = {name: f for name, f in MOVABLE.items() if name not in {"grpo batch", "gpg"}}
SHIFTABLE = {name: f for name, f in GROUPED.items() if name != "gpg"}
each = pytest.mark.parametrize("name", GROUPED)
TRUE4 = torch.ones(4, dtype=torch.bool)
SAME4 = torch.zeros(4, dtype=torch.int64)


def _score(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_two_right_of_four_give_plus_and_minus_0_866025() -> None:
    """O03.1."""
    advantage_S = grpo(score_S=_score(1, 0, 0, 1), scored_S=TRUE4, group_S=SAME4)
    expected = torch.tensor([0.866025, -0.866025, -0.866025, 0.866025])
    assert_close(advantage_S, expected, rtol=0, atol=1e-5)


@each
def test_equal_outcomes_give_exactly_nothing(name: str) -> None:
    """O03.2, B2: seven times 0.1 is where float32, and a mean in float64, leave crumbs."""
    for outcome, count in ((1.0, 4), (0.1, 7), (9000.05, 3)):
        case = Scores(
            score_S=torch.full((count,), outcome, dtype=torch.float64),
            scored_S=torch.ones(count, dtype=torch.bool),
            group_S=torch.zeros(count, dtype=torch.int64),
        )
        assert torch.equal(GROUPED[name](case), torch.zeros(count))


def test_an_unscored_row_is_in_no_statistic_and_gets_nothing() -> None:
    """O03.4, B7."""
    scored_S = torch.tensor([True, False, True, True])
    advantage_S = grpo(score_S=_score(1, float("nan"), 0, 1), scored_S=scored_S, group_S=SAME4)
    expected = torch.tensor([0.577350, 0.0, -1.154701, 0.577350])
    assert_close(advantage_S, expected, rtol=0, atol=1e-5)
    assert advantage_S[1] == 0
    report = values(group_report(score_S=_score(1, 0, 0, 1), scored_S=scored_S, group_S=SAME4))
    assert report["group/unscored"] == 1


def test_a_rejected_sample_leaves_and_a_rejected_token_does_not() -> None:
    """O04: the third sample as a whole is rejected; it is not scored then."""
    scored_S = torch.tensor([True, True, False])
    advantage_S = grpo(
        score_S=_score(1, 0, 9), scored_S=scored_S, group_S=torch.zeros(3, dtype=torch.int64)
    )
    assert_close(advantage_S, torch.tensor([0.707107, -0.707107, 0.0]), rtol=0, atol=2e-6)


def test_equal_texts_of_two_samples_are_two_groups_in_any_order() -> None:
    """O13, B1: merging them would give plus and minus 0.866025."""
    score_S, group_S = _score(1, 1, 0, 0), torch.tensor([7, 7, 3, 3])
    for order in (
        torch.tensor([0, 1, 2, 3]),
        torch.tensor([0, 2, 1, 3]),
        torch.tensor([3, 0, 2, 1]),
    ):
        advantage_S = grpo(score_S=score_S[order], scored_S=TRUE4, group_S=group_S[order])
        assert torch.equal(advantage_S, torch.zeros(4))
    merged_S = grpo(score_S=score_S, scored_S=TRUE4, group_S=SAME4)
    assert_close(merged_S.abs(), torch.full((4,), 0.866025), rtol=0, atol=1e-5)


@each
def test_one_scored_row_is_alone_and_gets_nothing(name: str) -> None:
    """Y5: at run time this is counted, not raised."""
    case = Scores(
        score_S=_score(3, 8, 1, 2),
        scored_S=torch.tensor([True, False, True, True]),
        group_S=torch.tensor([5, 5, 6, 6]),
    )
    advantage_S = GROUPED[name](case)
    assert torch.equal(advantage_S[:2], torch.zeros(2))
    assert advantage_S[3] > 0
    report = values(
        group_report(score_S=case.score_S, scored_S=case.scored_S, group_S=case.group_S)
    )
    assert report["group/alone"] == 1
    assert report["group/empty"] == 0
    assert report["group/flat"] == 0


def test_the_report_counts_flat_and_empty_groups() -> None:
    """B2, B7: the share of flat groups is of those that have something to compare."""
    report = values(
        group_report(
            score_S=_score(1, 1, 0, 1, 5, 5, 2),
            scored_S=torch.tensor([True, True, True, True, False, False, True]),
            group_S=torch.tensor([0, 0, 1, 1, 2, 2, 3]),
        )
    )
    assert report == {
        "group/unscored": 2,
        "group/alone": 1,
        "group/empty": 1,
        "group/flat": 0.5,
    }


@pytest.mark.parametrize("name", MOVABLE)
@settings(max_examples=40, deadline=None)
@given(case=groups_of_scores(), numbers=st.randoms(use_true_random=False))
def test_permuting_rows_permutes_advantages(name: str, case: Scores, numbers) -> None:  # type: ignore[no-untyped-def]
    """B8."""
    order = list(range(len(case.score_S)))
    numbers.shuffle(order)
    moved = Scores(
        score_S=case.score_S[order], scored_S=case.scored_S[order], group_S=case.group_S[order]
    )
    assert_close(MOVABLE[name](moved), MOVABLE[name](case)[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SHIFTABLE)
@settings(max_examples=40, deadline=None)
@given(case=groups_of_scores(), offset=st.sampled_from((-1000.0, -1.0, 0.5, 64.0)))
def test_an_offset_changes_nothing(name: str, case: Scores, offset: float) -> None:
    """B3: gpg counts outcomes that are not 0, so that it has no such law."""
    moved = Scores(
        score_S=case.score_S.float().double() + offset,
        scored_S=case.scored_S,
        group_S=case.group_S,
    )
    still = Scores(
        score_S=case.score_S.float().double(), scored_S=case.scored_S, group_S=case.group_S
    )
    assert_close(SHIFTABLE[name](moved), SHIFTABLE[name](still), rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(case=groups_of_scores(), factor=st.sampled_from((0.01, 0.5, 3.0, 100.0)))
def test_a_factor_changes_nothing_where_the_deviation_divides(case: Scores, factor: float) -> None:
    """B3, Y9: for a deviation well above epsilon."""
    advantage_S = GROUPED["grpo"](case)
    larger = Scores(score_S=case.score_S * factor, scored_S=case.scored_S, group_S=case.group_S)
    plain_S = GROUPED["grpo none"](case)
    wide_S = plain_S.abs() > 0.02 / min(factor, 1.0)
    assert_close(GROUPED["grpo"](larger)[wide_S], advantage_S[wide_S], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["grpo", "grpo none", "rloo"])
@settings(max_examples=40, deadline=None)
@given(case=groups_of_scores())
def test_advantages_of_a_group_add_up_to_nothing(name: str, case: Scores) -> None:
    """B3."""
    advantage_S = GROUPED[name](case).double()
    for group in case.group_S.unique():
        rows = case.group_S == group
        largest = max(1.0, float(advantage_S[rows].abs().sum()))
        assert abs(float(advantage_S[rows].sum())) <= 1e-6 * largest


@settings(max_examples=40, deadline=None)
@given(case=groups_of_scores())
def test_statistics_are_those_of_float64_on_the_same_inputs(case: Scores) -> None:
    """B4: for outcomes near 9,000 that differ by 0.05, too."""
    advantage_S = GROUPED["grpo"](case)
    for group in case.group_S.unique():
        rows = (case.group_S == group) & case.scored_S
        taken = case.score_S[rows]
        if len(taken) < 2 or len(taken.unique()) == 1:
            expected = torch.zeros(len(taken), dtype=torch.float64)
        else:
            expected = (taken - taken.mean()) / (taken.std() + 1e-6)
        assert_close(advantage_S[rows].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PER_GROUP)
@settings(max_examples=40, deadline=None)
@given(case=groups_of_scores())
def test_whole_groups_may_be_computed_apart(name: str, case: Scores) -> None:
    """A group's advantages do not depend on the other groups of the step."""
    whole_S = PER_GROUP[name](case)
    for group in case.group_S.unique():
        rows = case.group_S == group
        part = Scores(
            score_S=case.score_S[rows], scored_S=case.scored_S[rows], group_S=case.group_S[rows]
        )
        assert_close(PER_GROUP[name](part), whole_S[rows], rtol=1e-6, atol=1e-6)


@each
@settings(max_examples=40, deadline=None)
@given(case=groups_of_scores(), junk=st.sampled_from((float("nan"), float("inf"), 1e30)))
def test_the_number_of_an_unscored_row_has_no_effect(name: str, case: Scores, junk: float) -> None:
    """B5, B7, A3."""
    spoiled = Scores(
        score_S=case.score_S.masked_fill(~case.scored_S, junk),
        scored_S=case.scored_S,
        group_S=case.group_S,
    )
    advantage_S = GROUPED[name](spoiled)
    assert torch.equal(advantage_S, GROUPED[name](case))
    assert torch.equal(advantage_S[~case.scored_S], torch.zeros(int((~case.scored_S).sum())))


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    """Ahmadian et al.: 1 - (0 + 0.5) / 2 for the first row."""
    advantage_S = rloo(
        score_S=_score(1, 0, 0.5),
        scored_S=torch.ones(3, dtype=torch.bool),
        group_S=torch.zeros(3, dtype=torch.int64),
    )
    assert_close(advantage_S, torch.tensor([0.75, -0.75, 0.0]))


def test_only_the_best_row_of_a_group_leads() -> None:
    """grpo_passk: unscored rows are no rivals; a tie of the two best gives nothing."""
    advantage_S = grpo_passk(
        score_S=_score(9, 3, 1, 2, 4, 4, 0),
        scored_S=torch.tensor([False, True, True, True, True, True, True]),
        group_S=torch.tensor([1, 1, 1, 1, 0, 0, 0]),
    )
    assert_close(advantage_S, torch.tensor([0, 1.0, 0, 0, 0, 0, 0]), rtol=1e-5, atol=1e-5)


def test_scale_batch_divides_by_the_deviation_of_all_scored_rows() -> None:
    """Y1."""
    score_S = _score(1, 0, 5, 6)
    advantage_S = grpo(
        score_S=score_S, scored_S=TRUE4, group_S=torch.tensor([0, 0, 1, 1]), scale=Scale.BATCH
    )
    sigma = float(score_S.std())
    expected = torch.tensor([0.5, -0.5, -0.5, 0.5]) / sigma
    assert_close(advantage_S, expected, rtol=1e-5, atol=1e-5)


def test_epsilon_is_added_to_the_deviation() -> None:
    """A deviation of 0.5 or so, and an epsilon of 1.5."""
    score_S, group_S = _score(1, 0, 0, 1), SAME4
    sigma = float(score_S.std())
    for scale in (Scale.GROUP, Scale.BATCH):
        advantage_S = grpo(
            score_S=score_S, scored_S=TRUE4, group_S=group_S, scale=scale, epsilon=1.5
        )
        assert_close(advantage_S[0], torch.tensor(0.5 / (sigma + 1.5)))
    lead_S = grpo_passk(score_S=score_S * 2 + 1, scored_S=TRUE4, group_S=group_S, epsilon=1.5)
    assert torch.equal(lead_S, torch.zeros(4))
    lead_S = grpo_passk(score_S=_score(3, 0, 0, 1), scored_S=TRUE4, group_S=group_S, epsilon=1.5)
    assert_close(lead_S[0], torch.tensor(2 / (float(_score(3, 0, 0, 1).std()) + 1.5)))


def test_gpg_raises_by_the_share_of_rows_with_an_outcome() -> None:
    """Y1: alpha is 3 scored rows over 1 that is not 0."""
    advantage_S = gpg(
        score_S=_score(1, 0, 0, 7),
        scored_S=torch.tensor([True, True, True, False]),
        group_S=SAME4,
        norm=2.0,
    )
    assert_close(advantage_S, torch.tensor([1.0, -0.5, -0.5, 0.0]))


def test_maxrl_divides_by_the_mean_and_refuses_negative_outcomes() -> None:
    """A group without a success gives 0; a negative outcome of an unscored row is no matter."""
    group_S = torch.tensor([0, 0, 0, 1, 1])
    scored_S = torch.tensor([True, True, True, True, False])
    advantage_S = maxrl(score_S=_score(1, 0, 0, 0, -3), scored_S=scored_S, group_S=group_S)
    assert_close(advantage_S, torch.tensor([2.0, -1.0, -1.0, 0.0, 0.0]))
    with pytest.raises(WrongValue, match="-3"):
        maxrl(score_S=_score(1, 0, 0, 0, -3), scored_S=~scored_S, group_S=group_S)


def test_opo_compares_with_the_mean_outcome_of_a_token() -> None:
    """R - sum(L R) / sum(L): 3 of 4 tokens belong to the row with 1."""
    advantage_S = opo(
        score_S=_score(1, 0, 50),
        scored_S=torch.tensor([True, True, False]),
        group_S=torch.zeros(3, dtype=torch.int64),
        actions_S=torch.tensor([3, 1, 9]),
    )
    assert_close(advantage_S, torch.tensor([0.25, -0.75, 0.0]))
    order = torch.tensor([2, 0, 1])
    moved_S = opo(
        score_S=_score(1, 0, 50)[order],
        scored_S=torch.tensor([True, True, False])[order],
        group_S=torch.zeros(3, dtype=torch.int64),
        actions_S=torch.tensor([3, 1, 9])[order],
    )
    assert torch.equal(moved_S, advantage_S[order])


def test_whitened_deviations_have_mean_0_and_variance_1_over_action_tokens() -> None:
    """Y1: an unscored row does not count with its tokens."""
    scored_S = torch.tensor([True, True, True, True, False])
    actions_S = torch.tensor([3, 1, 2, 5, 90])
    advantage_S = reinforce_plus_plus_baseline(
        score_S=_score(1, 0, 0.5, 2, 44),
        scored_S=scored_S,
        group_S=torch.tensor([0, 0, 1, 1, 1]),
        actions_S=actions_S,
    )
    tokens = advantage_S[:4].repeat_interleave(actions_S[:4])
    assert_close(tokens.mean(), torch.tensor(0.0), rtol=0, atol=1e-6)
    assert_close(tokens.std(), torch.tensor(1.0), rtol=1e-6, atol=1e-6)
    assert advantage_S[4] == 0


def test_columns_of_different_lengths_are_refused() -> None:
    """The message names both."""
    with pytest.raises(WrongColumn, match=r"group has|scored has"):
        grpo(score_S=_score(1, 2, 3), scored_S=TRUE4, group_S=SAME4[:3])
    with pytest.raises(WrongColumn, match="values"):
        grpo(score_S=_score(1, 2, 3), scored_S=TRUE4, group_S=SAME4)


def test_groups_of_a_large_batch_are_ranked_as_each_alone() -> None:
    """A1: an unstable sort keeps the ranks of a dozen rows and loses those of a hundred."""
    noise = torch.Generator().manual_seed(0)
    score_S = torch.rand(300, generator=noise, dtype=torch.float64)
    scored_S = torch.rand(300, generator=noise) > 0.1
    group_S = torch.randint(0, 7, (300,), generator=noise)
    whole_S = grpo_passk(score_S=score_S, scored_S=scored_S, group_S=group_S)
    for group in range(7):
        mine_S = group_S == group
        alone = grpo_passk(
            score_S=score_S[mine_S], scored_S=scored_S[mine_S], group_S=group_S[mine_S]
        )
        assert_close(whole_S[mine_S], alone)
        assert int(alone.count_nonzero()) == 1
        assert int(alone.argmax()) == int(
            score_S[mine_S].masked_fill(~scored_S[mine_S], -1).argmax()
        )
