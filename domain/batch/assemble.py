"""From graded trajectories to the two tables."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import attrs
import torch
from torch import Tensor

from hexpo.domain.batch.batch import Batch, Sequences
from hexpo.domain.errors import WrongBatch
from hexpo.domain.metrics import Measure, Metrics, largest, mean_of, smallest, total
from hexpo.domain.trajectory import Failed, Graded, Group, Scored, StopReason, Trajectory


class Masked(Enum):
    """Why a sampled token is not trained; the first reason that holds counts."""

    FAILED = "failed"
    """Its rollout failed or ran out of time."""
    UNSCORED = "unscored"
    """Its grader gave a failure: no score, so no advantage."""
    CUT = "cut"
    """The answer hit its token budget, and cut answers are masked by choice."""
    LOGPROB = "no_logprob"
    """The engine gave no log-prob for it, or an impossible one."""


@attrs.frozen(eq=False)
class _Rows:
    """Row facts of the batch, each (S,)."""

    length: Tensor
    failed: Tensor
    scored: Tensor
    score: Tensor
    cut: Tensor

    @staticmethod
    def of(rows: Sequence[Graded]) -> _Rows:
        ended = (StopReason.FAILED, StopReason.TIMEOUT)
        episodes = [row.trajectory for row in rows]
        failed = torch.tensor([e.failure is not None or e.stop in ended for e in episodes]).bool()
        score = [row.outcome.value if isinstance(row.outcome, Scored) else None for row in rows]
        scored = torch.tensor([value is not None for value in score]).bool() & ~failed
        values = torch.tensor([value or 0.0 for value in score], dtype=torch.float64)
        return _Rows(
            length=_integers([e.tokens.numel() for e in episodes]),
            failed=failed,
            scored=scored,
            score=torch.where(scored, values, 0.0),
            cut=torch.tensor([e.stop is StopReason.LENGTH for e in episodes]).bool() & ~failed,
        )


def _integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _end_to_end(columns: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([column.to(dtype) for column in columns] or [torch.zeros(0, dtype=dtype)])


def _require_sound(group: int, episode: Trajectory) -> None:
    where = f"trajectory {episode.id} of group {episode.group} (prompt {episode.prompt.id!r})"
    if episode.group != group:
        raise WrongBatch(f"{where} lies among the rows of ticket {group}")
    lengths = {
        name: tuple(getattr(episode, name).shape)
        for name in ("tokens", "action", "behaviour", "version")
    }
    if len(set(lengths.values())) > 1 or episode.tokens.dim() != 1:
        raise WrongBatch(f"{where}: columns must be (L,) over the same tokens, they are {lengths}")
    before = episode.action[: max(1, episode.prompt_length)]
    if not 0 <= episode.prompt_length <= episode.tokens.numel() or bool(before.any()):
        raise WrongBatch(
            f"{where}: the first {episode.prompt_length} of {episode.tokens.numel()} tokens are"
            " its prompt; no action may stand there, nor at a sequence's first token"
        )


def assemble(
    groups: Sequence[Group], *, mask_cut: bool = False, components: Sequence[str] = ()
) -> tuple[Batch, Metrics]:
    """The two tables of some graded groups, in the order given, and what was masked and why.

    Masks come from lengths and roles, never from ids (D4). A token is trained if the policy
    sampled it, its behaviour log-prob is a finite number <= 0 (C3), and its row neither failed
    nor lacks a score (B7). `score` is the outcome as graded; the token column `reward` holds it
    on the row's last action, so a row without one gets none (B9).

    Args: mask_cut: train nothing of an answer that hit its token budget.
        components: names of reward parts, the columns of `components`; NaN where a row lacks one.
    Returns: the batch and metrics; `tokens/generated` is `tokens/trained` plus all
        `tokens/masked/...`.
    Raises: WrongBatch: a trajectory contradicts itself or its ticket, or an id stands twice.
    """
    graded = [row for group in groups for row in group.rows]
    for group in groups:
        for row in group.rows:
            _require_sound(group.ticket.number, row.trajectory)
    episodes = [row.trajectory for row in graded]
    rows = _Rows.of(graded)
    owner = torch.repeat_interleave(rows.length)
    action = _end_to_end([e.action for e in episodes], torch.bool)
    behaviour = _end_to_end([e.behaviour for e in episodes], torch.float32)
    reasons = {
        Masked.FAILED: rows.failed[owner],
        Masked.UNSCORED: ~rows.scored[owner],
        Masked.CUT: rows.cut[owner] & mask_cut,
        Masked.LOGPROB: ~(behaviour.isfinite() & (behaviour <= 0)),
    }
    trained, masked = action, {}
    for reason, holds in reasons.items():
        masked[reason] = int((trained & holds).sum())
        trained = trained & ~holds
    starts = rows.length.cumsum(0) - rows.length
    tokens = {
        "token": _end_to_end([e.tokens for e in episodes], torch.int64),
        "position": torch.arange(owner.numel()) - starts[owner],
        "action": action,
        "trained": trained,
        "behaviour": torch.where(action & ~reasons[Masked.LOGPROB], behaviour, 0.0),
        "version": torch.where(action, _end_to_end([e.version for e in episodes], torch.int64), 0),
        "reward": _placed(rows.score, action, owner),
    }
    table = {
        "id": _integers([e.id for e in episodes]),
        "group": _integers([e.group for e in episodes]),
        "length": rows.length,
        "prompt_length": _integers([e.prompt_length for e in episodes]),
        "actions": _counted(action, owner, len(episodes)),
        "trained": _counted(trained, owner, len(episodes)),
        "score": rows.score,
        "scored": rows.scored,
        "components": _components(graded, components),
        "stop": _integers([int(e.stop) for e in episodes]),
        "admitted": _integers([group.ticket.version for group in groups for _ in group.rows]),
    }
    _require_distinct(table["id"])
    batch = Batch.of(Sequences.of(table), tokens)
    return batch, _metrics(batch, rows, masked, components)


def _counted(mask: Tensor, owner: Tensor, rows: int) -> Tensor:
    return torch.bincount(owner[mask], minlength=rows)


def _placed(score: Tensor, action: Tensor, owner: Tensor) -> Tensor:
    """(T,) float32: each row's score on its last action token."""
    places = action.nonzero().squeeze(1)
    last = torch.full((score.numel(),), -1, dtype=torch.int64)
    last = last.scatter_reduce(0, owner[places], places, "amax")
    has = last >= 0
    reward = torch.zeros(owner.numel(), dtype=torch.float32)
    reward[last[has]] = score[has].float()
    return reward


def _components(graded: Sequence[Graded], names: Sequence[str]) -> Tensor:
    absent = float("nan")
    parts = [
        [absent] * len(names)
        if isinstance(row.outcome, Failed)
        else [float(row.outcome.components.get(name, absent)) for name in names]
        for row in graded
    ]
    return torch.tensor(parts, dtype=torch.float64).reshape(len(graded), len(names))


def _require_distinct(ids: Tensor) -> None:
    found, times = torch.unique(ids, return_counts=True)
    if repeated := found[times > 1].tolist():
        raise WrongBatch(f"sequence ids must be unique in a batch; repeated: {repeated[:5]}")


def _metrics(
    batch: Batch, rows: _Rows, masked: dict[Masked, int], components: Sequence[str]
) -> dict[str, Measure]:
    table = batch.sequences
    score, finished = table["score"][rows.scored], table["stop"] == StopReason.STOP
    actions = table["actions"]
    metrics = {
        "tokens/generated": total(float(actions.sum())),
        "tokens/trained": total(float(table["trained"].sum())),
        **{f"tokens/masked/{why.value}": total(float(n)) for why, n in masked.items()},
        "samples/generated": total(float(len(batch))),
        "samples/failed": total(float(rows.failed.sum())),
        "samples/unscored": total(float((~rows.scored & ~rows.failed).sum())),
        "reward/mean": mean_of(float(score.sum()), score.numel()),
        "answer/length": mean_of(float(actions.sum()), len(batch)),
        "answer/finished_length": mean_of(float(actions[finished].sum()), int(finished.sum())),
        "answer/cut": mean_of(float(rows.cut.sum()), len(batch)),
    }
    if score.numel():
        metrics["reward/max"] = largest(float(score.max()))
        metrics["reward/min"] = smallest(float(score.min()))
    for place, name in enumerate(components):
        column = table["components"][:, place]
        present = ~column.isnan() & rows.scored
        metrics[f"reward/{name}"] = mean_of(float(column[present].sum()), int(present.sum()))
    return metrics
