"""Masks of a whole step, and the gate that reads the current policy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import WrongColumn, WrongValue
from hexpo.domain.masks.covariance import covariances, drawn_covariance, top_covariance
from hexpo.domain.masks.entropy import entropy_threshold, top_entropy
from hexpo.domain.masks.gates import off_policy_sequence
from hexpo.domain.masks.m2 import m2, m2_threshold
from hexpo.domain.masks.restrict import restrict, spread
from hexpo.entrypoints.testing.strategies import split_batches

FLOATS = st.lists(st.floats(0, 4, width=32), max_size=12)


@given(FLOATS.filter(bool), st.floats(0.01, 1.0), st.integers(1, 4))
def test_the_entropy_mask_is_the_same_in_every_split(
    entropies: list[float], share: float, parts: int
) -> None:
    """A1: the quantile is that of the whole step; ties at it all stay."""
    entropy_T = torch.tensor(entropies)
    threshold = entropy_threshold(entropy_T, share=share)
    whole_T = top_entropy(entropy_T=entropy_T, share=share)
    split = [top_entropy(entropy_T=part, threshold=threshold) for part in entropy_T.chunk(parts)]
    assert torch.cat(split).equal(whole_T)
    wanted = math.ceil(share * len(entropies) - 1e-9)
    assert int(whole_T.sum()) >= wanted
    assert int((entropy_T > threshold).sum()) < wanted
    assert whole_T[entropy_T.argmax()]


@pytest.mark.parametrize("share", [0.0, 1.1, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    """M4."""
    with pytest.raises(WrongValue, match="share"):
        entropy_threshold(torch.ones(3), share=share)


@given(FLOATS, st.floats(0.01, 4.0))
def test_m2_leaves_the_largest_set_whose_mean_fits(gaps: list[float], bound: float) -> None:
    """algorithms.md, m2: the largest deviations go until the rest is under the bound."""
    old_T, behaviour_T = torch.tensor(gaps), torch.zeros(len(gaps))
    squares_T = old_T.double().square()
    kept_T = m2(old_T=old_T, behaviour_T=behaviour_T, bound=bound)
    if kept_T.any():
        assert squares_T[kept_T].mean().item() <= bound * (1 + 1e-12)
    dropped = squares_T[~kept_T]
    if dropped.numel():
        nearest = dropped.min()
        assert not kept_T.any() or nearest > squares_T[kept_T].max()
        more_T = squares_T <= nearest
        assert squares_T[more_T].mean().item() > bound


def test_m2_with_a_given_threshold_reads_no_neighbour() -> None:
    """A1: ranks get the whole step's threshold."""
    old_T, behaviour_T = torch.tensor([0.0, 0.1, 0.4, 2.0]), torch.zeros(4)
    threshold = m2_threshold(old_T, behaviour_T, bound=0.06)
    assert threshold == pytest.approx(0.16)
    alone = [
        bool(m2(old_T=old_T[i, None], behaviour_T=behaviour_T[i, None], threshold=threshold))
        for i in range(4)
    ]
    assert alone == [True, True, True, False]


def test_covariance_is_centred_over_the_whole_step() -> None:
    """Y1: (A - mean A)(old - mean old)."""
    old_T, advantage_T = torch.tensor([-1.0, -3.0]), torch.tensor([2.0, -1.0])
    assert covariances(old_T, advantage_T).tolist() == [1.5, 1.5]


@pytest.mark.parametrize(("share", "chosen"), [(2e-4, 1), (0.5, 5), (1.0, 10)])
def test_top_covariance_takes_at_least_one_token(share: float, chosen: int) -> None:
    """Y1: max(1, floor(share N))."""
    noise = torch.Generator().manual_seed(0)
    old_T, advantage_T = torch.randn(2, 10, generator=noise)
    chosen_T = top_covariance(old_T=old_T, advantage_T=advantage_T, share=share)
    covariance_T = covariances(old_T, advantage_T)
    assert int(chosen_T.sum()) == chosen
    assert chosen_T.all() or covariance_T[chosen_T].min() >= covariance_T[~chosen_T].max()


def test_the_draw_comes_from_the_given_generator_and_from_the_band() -> None:
    """No hidden randomness: the same seed draws the same tokens."""
    noise = torch.Generator().manual_seed(1)
    old_T, advantage_T = 2 * torch.randn(2, 200, generator=noise)

    def draw(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return drawn_covariance(
            old_T=old_T, advantage_T=advantage_T, generator=generator, share=0.02
        )

    covariance_T = covariances(old_T, advantage_T)
    assert draw(0).equal(draw(0))
    assert not draw(0).equal(draw(1))
    assert int(draw(0).sum()) == 4
    assert ((covariance_T > 1) & (covariance_T < 5))[draw(0)].all()
    nobody = drawn_covariance(old_T=torch.zeros(3), advantage_T=torch.zeros(3), generator=noise)
    assert not nobody.any()


def test_the_off_policy_gate_drops_bad_rows_that_became_unlikely() -> None:
    """DeepSeek-V3.2: A < 0 and mean(behaviour - policy) > delta; no gradient."""
    policy_T = torch.tensor([-2.0, -2.0, -2.0, -1.0], requires_grad=True)
    gate_T = off_policy_sequence(
        policy_T=policy_T,
        behaviour_T=torch.tensor([-1.0, -1.0, -1.0, -1.0]),
        owner_T=torch.tensor([0, 0, 1, 2]),
        advantage_S=torch.tensor([-1.0, 1.0, -1.0]),
        delta=0.5,
    )
    assert gate_T.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert not gate_T.requires_grad


@given(split_batches(), st.integers(0, 99))
def test_a_mask_narrows_tokens_and_counts_together(case: object, seed: int) -> None:
    """A2, C6: numerator and denominator use the same tokens."""
    batch: Batch = case.batch  # type: ignore[attr-defined]
    tokens = int(batch.tokens.shape[0])
    keep_T = torch.rand(tokens, generator=torch.Generator().manual_seed(seed)) < 0.5
    narrowed = restrict(batch, keep_T)
    trained_T = narrowed.tokens["trained"]
    assert trained_T.equal(batch.tokens["trained"] & keep_T)
    counted = [int(narrowed.select([row]).tokens["trained"].sum()) for row in range(len(batch))]
    assert narrowed.sequences["trained"].tolist() == counted
    assert narrowed.sequences.ids.equal(batch.sequences.ids)


def test_a_mask_of_selected_tokens_goes_back_to_its_place() -> None:
    """Losses and masks see selected tokens only."""
    where_T = torch.tensor([False, True, True, False, True])
    spread_T = spread(torch.tensor([True, False, True]), where_T)
    assert spread_T.tolist() == [False, True, False, False, True]


def test_a_mask_of_other_axes_is_refused() -> None:
    """A mask of another batch must not be broadcast."""
    sequences = Sequences.of(
        {"id": torch.tensor([1]), "length": torch.tensor([2]), "trained": torch.tensor([2])}
    )
    batch = Batch.of(sequences, {"trained": torch.tensor([True, True])})
    with pytest.raises(WrongColumn, match="keep"):
        restrict(batch, torch.tensor([True]))


def test_the_band_of_the_draw_is_open_at_both_ends() -> None:
    """X6: low < covariance < high."""
    old_T, advantage_T = torch.tensor([0.0, 2.0, 0.0, 2.0]), torch.tensor([0.0, 2.0, 2.0, 0.0])
    assert covariances(old_T, advantage_T).tolist() == [1.0, 1.0, -1.0, -1.0]

    def drawn(low: float, high: float) -> list[bool]:
        return drawn_covariance(
            old_T=old_T,
            advantage_T=advantage_T,
            generator=torch.Generator().manual_seed(0),
            share=1.0,
            low=low,
            high=high,
        ).tolist()

    assert drawn(-1.0, 1.0) == [False] * 4
    assert drawn(-1.5, 1.0) == [False, False, True, True]
    assert drawn(-1.0, 1.5) == [True, True, False, False]


def test_a_covariance_is_a_product_of_two_deviations() -> None:
    """clip_cov: deviations of old of -1, -1, 2 and of the advantage of -2, 1, 1."""
    old_T, advantage_T = torch.tensor([0.0, 0.0, 3.0]), torch.tensor([0.0, 3.0, 3.0])
    assert covariances(old_T, advantage_T).tolist() == [2.0, -1.0, 2.0]
