"""Micro-batches under a token budget."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.training.wire import split_rows
from hexpo.domain.batch import Sequences


@st.composite
def tables(draw: st.DrawFn) -> Sequences:
    """Rows of groups with a common prompt, in any order."""
    rows = []
    for group in range(draw(st.integers(0, 5))):
        prompt = draw(st.integers(1, 20))
        answers = draw(st.lists(st.integers(0, 30), min_size=1, max_size=5))
        rows += [(group, prompt, prompt + answer) for answer in answers]
    rows = draw(st.permutations(rows))
    columns = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), 3)
    return Sequences.of(
        {
            "id": torch.arange(len(rows)),
            "group": columns[:, 0],
            "prompt_length": columns[:, 1],
            "length": columns[:, 2],
        }
    )


def _tokens(rows: Sequences, part: list[int], *, share: bool) -> int:
    lengths, prompts = rows.lengths[part], rows["prompt_length"][part]
    if not share:
        return int(lengths.sum())
    firsts = {int(group): int(prompt) for group, prompt in zip(rows["group"][part], prompts)}  # noqa: B905
    return int((lengths - prompts).sum()) + sum(firsts.values())


@given(rows=tables(), budget=st.integers(1, 120), share=st.booleans())
def test_every_row_is_in_one_part_within_the_budget(
    rows: Sequences, budget: int, share: bool
) -> None:
    """Only a single longer row exceeds it."""
    parts = split_rows(rows, budget=budget, share_prompts=share)
    assert sorted(place for part in parts for place in part) == list(range(len(rows)))
    for part in parts:
        assert part
        assert len(part) == 1 or _tokens(rows, part, share=share) <= budget


@given(rows=tables(), budget=st.integers(1, 120))
def test_rows_of_one_unit_are_never_separated(rows: Sequences, budget: int) -> None:
    """Pairs: a group is in one part, whatever the budget."""
    parts = split_rows(rows, budget=budget, share_prompts=True, keep_groups=True)
    homes = [{int(group) for group in rows["group"][part]} for part in parts]
    assert sum(len(home) for home in homes) == len({int(group) for group in rows["group"]})


def test_equal_groups_make_equal_parts() -> None:
    """Eight groups of 547 run tokens under a budget of 1,200: four parts of two groups."""
    rows = Sequences.of(
        {
            "id": torch.arange(64),
            "group": torch.arange(64) // 8,
            "prompt_length": torch.full((64,), 44),
            "length": torch.full((64,), 107),
        }
    )
    parts = split_rows(rows, budget=1200, share_prompts=True)
    assert [len(part) for part in parts] == [16, 16, 16, 16]
