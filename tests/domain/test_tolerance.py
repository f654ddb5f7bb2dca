"""The verdict on two engines' log-probs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.domain.errors import WrongColumn
from hexpo.domain.tolerance import TOLERANCES, Comparison, Tolerance, Verdict, compare

TOLERANCE = Tolerance(mean=0.06, sequence=0.25)
OWNER = torch.arange(4).repeat_interleave(10)


def compared(gap_T: Tensor, *, tolerance: Tolerance = TOLERANCE) -> Comparison:
    trainer_T = -torch.rand(40, generator=torch.Generator().manual_seed(0)) - 1
    return compare(
        trainer_T=trainer_T,
        engine_T=trainer_T + gap_T,
        owner_T=OWNER,
        rows=4,
        tolerance=tolerance,
    )


def test_noise_agrees_and_a_stale_matrix_does_not() -> None:
    """C1: the measured sizes, bf16: 0.027 between two engines, 0.13 with one stale matrix."""
    assert compared(torch.full((40,), 0.027)).verdict is Verdict.AGREES
    assert compared(torch.full((40,), -0.13)).verdict is Verdict.DISAGREES
    fp32 = TOLERANCES[torch.float32]
    assert compared(torch.full((40,), 5e-5), tolerance=fp32).verdict is Verdict.AGREES
    assert compared(torch.full((40,), 1e-3), tolerance=fp32).verdict is Verdict.DISAGREES


def test_one_sequence_that_is_far_off_is_an_outlier_and_is_named() -> None:
    """C1: gaps of both signs count; its place is said."""
    gap_T = torch.zeros(40)
    gap_T[20:30] = torch.tensor([0.3, -0.3] * 5)
    tolerance = Tolerance(mean=0.1, sequence=0.25)
    found = compared(gap_T, tolerance=tolerance)
    assert found.verdict is Verdict.OUTLIERS
    assert found.outliers == (2,)
    assert found.worst == pytest.approx(0.3, abs=1e-6)
    assert found.metrics["agreement/outliers"].value == 1


def test_more_outliers_than_not_are_no_accident() -> None:
    """Three of four sequences are off, although the mean lies within."""
    gap_T = torch.full((40,), 0.05)
    gap_T[:10] = 0
    found = compared(gap_T, tolerance=Tolerance(mean=0.06, sequence=0.04))
    assert found.outliers == (1, 2, 3)
    assert found.verdict is Verdict.DISAGREES


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_log_prob_that_is_no_number_disagrees(bad: float) -> None:
    """C3: never read as agreement."""
    gap_T = torch.zeros(40)
    gap_T[7] = bad
    found = compared(gap_T)
    assert found.verdict is Verdict.DISAGREES
    assert found.outliers == (0,)


@given(size=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_verdict_does_not_depend_on_the_order_of_tokens_within_a_sequence(
    size: float, seed: int
) -> None:
    """And the mean is that of all tokens."""
    generator = torch.Generator().manual_seed(seed)
    gap_T = size * torch.randn(40, generator=generator)
    within = torch.cat([10 * i + torch.randperm(10, generator=generator) for i in range(4)])
    one, other = compared(gap_T), compared(gap_T[within])
    assert one.verdict is other.verdict
    assert one.mean == pytest.approx(float(gap_T.double().abs().mean()), abs=1e-6)


def test_nothing_compared_agrees_and_axes_must_agree() -> None:
    """No token is no disagreement; a shape that misfits is an error."""
    none = torch.zeros(0)
    found = compare(trainer_T=none, engine_T=none, owner_T=none.long(), rows=2, tolerance=TOLERANCE)
    assert found.verdict is Verdict.AGREES
    with pytest.raises(WrongColumn):
        compare(
            trainer_T=none,
            engine_T=torch.zeros(1),
            owner_T=none.long(),
            rows=2,
            tolerance=TOLERANCE,
        )


def exact(*gaps: float, tolerance: Tolerance) -> Comparison:
    """One token a sequence, with gaps that no rounding changes."""
    return compare(
        trainer_T=torch.zeros(len(gaps)),
        engine_T=torch.tensor(gaps),
        owner_T=torch.arange(len(gaps)),
        rows=len(gaps),
        tolerance=tolerance,
    )


def test_a_gap_at_the_tolerance_is_within_it() -> None:
    """C1: both bounds; two outliers of four are no majority, and the mean decides first."""
    tolerance = Tolerance(mean=0.25, sequence=0.5)
    assert exact(0.25, 0.25, tolerance=tolerance).verdict is Verdict.AGREES
    assert exact(0.5, 0.0, tolerance=tolerance).outliers == ()
    found = exact(0.0, 1.0, 0.0, 1.0, tolerance=Tolerance(mean=0.5, sequence=0.5))
    assert (found.verdict, found.outliers) == (Verdict.OUTLIERS, (1, 3))
    assert (found.mean, found.worst) == (0.5, 1.0)


def test_a_sequences_gap_is_the_mean_of_its_tokens_and_a_message_says_both_numbers() -> None:
    """C1: two tokens and one; a missing log-prob counts as 1e9 where only a number can be shown."""
    found = compare(
        trainer_T=torch.zeros(3),
        engine_T=torch.tensor([0.5, 0.25, 0.0]),
        owner_T=torch.tensor([1, 1, 0]),
        rows=2,
        tolerance=TOLERANCE,
    )
    assert (found.mean, found.worst, found.outliers) == (0.25, 0.375, (1,))
    assert found.words == "mean gap 0.25, worst sequence 0.38 nats a token"
    probe = found.metrics["agreement/probe"]
    assert (probe.value, probe.weight) == (0.25, 3)
    broken = exact(float("inf"), 0.5, tolerance=TOLERANCE)
    assert broken.metrics["agreement/probe_worst"].value == 1e9
    assert broken.metrics["agreement/probe"].value == 0.5


def test_the_tolerances_are_the_measured_ones() -> None:
    """C1: a wider one would let a stale matrix pass."""
    assert {dtype: (each.mean, each.sequence) for dtype, each in TOLERANCES.items()} == {
        torch.float32: (2e-4, 2e-3),
        torch.bfloat16: (0.08, 0.25),
        torch.float16: (0.02, 0.1),
    }
