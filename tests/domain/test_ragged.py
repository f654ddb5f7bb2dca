"""Rows of different lengths in one flat column."""

from __future__ import annotations

import torch

from hexpo.domain.ragged import row_lasts


def test_a_row_without_a_token_has_a_last_value_of_zero() -> None:
    """A4: not that of the row before it; the gradient reaches the last tokens only."""
    values_T = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    last_S = row_lasts(values_T, torch.tensor([1, 1, 3]), rows=5)
    assert last_S.tolist() == [0.0, 2.0, 0.0, 3.0, 0.0]
    last_S.sum().backward()
    assert values_T.grad is not None
    assert values_T.grad.tolist() == [0.0, 1.0, 1.0]
