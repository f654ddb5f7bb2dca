"""Given answers as the two tables."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.batch.examples import Example, lay_out, mismatched
from hexpo.domain.errors import WrongBatch


def example(prompt: list[int], answer: list[int], *, chosen: bool = True) -> Example:
    return Example(
        tokens=torch.tensor([*prompt, *answer]),
        action=torch.tensor([False] * len(prompt) + [True] * len(answer)),
        chosen=chosen,
    )


PAIR = (example([1, 2], [3]), example([1, 2], [4, 5], chosen=False))


def test_the_examples_of_a_row_share_a_group_and_have_ids_of_their_own() -> None:
    """X7: no partition separates them; positions begin anew in each row."""
    batch = lay_out([PAIR, (example([6], [7]),)], first_id=10)
    rows, tokens = batch.sequences, batch.columns
    assert rows.ids.tolist() == [10, 11, 12]
    assert rows["group"].tolist() == [10, 10, 11]
    assert rows["chosen"].tolist() == [True, False, True]
    assert rows["prompt_length"].tolist() == [2, 2, 1]
    assert rows["trained"].tolist() == rows["actions"].tolist() == [1, 2, 1]
    assert tokens["token"].tolist() == [1, 2, 3, 1, 2, 4, 5, 6, 7]
    assert tokens["position"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1]
    assert tokens["trained"].nonzero().squeeze(1).tolist() == [2, 5, 6, 8]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=0, max_size=6))
def test_mismatched_rows_have_every_prompt_and_every_answer_once(
    sizes: list[tuple[int, int]],
) -> None:
    """KTO's reference point: a prompt never meets its own answer."""
    rows = [
        example([100 * place] * prompt, [100 * place + 1] * answer)
        for place, (prompt, answer) in enumerate(sizes)
    ]
    made = mismatched(rows)
    assert len(made) == (len(rows) if len(rows) > 1 else 0)
    for place, one in enumerate(made):
        there = rows[(place + 1) % len(rows)]
        assert one.prompt.tolist() == rows[place].prompt.tolist()
        assert one.answer.tolist() == there.answer.tolist()


@pytest.mark.parametrize(
    ("action", "words"), [([True, True], "nothing predicts it"), ([False], "both be")]
)
def test_an_answer_that_nothing_predicts_is_refused(action: list[bool], words: str) -> None:
    """D7: the label shift has no token before the first one."""
    with pytest.raises(WrongBatch, match=words):
        Example(tokens=torch.tensor([1, 2]), action=torch.tensor(action))


def test_a_conversation_without_an_answer_is_all_prompt() -> None:
    """D7: it is left out before a step, and counted."""
    mute = example([1, 2], [])
    assert mute.prompt_length == 2
    assert lay_out([(mute,)]).sequences["trained"].tolist() == [0]
