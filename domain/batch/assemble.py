"""From graded trajectories to the two tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import attrs
import torch
from torch import Tensor

from hexpo.domain.batch.batch import Batch, Sequences
from hexpo.domain.errors import WrongBatch
from hexpo.domain.metrics import Measure, Metrics, largest, mean_of, smallest, total
from hexpo.domain.seeds import seed_for
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
    columns = [episode.tokens, episode.action, episode.behaviour, episode.version]
    columns += [] if episode.observation is None else [episode.observation]
    shapes = [tuple(column.shape) for column in columns]
    if episode.group != group:
        raise WrongBatch(f"{_name(episode)} lies among the rows of ticket {group}")
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise WrongBatch(
            f"{_name(episode)}: tokens, action, behaviour, version and observation must be (L,)"
            f" over the same tokens, they are {shapes}"
        )
    if not 0 <= episode.prompt_length <= episode.tokens.numel():
        raise WrongBatch(
            f"{_name(episode)}: a prompt of {episode.prompt_length} tokens does not fit into"
            f" {episode.tokens.numel()}"
        )


def _name(episode: Trajectory) -> str:
    return f"trajectory {episode.id} of group {episode.group} (prompt {episode.prompt.id!r})"


def _require_answers_only(
    episodes: Sequence[Trajectory], action: Tensor, position: Tensor, length: Tensor
) -> None:
    first = _integers([max(1, episode.prompt_length) for episode in episodes])
    early = action & (position < torch.repeat_interleave(first, length))
    if bool(early.any()):
        episode = episodes[int(torch.repeat_interleave(length)[early][0])]
        raise WrongBatch(
            f"{_name(episode)}: an action stands among the {episode.prompt_length} tokens of its"
            " prompt, or is the sequence's first token"
        )


Shaping = Callable[[Mapping[str, Tensor]], Tensor]
"""Takes sequences columns by name, returns (S,) float64 to be added to each row's outcome."""


def assemble(
    groups: Sequence[Group],
    *,
    mask_cut: bool = False,
    components: Sequence[str] = (),
    shaping: Shaping | None = None,
    observes: bool = False,
) -> tuple[Batch, Metrics]:
    """The two tables of some graded groups, in the order given, and what was masked and why.

    Masks come from lengths and roles, never from ids (D4). A token is trained if the policy
    sampled it, its behaviour log-prob is a finite number <= 0 (C3), and its row neither failed
    nor lacks a score (B7). `score` is the outcome as graded; the token column `reward` holds it
    on the row's last action, so a row without one gets none (B9). Where rewards are shaped, the
    column `shaped` and the token rewards hold the sum, and `score` stays as it is (B10).

    Args: mask_cut: train nothing of an answer that hit its token budget.
        components: names of reward parts, the columns of `components`; NaN where a row lacks one.
        shaping: what is added to the outcome that estimators see.
        observes: lay in the token columns `observation` and `observation_weight`: what was read
            in later turns, of rows that did not fail.
    Returns: the batch and metrics; `tokens/generated` is `tokens/trained` plus all
        `tokens/masked/...`.
    Raises: WrongBatch: a trajectory contradicts itself or its ticket, or an id stands twice.
    """
    for group in groups:
        for row in group.rows:
            _require_sound(group.ticket.number, row.trajectory)
    graded = [row for group in groups for row in group.rows]
    rows = _Rows.of(graded)
    tokens, usable = _token_columns([row.trajectory for row in graded], rows.length)
    ends = rows.length.cumsum(0)
    actions, usable_S = _counted(tokens["action"], ends), _counted(usable, ends)
    live = rows.scored & ~(rows.cut & mask_cut)
    table = {
        **_named(groups),
        "length": rows.length,
        "actions": actions,
        "trained": torch.where(live, usable_S, 0),
        "score": rows.score,
        "scored": rows.scored,
        "components": _components(graded, components),
    }
    seen_S = rows.score
    if shaping is not None:
        added_S = torch.where(rows.scored, shaping(table).double(), 0.0)
        seen_S = table["shaped"] = rows.score + added_S
    tokens["trained"] = usable & torch.repeat_interleave(live, rows.length)
    tokens["reward"] = _on_last_actions(seen_S, tokens["action"], actions)
    if observes:
        tokens |= _observations([row.trajectory for row in graded], tokens, rows)
    masked = {
        Masked.FAILED: actions[rows.failed],
        Masked.UNSCORED: actions[~rows.failed & ~rows.scored],
        Masked.CUT: actions[rows.scored & ~live],
        Masked.LOGPROB: (actions - usable_S)[live],
    }
    batch = Batch.of(Sequences.of(table), tokens)
    return batch, _metrics(batch, rows, masked, components)


def _token_columns(
    episodes: Sequence[Trajectory], length_S: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """What trajectories say of their tokens, and (T,) which actions have a usable log-prob."""
    position = torch.arange(int(length_S.sum()))
    position -= torch.repeat_interleave(length_S.cumsum(0) - length_S, length_S)
    action = _end_to_end([e.action for e in episodes], torch.bool)
    _require_answers_only(episodes, action, position, length_S)
    behaviour = _end_to_end([e.behaviour for e in episodes], torch.float32)
    version = _end_to_end([e.version for e in episodes], torch.int64)
    usable = action & behaviour.isfinite() & (behaviour <= 0)
    columns = {
        "token": _end_to_end([e.tokens for e in episodes], torch.int64),
        "position": position,
        "action": action,
        "behaviour": torch.where(usable, behaviour, 0.0),
        "version": torch.where(action, version, 0),
    }
    return columns, usable


def _observations(
    episodes: Sequence[Trajectory], tokens: Mapping[str, Tensor], rows: _Rows
) -> dict[str, Tensor]:
    """The tokens that a term on observations learns, and the weight of each."""
    weight = _end_to_end(
        [torch.zeros(len(e.tokens)) if e.observation is None else e.observation for e in episodes],
        torch.float32,
    )
    prompts = torch.repeat_interleave(_integers([e.prompt_length for e in episodes]), rows.length)
    wrong = (weight != 0) & (tokens["action"] | (tokens["position"] < prompts.clamp(min=1)))
    wrong |= ~weight.isfinite()
    if bool(wrong.any()):
        episode = episodes[int(torch.repeat_interleave(rows.length)[wrong][0])]
        raise WrongBatch(
            f"{_name(episode)}: an observation is sampled by the policy, stands among the"
            f" {episode.prompt_length} tokens of the prompt, or has no finite weight"
        )
    is_observed = (weight != 0) & torch.repeat_interleave(~rows.failed, rows.length)
    return {"observation": is_observed, "observation_weight": weight}


def _named(groups: Sequence[Group]) -> dict[str, Tensor]:
    """Row columns that say whose each row is."""
    episodes = [row.trajectory for group in groups for row in group.rows]
    ids = _integers([e.id for e in episodes])
    found, times = torch.unique(ids, return_counts=True)
    if repeated := found[times > 1].tolist():
        raise WrongBatch(f"sequence ids must be unique in a batch; repeated: {repeated[:5]}")
    return {
        "id": ids,
        "group": _integers([e.group for e in episodes]),
        "prompt_length": _integers([e.prompt_length for e in episodes]),
        "stop": _integers([int(e.stop) for e in episodes]),
        "admitted": _integers([group.ticket.version for group in groups for _ in group.rows]),
        "role": _integers([seed_for("role", e.prompt.source) for e in episodes]),
        "greedy": torch.tensor(
            [_greedy(group) for group in groups for _ in group.rows], dtype=torch.float64
        ),
    }


def _greedy(group: Group) -> float:
    outcome = group.greedy.outcome if group.greedy is not None else None
    return outcome.value if isinstance(outcome, Scored) else float("nan")


def _counted(mask: Tensor, ends: Tensor) -> Tensor:
    """(S,) int64: how many tokens of each row the mask holds."""
    counts = torch.cat([ends.new_zeros(1), mask.cumsum(0)])[ends]
    return counts.diff(prepend=ends.new_zeros(1))


def _on_last_actions(score: Tensor, action: Tensor, actions: Tensor) -> Tensor:
    """(T,) float32: each row's score on its last action token."""
    has = actions > 0
    last = action.nonzero().squeeze(1)[actions.cumsum(0)[has] - 1]
    reward = torch.zeros(action.numel(), dtype=torch.float32)
    reward[last] = score[has].float()
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


def _metrics(
    batch: Batch, rows: _Rows, masked: dict[Masked, Tensor], components: Sequence[str]
) -> dict[str, Measure]:
    table = batch.sequences
    score, finished = table["score"][rows.scored], table["stop"] == StopReason.STOP
    actions = table["actions"]
    metrics = {
        "tokens/generated": total(float(actions.sum())),
        "tokens/trained": total(float(table["trained"].sum())),
        **{f"tokens/masked/{why.value}": total(float(n.sum())) for why, n in masked.items()},
        "samples/generated": total(float(len(batch))),
        "samples/failed": total(float(rows.failed.sum())),
        "samples/unscored": total(float((~rows.scored & ~rows.failed).sum())),
        "reward/mean": mean_of(float(score.sum()), score.numel()),
        "answer/length": mean_of(float(actions.sum()), len(batch)),
        "answer/finished_length": mean_of(float(actions[finished].sum()), int(finished.sum())),
        "answer/cut": mean_of(float(rows.cut.sum()), len(batch)),
    }
    if "shaped" in table:
        added = (table["shaped"] - table["score"])[rows.scored]
        metrics["reward/shaping"] = mean_of(float(added.sum()), added.numel())
    known = table["greedy"][table["greedy"].isfinite()]
    if known.numel():
        metrics["reward/greedy"] = mean_of(float(known.sum()), known.numel())
    if score.numel():
        metrics["reward/max"] = largest(float(score.max()))
        metrics["reward/min"] = smallest(float(score.min()))
    for place, name in enumerate(components):
        column = table["components"][:, place]
        present = ~column.isnan() & rows.scored
        metrics[f"reward/{name}"] = mean_of(float(column[present].sum()), int(present.sum()))
    return metrics
