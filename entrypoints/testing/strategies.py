"""Hypothesis strategies: ragged batches, masks, splits, groups of scores, trajectories, schedules.

Every strategy can give the cases that break tensor code: equal lengths, one row, no row, a row of
no token, nothing to train. Import them into the tests of your own losses and adapters.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from hexpo.domain.batch import Batch, Sequences
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

_SEEDS = st.integers(0, 2**31 - 1)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def lengths(
    draw: st.DrawFn, *, min_rows: int = 0, max_rows: int = 6, min_length: int = 0, longest: int = 9
) -> list[int]:
    """Tokens of each row: ragged, or all equal; one row and no row included."""
    length = st.integers(min_length, longest)
    rows = draw(st.integers(min_rows, max_rows))
    if draw(st.booleans()):
        return [draw(length)] * rows
    return draw(st.lists(length, min_size=rows, max_size=rows))


@st.composite
def masks(draw: st.DrawFn, size: int) -> Tensor:
    """(size,) bool: everything, nothing, or some."""
    match draw(st.sampled_from(("all", "none", "some", "some"))):
        case "all":
            return torch.ones(size, dtype=torch.bool)
        case "none":
            return torch.zeros(size, dtype=torch.bool)
        case _:
            return torch.rand(size, generator=_generator(draw(_SEEDS))) < 0.6


def _batch(sizes: Sequence[int], action: Tensor, trained: Tensor, seed: int) -> Batch:
    noise = _generator(seed)
    length = torch.tensor(sizes, dtype=torch.int64)
    owner = torch.repeat_interleave(length)
    starts = length.cumsum(0) - length
    position = torch.arange(owner.numel()) - starts[owner]
    action = action & (position > 0)
    trained = trained & action
    rows = len(sizes)
    sequences = Sequences.of(
        {
            "id": torch.randperm(10 * rows, generator=noise)[:rows],
            "group": torch.randint(0, max(1, rows), (rows,), generator=noise),
            "length": length,
            "prompt_length": length.clamp(max=1),
            "actions": torch.bincount(owner[action], minlength=rows),
            "trained": torch.bincount(owner[trained], minlength=rows),
            "score": torch.randn(rows, generator=noise, dtype=torch.float64),
            "scored": torch.rand(rows, generator=noise) < 0.9,
            "admitted": torch.zeros(rows, dtype=torch.int64),
            "advantage": torch.randn(rows, generator=noise),
        }
    )
    logprob = -torch.rand(owner.numel(), generator=noise) * 3
    drift = torch.randn(owner.numel(), generator=noise) * 0.3
    tokens = {
        "token": torch.randint(0, 50, owner.shape, generator=noise),
        "position": position,
        "action": action,
        "trained": trained,
        "behaviour": torch.where(action, logprob, 0.0),
        "old": torch.where(action, (logprob + drift).clamp(max=0.0), 0.0),
        "reference": torch.where(action, (logprob - drift).clamp(max=0.0), 0.0),
        "version": torch.zeros_like(owner),
        "reward": torch.where(action, torch.randn(owner.shape, generator=noise), 0.0),
    }
    return Batch.of(sequences, tokens)


@st.composite
def batches(
    draw: st.DrawFn, *, min_rows: int = 0, max_rows: int = 6, min_length: int = 0, longest: int = 9
) -> Batch:
    """A batch with the columns of an assembled one, `old`, `reference` and row advantages.

    Ids are distinct and in no order; a row's first token is never an action.
    """
    sizes = draw(
        lengths(min_rows=min_rows, max_rows=max_rows, min_length=min_length, longest=longest)
    )
    count = sum(sizes)
    return _batch(sizes, draw(masks(count)), draw(masks(count)), draw(_SEEDS))


@st.composite
def indices(draw: st.DrawFn, rows: int, *, parts: int | None = None) -> list[Tensor]:
    """A split of `rows` rows into parts, each an int64 index; empty parts are legal."""
    count = draw(st.integers(1, 4)) if parts is None else parts
    noise = _generator(draw(_SEEDS))
    order = torch.randperm(rows, generator=noise)
    part = torch.randint(0, count, (rows,), generator=noise)
    return [order[part[order] == place] for place in range(count)]


@attrs.frozen(kw_only=True, eq=False)
class SplitBatch:
    """A batch and one way to cut its rows into micro-batches or ranks."""

    batch: Batch
    """The whole step."""
    index: list[Tensor]
    """Places of each part's rows in `batch`."""
    parts: list[Batch]
    """The parts themselves, in the order of `index`."""


@st.composite
def split_batches(draw: st.DrawFn, *, max_rows: int = 6, longest: int = 9) -> SplitBatch:
    """A batch and a random split of its rows: A1 must hold for each."""
    batch = draw(batches(max_rows=max_rows, longest=longest))
    index = draw(indices(len(batch)))
    return SplitBatch(batch=batch, index=index, parts=[batch.select(part) for part in index])


@attrs.frozen(kw_only=True, eq=False)
class Scores:
    """Columns of an outcome estimator, each (S,)."""

    score_S: Tensor
    """float64 outcomes; a number that must have no effect where `scored_S` is false."""
    scored_S: Tensor
    """bool."""
    group_S: Tensor
    """int64; members of a group need not be neighbours."""


@st.composite
def groups_of_scores(
    draw: st.DrawFn, *, max_groups: int = 4, max_samples: int = 5, all_scored: bool = False
) -> Scores:
    """Scores of some groups in any order: constant, nearly constant, single, large, unscored."""
    kinds = st.sampled_from(
        (
            st.sampled_from((0.0, 1.0)),
            st.just(0.1),
            st.sampled_from((9000.0, 9000.05)),
            st.floats(-1e4, 1e4, allow_nan=False, width=32),
        )
    )
    rows: list[tuple[int, float]] = []
    for group in range(draw(st.integers(0, max_groups))):
        kind = draw(kinds)
        rows += [(group, draw(kind)) for _ in range(draw(st.integers(1, max_samples)))]
    rows = draw(st.permutations(rows))
    names = draw(st.permutations(range(max_groups)))
    scored = torch.ones(len(rows), dtype=torch.bool) if all_scored else draw(masks(len(rows)))
    return Scores(
        score_S=torch.tensor([score for _, score in rows], dtype=torch.float64),
        scored_S=scored,
        group_S=torch.tensor([names[group] for group, _ in rows], dtype=torch.int64),
    )


_OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(lambda value: Scored(value=value), st.floats(-10, 10, allow_nan=False)),
    st.builds(lambda cause: Failed(cause=cause, message="scripted"), st.sampled_from(Cause)),
)


@st.composite
def trajectories(draw: st.DrawFn, *, id: int = 0, ticket: Ticket) -> Trajectory:
    """An episode of one or more turns; some log-probs are missing or impossible, some fail."""
    prompt_length = draw(st.integers(1, 3))
    roles = draw(st.lists(st.booleans(), max_size=8))
    action = torch.tensor([False] * prompt_length + roles, dtype=torch.bool)
    size = action.numel()
    logprob = st.sampled_from((-0.5, -2.0, 0.0, 0.3, float("nan"), float("-inf")))
    drawn = draw(st.lists(logprob, min_size=size, max_size=size))
    stop = draw(st.sampled_from(StopReason))
    failure = draw(st.sampled_from((None, None, Failed(cause=Cause.RAISED, message="scripted"))))
    return Trajectory(
        id=id,
        group=ticket.number,
        prompt=ticket.prompt,
        tokens=torch.tensor(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))),
        prompt_length=prompt_length,
        action=action,
        behaviour=torch.tensor(drawn, dtype=torch.float32),
        version=torch.where(action, ticket.version, 0),
        stop=stop,
        failure=failure,
    )


@st.composite
def graded_groups(draw: st.DrawFn, *, max_groups: int = 3, max_samples: int = 3) -> list[Group]:
    """Groups as the buffer holds them, with every kind of failure."""
    groups, next_id = [], draw(st.integers(0, 1000))
    for number in range(draw(st.integers(0, max_groups))):
        samples = draw(st.integers(0, max_samples))
        ticket = Ticket(
            number=number,
            prompt=Prompt(id=f"prompt-{number % 2}", messages=()),
            version=draw(st.integers(0, 3)),
            samples=samples,
        )
        rows = []
        for _ in range(samples):
            trajectory = draw(trajectories(id=next_id, ticket=ticket))
            rows.append(Graded(trajectory=trajectory, outcome=draw(_OUTCOMES)))
            next_id += 1
        groups.append(Group(ticket=ticket, rows=tuple(rows)))
    return groups


@attrs.frozen(kw_only=True)
class Schedule:
    """Settings of an admission gate, and choices that drive it in any order."""

    groups: int
    """Groups of one publication."""
    max_staleness: float
    window: int
    """1 is order of submission."""
    choices: tuple[int, ...]
    """What happens next, each to be taken modulo what is possible then."""


@st.composite
def schedules(draw: st.DrawFn, *, events: int = 120) -> Schedule:
    """Random schedules: whole and broken staleness, 0 included, any window."""
    return Schedule(
        groups=draw(st.integers(1, 5)),
        max_staleness=draw(st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0, 3.0))),
        window=draw(st.integers(1, 6)),
        choices=tuple(draw(st.lists(st.integers(0, 10**6), max_size=events))),
    )
