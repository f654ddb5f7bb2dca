"""Optimizer steps as soon as their groups are there, and what must wait for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hexpo.domain.estimators import Estimator
from hexpo.domain.shaping.groups import Flat
from hexpo.infrastructure.config.algorithm import choices_of, estimators_of, objective_of
from hexpo.infrastructure.config.choices import Placement
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import Problem

_BY_LEARNERS = frozenset({"old", "entropy", "squares", "value"})
"""Token columns of models that learn from the batch, made before its first optimizer step."""
_OF_GROUPS = frozenset({"action", "behaviour", "owner", "reward", "teacher"})
"""Token columns of which an estimator may make advantages row by row."""


def streams(config: RunConfig) -> bool:
    """Whether a batch is trained part by part."""
    return config.asynchrony.placement is Placement.STREAMING


def streaming(config: RunConfig) -> Iterator[Problem]:
    """Parts give the gradients of the whole batch (A1), or are refused."""
    if not streams(config):
        return
    if reasons := list(_reasons(config)):
        yield Problem(
            "asynchrony.placement",
            f"streaming would change what is learnt: {'; '.join(reasons)}; use separate",
        )


def _reasons(config: RunConfig) -> Iterator[str]:
    chosen = config.training
    if chosen.updates_per_batch < 2:
        yield "an optimizer step needs all its groups, and training.updates_per_batch is 1"
    if chosen.epochs_per_batch > 1:
        yield (
            f"training.epochs_per_batch is {chosen.epochs_per_batch}, and a further pass begins"
            " after the last mini-batch of the one before"
        )
    if config.algorithm.zero_variance.treatment is not Flat.KEEP:
        yield (
            "algorithm.zero_variance.treatment leaves groups out, and mini-batches are cut evenly"
            " from what is left"
        )
    made = estimators_of(config)
    read = objective_of(config).token_columns.union(
        *(one.needs.tokens for one in (*made, *choices_of(config)))
    )
    if scored := sorted(read & _BY_LEARNERS):
        hint = " (algorithm.proximal=behaviour needs no old)" if "old" in scored else ""
        yield f"{', '.join(scored)} must be scored before the batch's first optimizer step{hint}"
    if any(not is_local(one) for one in made):
        yield (
            f"algorithm.advantage {config.algorithm.advantage.name}, with its options, compares"
            " all groups of the batch"
        )


def is_local(estimator: Estimator) -> bool:
    """Whether the advantages of a group follow from the group: tried on four groups, together and
    one by one. Estimators of tokens are known by what they read."""
    needs, options = estimator.needs, estimator.options
    if estimator.per_token:
        return _OF_GROUPS.issuperset(needs.tokens) and not options.get(
            "whitened", needs.options.get("whitened", False)
        )
    rows = _rows()
    if not set(needs.sequences) <= rows.keys():
        return False  # a user's own column
    if "components" in needs.sequences:
        count = len(options.get("components", ())) or 1
        rows["components"] = torch.rand(len(rows["group"]), count, generator=_drawing())
    together = _advantages(estimator, rows)
    alone = [
        _advantages(
            estimator, {name: column[rows["group"] == one] for name, column in rows.items()}
        )
        for one in set(rows["group"].tolist())
    ]
    return torch.equal(together, torch.cat(alone))


def _advantages(estimator: Estimator, rows: dict[str, Tensor]) -> Tensor:
    arguments = {f"{name}_S": rows[name] for name in estimator.needs.sequences}
    made = estimator.function(**arguments, **estimator.options)
    return made if isinstance(made, Tensor) else made["advantage"]


def _drawing() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _rows() -> dict[str, Tensor]:
    """Four groups of four rows: scores apart by far, some of them 0, one missing."""
    draw, groups, each = _drawing(), 4, 4
    size = groups * each
    group_S = torch.arange(groups).repeat_interleave(each)
    return {
        "group": group_S,
        "score": torch.rand(size, generator=draw) * 10**group_S * (torch.arange(size) % 7 > 0),
        "scored": torch.arange(size) != 5,
        "actions": torch.randint(1, 50, (size,), generator=draw),
        "greedy": torch.rand(size, generator=draw),
        "role": torch.zeros(size, dtype=torch.int64),
    }
