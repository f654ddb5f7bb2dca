"""The one aggregator: whole-step weights, every mode, every unit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.domain.aggregate import Mode, Unit, aggregate, pair_weights, row_weights
from hexpo.domain.errors import MissingCount, WrongColumn, WrongValue

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden-vectors.json").read_text())
ROWS = ([2.0, 4.0], [1.0] * 6)
ANSWERS = {
    Mode.TOKEN_MEAN: (1.5, (1 / 8, 1 / 8)),
    Mode.SEQ_MEAN_TOKEN_MEAN: (2.0, (1 / 4, 1 / 12)),
    Mode.SEQ_MEAN_TOKEN_SUM_NORM: (0.5, (1 / 24, 1 / 24)),
}


def weights_of(
    counts: list[int], mode: Mode, *, constant: float | None = None, groups: list[int] | None = None
) -> Tensor:
    return row_weights(
        trained_S=torch.tensor(counts),
        group_S=torch.tensor(groups or list(range(len(counts)))),
        mode=mode,
        constant=constant,
    )


def loss_and_gradient(
    rows: list[list[float]], weights_S: Tensor, *, junk: int = 0
) -> tuple[float, list[Tensor]]:
    """Each row's terms behind `junk` masked slots that hold 50."""
    leaves = [torch.tensor([*row, *[50.0] * junk], requires_grad=True) for row in rows]
    keep = torch.cat([torch.arange(len(row) + junk) < len(row) for row in rows])
    owner = torch.cat([torch.full((len(row) + junk,), i) for i, row in enumerate(rows)])
    value = aggregate(torch.cat(leaves)[keep], weights=weights_S[owner[keep]])
    value.backward()
    return value.item(), [leaf.grad for leaf in leaves if leaf.grad is not None]


@pytest.mark.parametrize("mode", ANSWERS)
@pytest.mark.parametrize("parts", [[[0, 1]], [[0], [1]], [[1], [], [0]]])
@pytest.mark.parametrize("junk", [0, 4, 7])
def test_the_step_loss_does_not_depend_on_the_split(
    mode: Mode, parts: list[list[int]], junk: int
) -> None:
    """O01, A1: micro-batches, ranks and padding change neither loss nor gradient."""
    weights = weights_of([2, 6], mode, constant=12.0)
    loss, gradient = ANSWERS[mode]
    total = 0.0
    for part in parts:
        if part:
            value, gradients = loss_and_gradient([ROWS[i] for i in part], weights[part], junk=junk)
            total += value
            for place, each in zip(part, gradients, strict=True):
                size = len(ROWS[place])
                assert each[:size].tolist() == pytest.approx([gradient[place]] * size, abs=1e-7)
                assert each[size:].tolist() == [0.0] * junk
    assert total == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("masked", [[7.0, 7.0, 7.0], [float("nan"), float("inf"), 7.0]])
@pytest.mark.parametrize("mode", [Mode.TOKEN_MEAN, Mode.SEQ_MEAN_TOKEN_MEAN])
def test_a_fully_masked_row_does_not_dilute_the_mean(mode: Mode, masked: list[float]) -> None:
    """O02, A3, A4."""
    weights = weights_of([2, 0], mode)
    terms = torch.tensor([2.0, 4.0, *masked], requires_grad=True)
    keep = torch.tensor([True, True, False, False, False])
    owner = torch.tensor([0, 0, 1, 1, 1])
    value = aggregate(terms[keep], weights=weights[owner[keep]])
    value.backward()
    assert value.item() == 3.0
    assert terms.grad is not None
    assert terms.grad.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("mode", Mode)
def test_a_step_without_a_token_has_loss_zero_and_a_gradient_path(mode: Mode) -> None:
    """O02, A4: nothing to train is 0, not NaN."""
    weights = weights_of([0, 0], mode, constant=3.0)
    assert weights.tolist() == [0.0, 0.0]
    terms = torch.zeros(0, requires_grad=True)
    value = aggregate(terms * 2, weights=torch.zeros(0))
    value.backward()
    assert value.item() == 0.0


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (Mode.TOKEN_MEAN, "token-mean"),
        (Mode.TOKEN_SUM, "token-sum"),
        (Mode.SEQ_MEAN_TOKEN_SUM, "seq-mean-token-sum"),
        (Mode.SEQ_MEAN_TOKEN_MEAN, "seq-mean-token-mean"),
    ],
)
def test_modes_agree_with_the_oracle(mode: Mode, name: str) -> None:
    """Golden vectors: the modes without explicit batch sizes."""
    matrix, mask = torch.tensor(GOLDEN["agg"]["mat"]), torch.tensor(GOLDEN["agg"]["mask"]).bool()
    owner = torch.arange(3).repeat_interleave(3).reshape(3, 3)[mask]
    value = aggregate(matrix[mask], weights=weights_of(mask.sum(1).tolist(), mode)[owner])
    assert value.item() == pytest.approx(GOLDEN["agg"][f"{name}|{{}}"], abs=1e-5)


def test_every_prompt_weighs_the_same_in_prompt_mean() -> None:
    """Two rows of one prompt share its weight by their tokens; a dead prompt counts for nobody."""
    weights = weights_of([1, 3, 2, 0], Mode.PROMPT_MEAN, groups=[7, 7, 9, 11])
    assert weights.tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 4, 0])


def test_rows_share_their_prompts_weight_in_prompt_mean() -> None:
    """A4, A8: two live rows of one prompt have half its weight each, a dead one none."""
    weights = row_weights(
        trained_S=torch.tensor([1, 3, 0, 2, 0]),
        group_S=torch.tensor([7, 7, 7, 9, 11]),
        mode=Mode.PROMPT_MEAN,
        unit=Unit.SEQUENCE,
    )
    assert weights.tolist() == pytest.approx([1 / 4, 1 / 4, 0, 1 / 2, 0])


def test_a_missing_constant_is_an_error() -> None:
    """A5, A7: no tensor width stands in for it."""
    with pytest.raises(MissingCount, match="constant"):
        weights_of([1, 2], Mode.SEQ_MEAN_TOKEN_SUM_NORM)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.floats(0.5, 5000))
def test_the_constant_divides_whatever_the_longest_row_is(
    counts: list[int], constant: float
) -> None:
    """A5: 1 / (live rows x constant) for a token of any row; a longer batch changes nothing."""
    live = sum(count > 0 for count in counts)
    want = [1 / (live * constant) if count else 0.0 for count in counts]
    mode = Mode.SEQ_MEAN_TOKEN_SUM_NORM
    assert weights_of(counts, mode, constant=constant).tolist() == pytest.approx(want)
    longer = [count * 100 for count in counts]
    assert weights_of(longer, mode, constant=constant).tolist() == pytest.approx(want)


@pytest.mark.parametrize("unit", [Unit.SEQUENCE, Unit.PAIR])
@pytest.mark.parametrize("mode", [Mode.TOKEN_MEAN, Mode.TOKEN_SUM])
def test_units_larger_than_a_token_refuse_token_modes(unit: Unit, mode: Mode) -> None:
    """A8: one number a row is not repeated over its tokens."""
    with pytest.raises(WrongValue, match="seq-mean-token-mean"):
        row_weights(
            trained_S=torch.tensor([1, 5]), group_S=torch.tensor([3, 3]), mode=mode, unit=unit
        )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_a_row_with_one_number_weighs_the_same_whatever_its_length(counts: list[int]) -> None:
    """A8."""
    weights = row_weights(
        trained_S=torch.tensor(counts),
        group_S=torch.zeros(len(counts), dtype=torch.int64),
        mode=Mode.SEQ_MEAN_TOKEN_MEAN,
        unit=Unit.SEQUENCE,
    )
    live = sum(count > 0 for count in counts)
    want = [1 / live if count else 0.0 for count in counts]
    assert weights.tolist() == pytest.approx(want)


def test_a_pair_counts_once_and_only_if_both_rows_live() -> None:
    """X7: the denominator is the pairs of the step."""
    group_S = torch.tensor([5, 2, 2, 5, 9, 9])
    weights_S = row_weights(
        trained_S=torch.tensor([3, 1, 4, 1, 0, 2]),
        group_S=group_S,
        mode=Mode.SEQ_MEAN_TOKEN_MEAN,
        unit=Unit.PAIR,
    )
    assert pair_weights(weights_S, group_S).tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_a_torn_pair_is_refused_by_name() -> None:
    """X7: rows of one unit are never separated."""
    with pytest.raises(WrongColumn, match="group 4 has 1 row"):
        pair_weights(torch.ones(3), torch.tensor([1, 1, 4]))


def test_terms_and_weights_of_other_axes_are_refused() -> None:
    """A broadcast would count tokens twice."""
    with pytest.raises(WrongColumn, match="differ"):
        aggregate(torch.ones(3), weights=torch.ones(1))


@pytest.mark.parametrize("unit", [Unit.TOKEN, Unit.SEQUENCE])
def test_the_only_prompt_and_the_only_token_have_the_whole_weight(unit: Unit) -> None:
    """A4: a divisor is what there is, not one more; two rows of one prompt share it."""
    weights = row_weights(
        trained_S=torch.tensor([1, 1]),
        group_S=torch.tensor([7, 7]),
        mode=Mode.PROMPT_MEAN,
        unit=unit,
    )
    assert weights.tolist() == [0.5, 0.5]
    for mode in (Mode.TOKEN_MEAN, Mode.SEQ_MEAN_TOKEN_MEAN, Mode.SEQ_MEAN_TOKEN_SUM):
        assert weights_of([1], mode).tolist() == [1.0]
