"""Where tokens are placed, and what predicts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hexpo.adapters.models.layout import Rows, lay_out, needed

Ragged = Callable[[int], Rows]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_token_is_predicted_from_the_one_before_it_in_its_row(
    seed: int, share: bool, ragged: Ragged
) -> None:
    """The label shift: the place that predicts token i holds token i - 1, at position i - 1."""
    rows = ragged(seed)
    layout = lay_out(rows, share=share)
    before = rows.selected_T.nonzero()[:, 0] - 1
    assert torch.equal(layout.tokens_N[layout.source_M], rows.tokens_T[before])
    assert torch.equal(layout.positions_N[layout.source_M], rows.positions_T[before])
    assert sum(segment.size for segment in layout.segments) == len(layout.tokens_N)


def test_a_prompt_of_a_group_is_run_once_and_last_tokens_never(ragged: Ragged) -> None:
    """Rows of 4 + 3 answers over prompts of 3: 3 + (4 - 1) + (3 - 1) tokens are run."""
    tokens = torch.tensor([5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 9, 9, 9])
    rows = Rows(
        tokens_T=tokens,
        positions_T=torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5]),
        lengths_S=torch.tensor([7, 6]),
        prompt_lengths_S=torch.tensor([3, 3]),
        groups_S=torch.tensor([8, 8]),
        selected_T=torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1], dtype=torch.bool),
    )
    assert needed(rows).tolist() == [6, 5]
    layout = lay_out(rows)
    assert layout.tokens_N.tolist() == [5, 6, 7, 1, 2, 3, 9, 9]
    assert layout.source_M.tolist() == [2, 3, 4, 5, 2, 6, 7]
