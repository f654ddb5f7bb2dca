"""Runs a reward model on the ids of an answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import attrs

from hexpo.domain.errors import ModelError, RewardUnavailable
from hexpo.domain.trajectory import Cause, Failed, Outcome, Scored, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from hexpo.adapters.models.families import Forward

HEAD = "value_head.weight"
"""The weight that makes a model folder one of a reward model: (1, H)."""


@attrs.frozen(kw_only=True)
class Config:
    """Which model scores."""

    path: str = attrs.field(validator=attrs.validators.min_len(1))
    """Folder of a model that `hexpo fit` trained with `bradley_terry`."""
    full_precision: bool = False
    """Single precision instead of bf16."""
    offset: float = 0.0
    """Added to every score: a reward model's zero means nothing."""
    scale: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """What the sum is multiplied by."""


class ModelReward:
    """A `RewardFunction`: the model's number at an answer's last token, as it was trained.

    All compute runs in one thread of its own, one prompt's answers at a time.
    """

    def __init__(self, config: Config, forward: Forward, head_1H: Tensor, *, vocabulary: int):
        self._config, self._forward, self._head_1H = config, forward, head_1H
        self._vocabulary = vocabulary
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward-model")
        self._closed = False

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        """One outcome a row, in order. Raises: RewardUnavailable: it is closed, or failed."""
        if self._closed:
            raise RewardUnavailable("the reward model is closed")
        causes = [self._refused(row) for row in rows]
        alive = [row for row, cause in zip(rows, causes, strict=True) if cause is None]
        loop = asyncio.get_running_loop()
        try:
            scores = await loop.run_in_executor(self._thread, self._scores, alive)
        except RuntimeError as error:
            raise RewardUnavailable(f"the reward model failed: {error}") from error
        values = iter(scores)
        return tuple(self._outcome(next(values)) if cause is None else cause for cause in causes)

    async def close(self) -> None:
        """Let the thread end. Safe to call twice."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)

    def _refused(self, row: Trajectory) -> Failed | None:
        if row.failure is not None:
            return row.failure
        if not bool(row.action[1:].any()):
            return Failed(cause=Cause.UNSUPPORTED, message="there is no answer to score")
        if int(row.tokens.max()) >= self._vocabulary:
            known = self._vocabulary
            return Failed(
                cause=Cause.UNSUPPORTED,
                message=f"id {int(row.tokens.max())} is none of the reward model's {known}",
            )
        return None

    def _scores(self, rows: Sequence[Trajectory]) -> list[float]:
        import torch

        from hexpo.adapters.models.layout import Rows

        if not rows:
            return []
        lengths = torch.tensor([len(row.tokens) for row in rows])
        selected = []
        for row in rows:
            last = torch.zeros(len(row.tokens), dtype=torch.bool)
            last[row.action.nonzero()[-1]] = True
            selected.append(last)
        asked = Rows(
            tokens_T=torch.cat([row.tokens for row in rows]),
            positions_T=torch.cat([torch.arange(len(row.tokens)) for row in rows]),
            lengths_S=lengths,
            prompt_lengths_S=torch.tensor([row.prompt_length for row in rows]),
            groups_S=torch.tensor([row.group for row in rows]),
            selected_T=torch.cat(selected),
        )
        with torch.no_grad():
            hidden_SH = self._forward.hidden(asked)
            return [float(one) for one in (hidden_SH.float() @ self._head_1H.t()).squeeze(1)]

    def _outcome(self, score: float) -> Outcome:
        if not math.isfinite(score):
            return Failed(cause=Cause.BAD_RESULT, message=f"the reward model gives {score}")
        chosen = self._config
        return Scored(value=(score + chosen.offset) * chosen.scale, components={"model": score})


def build(config: Config) -> ModelReward:
    """Load the reward model; answers must be of the tokenizer that it was trained with.

    Raises: ModelError: no such model, or one without a head of scores.
    """
    from hexpo.adapters.models.families import Packing, forward_of, kernels_for
    from hexpo.adapters.models.loading import load_policy
    from hexpo.adapters.models.policy import Precision

    head_1H = _head(config.path)
    precision = Precision.FP32 if config.full_precision else Precision.BF16
    policy = load_policy(config.path, precision=precision)
    policy.module.requires_grad_(requires_grad=False)
    policy.module.eval()  # type: ignore[no-untyped-call]
    forward = forward_of(policy, kernels_for(policy), packing=Packing.AUTO, checkpointing=False)
    return ModelReward(config, forward, head_1H, vocabulary=int(policy.config.vocab_size))


def _head(path: str) -> Tensor:
    from safetensors import safe_open

    from hexpo.adapters.models.loading import locate

    location = locate(path)
    for file in sorted(location.folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            if HEAD in opened.keys():
                head: Tensor = opened.get_tensor(HEAD).float()
                return head
    raise ModelError(
        f"the model in {location.folder} has no head of scores ({HEAD}): train one with"
        " algorithm.loss=bradley_terry and give its exported folder"
    )
