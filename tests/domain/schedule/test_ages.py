"""Ages of trained tokens, and answers that more than one version sampled."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.batch.assemble import assemble
from hexpo.domain.metrics import merge, values
from hexpo.domain.schedule.ages import tally
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Graded,
    Group,
    Outcome,
    Prompt,
    Scored,
    StopReason,
    Ticket,
    Trajectory,
)

PROMPT = Prompt(id="0", messages=())


def group_of(number: int, answers: list[list[int]], outcome: Outcome) -> Group:
    """A group whose answers' tokens were sampled by these versions, after a prompt of 2 ids."""
    rows = []
    for place, versions in enumerate(answers):
        total = 2 + len(versions)
        episode = Trajectory(
            id=number * 100 + place,
            group=number,
            prompt=PROMPT,
            tokens=torch.ones(total, dtype=torch.int64),
            prompt_length=2,
            action=torch.arange(total) >= 2,
            behaviour=torch.where(torch.arange(total) >= 2, -1.0, 0.0),
            version=torch.tensor([0, 0, *versions]),
            stop=StopReason.STOP,
        )
        rows.append(Graded(trajectory=episode, outcome=outcome))
    ticket = Ticket(number=number, prompt=PROMPT, version=0, samples=len(answers))
    return Group(ticket=ticket, rows=tuple(rows))


def test_ages_are_of_trained_tokens_and_partial_answers_are_counted() -> None:
    """R3: trained at version 5: ages 2, 1, 1, 0 and 0, 0; one answer of two spans three."""
    batch, _ = assemble([group_of(0, [[3, 4, 4, 5], [5, 5]], Scored(value=1.0))])
    assert values(tally(batch).metrics(at=5)) == {
        "age/mean": 4 / 6,
        "age/max": 2,
        "partial/share": 0.5,
        "partial/span": 2.0,
        "partial/span_max": 3,
    }


def test_answers_that_train_nothing_are_no_answers() -> None:
    """N2: a failed one beside them changes no share and no mean."""
    groups = [group_of(0, [[3, 4, 4, 5], [5, 5]], Scored(value=1.0))]
    alone, _ = assemble(groups)
    failed = group_of(1, [[1, 2]], Failed(cause=Cause.RAISED, message="no"))
    beside, _ = assemble([*groups, failed])
    assert values(tally(beside).metrics(at=5)) == values(tally(alone).metrics(at=5))


def test_where_nothing_is_trained_nothing_is_claimed() -> None:
    """N2: the mean of nothing is left out, never 0."""
    failed = Failed(cause=Cause.RAISED, message="no")
    batch, _ = assemble([group_of(0, [[3, 4], [4]], failed)])
    assert values(tally(batch).metrics(at=5)) == {}


answers = st.lists(
    st.lists(st.integers(0, 4), min_size=1, max_size=6).map(sorted), min_size=1, max_size=4
)


@given(st.lists(answers, min_size=1, max_size=4))
def test_parts_of_a_batch_tell_together_what_the_whole_tells(groups: list[list[list[int]]]) -> None:
    """N1: no split into mini-batches changes a value."""
    made = [group_of(n, rows, Scored(value=1.0)) for n, rows in enumerate(groups)]
    whole = tally(assemble(made)[0]).metrics(at=7)
    parts = merge(tally(assemble([one])[0]).metrics(at=7) for one in made)
    assert values(whole) == values(parts)
    spans = [len(set(row)) for rows in groups for row in rows]
    assert values(whole)["partial/share"] == sum(span > 1 for span in spans) / len(spans)
