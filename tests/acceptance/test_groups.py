"""O03 and O13: groups go by ticket, whatever the text and whatever failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import pytest
import torch
from tests.tiny import answer
from torch import Tensor
from torch.testing import assert_close

from hexpo.domain.advantages import grpo, rloo
from hexpo.domain.batch.assemble import assemble
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Graded,
    Group,
    Message,
    Outcome,
    Prompt,
    Scored,
    Ticket,
)

SAME = Prompt(id="the same", messages=(Message("user", "the same question"),))


def group(number: int, outcomes: Sequence[Outcome], prompt: Prompt = SAME) -> Group:
    """A ticket and its answers, two tokens each."""
    ticket = Ticket(number=number, prompt=prompt, version=0, samples=len(outcomes))
    rows = tuple(
        Graded(trajectory=answer(ticket, place), outcome=outcome)
        for place, outcome in enumerate(outcomes)
    )
    return Group(ticket=ticket, rows=rows)


def scored(*scores: float) -> list[Outcome]:
    return [Scored(value=score) for score in scores]


def advantages(estimate: Callable[..., Tensor], *groups: Group) -> Tensor:
    """From graded groups to (S,) advantages, the way that a run takes."""
    rows = assemble(groups)[0].sequences
    return estimate(score_S=rows["score"], scored_S=rows["scored"], group_S=rows["group"])


@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_the_published_groups_give_the_published_advantages(offset: float) -> None:
    """O03.1, 2, 4, 6 and 7: from graded answers; adding 10 to every reward changes nothing."""

    def check(estimate: Callable[..., Tensor], outcomes: list[Outcome], *wanted: float) -> None:
        lifted = [
            Scored(value=each.value + offset) if isinstance(each, Scored) else each
            for each in outcomes
        ]
        found = advantages(estimate, group(3, lifted))
        assert_close(found, torch.tensor(wanted, dtype=torch.float32), rtol=0, atol=1e-5)

    broken = Failed(cause=Cause.RAISED, message="no grade")
    check(grpo, scored(1, 0, 0, 1), 0.866025, -0.866025, -0.866025, 0.866025)
    check(grpo, scored(1, 1, 1, 1), 0, 0, 0, 0)
    one, zero = Scored(value=1), Scored(value=0)
    check(grpo, [one, broken, zero, one], 0.577350, 0, -1.154701, 0.577350)
    check(rloo, scored(1, 1, 1, 0, 0, 0, 0, 0), *[0.714286] * 3, *[-0.428571] * 5)
    assert advantages(rloo, group(0, scored(1, 1, 1, 0, 0, 0, 0, 0))).sum().abs() < 1e-6


def test_a_group_without_a_score_gives_nothing() -> None:
    """O03.5, B7: all 0, no NaN; nothing of it is trained."""
    broken = Failed(cause=Cause.TIMED_OUT, message="no end")
    batch, _ = assemble([group(0, [broken] * 4), group(1, scored(1, 0, 0, 1))])
    found = advantages(grpo, group(0, [broken] * 4))
    assert found.tolist() == [0.0] * 4
    assert batch.sequences["trained"].tolist() == [0, 0, 0, 0, 2, 2, 2, 2]


def test_one_prompt_drawn_twice_makes_two_groups_in_any_order_of_rows() -> None:
    """O13, B1: merged by text, the advantages would be plus and minus 0.866025."""
    rows = assemble([group(5, scored(1, 1)), group(2, scored(0, 0))])[0].sequences
    for order in permutations(range(4)):
        some = rows.select(list(order))
        found = grpo(score_S=some["score"], scored_S=some["scored"], group_S=some["group"])
        assert found.tolist() == [0.0] * 4
