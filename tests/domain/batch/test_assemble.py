"""From graded trajectories to tables: roles, masks, rewards, counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hexpo.domain.batch import Batch, assemble
from hexpo.domain.errors import WrongBatch
from hexpo.domain.metrics import merge, values
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
from hexpo.entrypoints.testing.strategies import graded_groups

PROMPT = Prompt(id="p", messages=())
BROKEN = Failed(cause=Cause.RAISED, message="scripted")


def episode(
    answer: Sequence[int],
    *,
    id: int = 0,
    prompt: Sequence[int] = (1,),
    tool: Sequence[int] = (),
    stop: StopReason = StopReason.STOP,
    behaviour: Sequence[float] | None = None,
    failure: Failed | None = None,
    group: int = 0,
) -> Trajectory:
    """An answer; `tool` holds places in it that the policy did not sample."""
    size = len(prompt) + len(answer)
    action = torch.zeros(size, dtype=torch.bool)
    action[len(prompt) :] = True
    action[[len(prompt) + place for place in tool]] = False
    logprobs = [-0.5] * len(answer) if behaviour is None else list(behaviour)
    return Trajectory(
        id=id,
        group=group,
        prompt=PROMPT,
        tokens=torch.tensor([*prompt, *answer]),
        prompt_length=len(prompt),
        action=action,
        behaviour=torch.tensor([math.nan] * len(prompt) + logprobs),
        version=torch.full((size,), 4),
        stop=stop,
        failure=failure,
    )


def group_of(
    *rows: Trajectory, outcomes: Sequence[Outcome] | None = None, number: int = 0
) -> Group:
    grades = outcomes or [Scored(value=1.0)] * len(rows)
    ticket = Ticket(number=number, prompt=PROMPT, version=3, samples=len(rows))
    graded = tuple(Graded(trajectory=r, outcome=o) for r, o in zip(rows, grades, strict=True))
    return Group(ticket=ticket, rows=graded)


def by_row(batch: Batch, name: str) -> list[list[float]]:
    sizes = batch.sequences.lengths.tolist()
    return [part.tolist() for part in torch.split(batch.columns[name], sizes)]


def eos_rows() -> Group:
    """Pad id 2, stop ids 2 and 9; r5 ends by a stop text."""
    answers = ([5, 6, 2], [5, 6, 7, 8, 5], [5, 9], [2], [5, 7])
    cut = (False, True, False, False, False)
    return group_of(
        *(
            episode(answer, id=place, stop=StopReason.LENGTH if c else StopReason.STOP)
            for place, (answer, c) in enumerate(zip(answers, cut, strict=True))
        )
    )


def test_the_final_stop_id_is_learnt_and_pad_like_ids_stay() -> None:
    """O09, D4, D5."""
    batch, metrics = assemble([eos_rows()])
    assert by_row(batch, "trained") == [[False] + [True] * n for n in (3, 5, 2, 1, 2)]
    numbers = values(metrics)
    assert numbers["tokens/trained"] == 13
    assert numbers["answer/cut"] == pytest.approx(1 / 5)
    assert numbers["answer/finished_length"] == 2.0


def test_cut_answers_are_masked_only_by_choice() -> None:
    """O09: r2 00000."""
    batch, metrics = assemble([eos_rows()], mask_cut=True)
    assert batch.sequences["trained"].tolist() == [3, 0, 2, 1, 2]
    assert batch.sequences["actions"].tolist() == [3, 5, 2, 1, 2]
    assert values(metrics)["tokens/masked/cut"] == 5
    assert batch.sequences["scored"].all()


def test_prompt_ids_that_look_like_padding_are_ordinary() -> None:
    """O09: a prompt 2 4 2 4 where 2 is the pad id."""
    batch, _ = assemble([group_of(episode([2, 2], prompt=(2, 4, 2, 4)))])
    assert by_row(batch, "token") == [[2, 4, 2, 4, 2, 2]]
    assert by_row(batch, "action") == [[False] * 4 + [True] * 2]
    assert by_row(batch, "position") == [[0, 1, 2, 3, 4, 5]]


def test_invalid_behaviour_logprobs_are_masked_counted_and_never_zero_as_if_valid() -> None:
    """O08, C3: a true 0.0 stays valid."""
    given_ = [-1.7, math.nan, math.nan, math.nan, 0.3, 0.0, -0.4]
    batch, metrics = assemble([group_of(episode([42] * 7, behaviour=given_))])
    assert by_row(batch, "trained") == [[False, True, False, False, False, False, True, True]]
    assert_close(
        batch.columns["behaviour"], torch.tensor([0.0, -1.7, 0.0, 0.0, 0.0, 0.0, 0.0, -0.4])
    )
    assert values(metrics)["tokens/masked/no_logprob"] == 4
    infinite = episode([1, 2], behaviour=[-math.inf, -1.0])
    assert assemble([group_of(infinite)])[0].sequences["trained"].tolist() == [1]


@pytest.mark.parametrize(
    "failed",
    [
        episode([5, 6], stop=StopReason.TIMEOUT),
        episode([5, 6], stop=StopReason.FAILED),
        episode([5, 6], failure=BROKEN),
    ],
    ids=["timeout", "failed", "failure"],
)
def test_a_failed_rollout_trains_nothing_and_has_no_score(failed: Trajectory) -> None:
    """O16, B7: not even when a grader gave it one; its peer trains."""
    peer = episode([5, 6, 7], id=1)
    batch, metrics = assemble([group_of(failed, peer)])
    assert batch.sequences["scored"].tolist() == [False, True]
    assert batch.sequences["score"].tolist() == [0.0, 1.0]
    assert batch.sequences["trained"].tolist() == [0, 3]
    assert by_row(batch, "reward") == [[0, 0, 0], [0, 0, 0, 1]]
    numbers = values(metrics)
    assert (numbers["tokens/masked/failed"], numbers["samples/failed"]) == (2, 1)
    assert numbers["samples/unscored"] == 0
    assert numbers["reward/mean"] == 1.0


def test_a_failing_grader_leaves_its_sample_unscored() -> None:
    """K1, B7: unscored is a state, not 0.0 in the mean."""
    rows = [episode([5, 6], id=place) for place in range(3)]
    outcomes = [Scored(value=1.0), BROKEN, Scored(value=0.0)]
    batch, metrics = assemble([group_of(*rows, outcomes=outcomes)])
    assert batch.sequences["scored"].tolist() == [True, False, True]
    assert batch.sequences["trained"].tolist() == [2, 0, 2]
    numbers = values(metrics)
    assert numbers["reward/mean"] == 0.5
    assert (numbers["samples/unscored"], numbers["tokens/masked/unscored"]) == (1, 2)


def test_the_reward_lies_on_the_last_action_and_a_row_without_one_gets_none() -> None:
    """B9: also where a tool's tokens end the row, or the last action is masked."""
    rows = [
        episode([5, 6, 7], id=0, tool=[2]),
        episode([], id=1),
        episode([5, 6], id=2, behaviour=[-1.0, math.nan]),
    ]
    batch, _ = assemble([group_of(*rows, outcomes=[Scored(value=v) for v in (2.0, 3.0, 4.0)])])
    assert by_row(batch, "reward") == [[0, 0, 2, 0], [0], [0, 0, 4]]
    assert batch.sequences["actions"].tolist() == [2, 0, 2]
    assert batch.sequences["trained"].tolist() == [2, 0, 1]


def test_versions_and_stamps_are_kept_and_tool_tokens_have_none() -> None:
    """F8."""
    row = attrs.evolve(episode([5, 6, 7], tool=[1]), version=torch.tensor([9, 3, 9, 4]))
    batch, _ = assemble([group_of(row)])
    assert by_row(batch, "version") == [[0, 3, 0, 4]]
    assert batch.sequences["admitted"].tolist() == [3]
    assert by_row(batch, "behaviour") == [[0.0, -0.5, 0.0, -0.5]]


def test_reward_parts_are_averaged_over_the_samples_that_have_them() -> None:
    """K4: ragged extras, with their count."""
    rows = [episode([5], id=place) for place in range(4)]
    outcomes: list[Outcome] = [
        Scored(value=1.0, components={"format": 1.0, "right": 0.0}),
        Scored(value=1.0, components={"format": 0.0}),
        BROKEN,
        Scored(value=1.0, components={"unasked": 7.0}),
    ]
    batch, metrics = assemble([group_of(*rows, outcomes=outcomes)], components=["right", "format"])
    nan = math.nan
    want = torch.tensor([[0, 1], [nan, 0], [nan, nan], [nan, nan]], dtype=torch.float64)
    assert_close(batch.sequences["components"], want, equal_nan=True)
    assert (metrics["reward/format"].value, metrics["reward/format"].weight) == (0.5, 2)
    assert (metrics["reward/right"].value, metrics["reward/right"].weight) == (0.0, 1)


@given(groups=graded_groups(), mask_cut=st.booleans())
def test_every_generated_token_is_trained_or_masked_for_one_reason(
    groups: list[Group], mask_cut: bool
) -> None:
    """D2: trained + masked by reason = generated; and each mask lies within the one before."""
    batch, metrics = assemble(groups, mask_cut=mask_cut)
    masked = sum(m.total for name, m in metrics.items() if name.startswith("tokens/masked/"))
    rows = [row for group in groups for row in group.rows]
    assert metrics["tokens/generated"].total == sum(int(r.trajectory.action.sum()) for r in rows)
    assert metrics["tokens/generated"].total == metrics["tokens/trained"].total + masked
    columns = batch.columns
    assert not (columns["trained"] & ~columns["action"]).any()
    assert not (columns["action"] & (columns["position"] == 0)).any()
    assert columns["behaviour"].isfinite().all()
    assert (columns["behaviour"] <= 0).all()
    assert int(columns["trained"].sum()) == int(batch.sequences["trained"].sum())


@given(groups=graded_groups())
def test_placed_rewards_add_up_to_the_scores_of_rows_with_an_action(groups: list[Group]) -> None:
    """B9, B10."""
    batch, _ = assemble(groups)
    acting = batch.sequences["actions"] > 0
    want = torch.where(acting, batch.sequences["score"], 0.0).float()
    sums = torch.zeros(len(batch)).index_add(0, batch.owner, batch.columns["reward"])
    assert_close(sums, want)
    placed = batch.columns["reward"] != 0
    assert (batch.columns["action"] | ~placed).all()


@given(groups=graded_groups())
def test_assembling_groups_apart_gives_the_same_rows_and_metrics(groups: list[Group]) -> None:
    """N1: no split changes a value."""
    whole, metrics = assemble(groups)
    parts = [assemble([group]) for group in groups]
    if parts:
        together = Batch.cat([batch for batch, _ in parts])
        for name, column in whole.columns.items():
            assert torch.equal(together.columns[name], column), name
        assert values(merge(m for _, m in parts)) == pytest.approx(values(metrics))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (attrs.evolve(episode([5]), group=8), "lies among the rows of ticket 0"),
        (attrs.evolve(episode([5]), version=torch.zeros(3)), "same tokens"),
        (attrs.evolve(episode([5]), prompt_length=2), "an action stands among the 2 tokens"),
        (attrs.evolve(episode([5]), prompt_length=9), "does not fit"),
        (
            attrs.evolve(episode([5]), prompt_length=0, action=torch.tensor([True, True])),
            "sequence's first token",
        ),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_named(row: Trajectory, message: str) -> None:
    """X5: a sequence's first token cannot be an action."""
    with pytest.raises(WrongBatch, match=message):
        assemble([group_of(row)])


def test_a_doubled_id_is_refused() -> None:
    """B1."""
    with pytest.raises(WrongBatch, match=r"unique in a batch; repeated: \[7\]"):
        assemble([group_of(episode([5], id=7), episode([6], id=7))])


def test_the_mean_of_what_shaping_added_is_over_scored_rows() -> None:
    """B10: added, not the sum; a row without a score counts for nothing."""
    rows = [episode([5], id=place) for place in range(3)]
    outcomes: list[Outcome] = [Scored(value=1.0), Scored(value=3.0), BROKEN]
    batch, metrics = assemble(
        [group_of(*rows, outcomes=outcomes)],
        shaping=lambda table: torch.tensor([-0.5, -0.25, 9.0]),
    )
    added = metrics["reward/shaping"]
    assert (added.value, added.weight) == (-0.375, 2)
    assert metrics["reward/mean"].value == 2.0
    assert batch.sequences["shaped"].tolist()[:2] == [0.5, 2.75]


OBSERVED = attrs.evolve(
    episode([5, 6, 7, 8], tool=[1, 2]), observation=torch.tensor([0, 0, 0.5, 0.0, 0])
)


def test_what_was_observed_has_a_mask_and_a_weight_where_a_term_asks() -> None:
    """A6, X6: no action, of rows that did not fail; a row without observations has none."""
    failed = attrs.evolve(OBSERVED, id=1, failure=BROKEN)
    unscored = attrs.evolve(OBSERVED, id=2)
    group = group_of(
        OBSERVED,
        failed,
        unscored,
        episode([9, 9], id=3),
        outcomes=[Scored(value=1.0), BROKEN, BROKEN, Scored(value=0.0)],
    )
    batch, _ = assemble([group], observes=True)
    seen = [False, False, True, False, False]
    assert by_row(batch, "observation") == [seen, [False] * 5, seen, [False] * 3]
    assert by_row(batch, "observation_weight")[0] == [0, 0, 0.5, 0, 0]
    assert not (batch.tokens["observation"] & batch.tokens["trained"]).any()
    assert "observation" not in assemble([group])[0].tokens.keys()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0, 1.0, 0, 0, 0], "sampled by the policy"),
        ([1.0, 0, 0, 0, 0], "among the 1 tokens of the prompt"),
        ([0, 0, math.nan, 0, 0], "no finite weight"),
        ([0, 0, 1.0], "same tokens"),
    ],
)
def test_an_observation_that_cannot_be_one_is_named(weights: list[float], message: str) -> None:
    """X5, X6: it stands behind the prompt and nobody sampled it."""
    row = attrs.evolve(OBSERVED, observation=torch.tensor(weights))
    with pytest.raises(WrongBatch, match=message):
        assemble([group_of(row)], observes=True)
