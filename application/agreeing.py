"""Do the replicas compute what the trainer computes? A short probe asks each one (C1, G1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from hexpo.application.ports.rollout import Generation, Request, RolloutEngine
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import Metrics, merge
from hexpo.domain.sampling import Sampling
from hexpo.domain.seeds import seed_for
from hexpo.domain.tolerance import Comparison, Tolerance, Verdict, compare

log = logging.getLogger(__name__)

_FIRST_ID = -(2**40)
"""Ids of the probe's rows, far from those of trajectories."""


@attrs.frozen(kw_only=True)
class ProbeSettings:
    """What is asked, and what is done about the answer."""

    tolerance: Tolerance
    """Of the coarser of the two engines' types."""
    tokens: int = attrs.field(default=32, validator=attrs.validators.ge(1))
    """Sampled for each prompt. With few, one unlikely token's rounding moves the mean too far."""
    temperature: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """The run's: the trainer scores at it."""
    seed: int = 0
    stop: bool = True
    """A disagreement ends the run; else it is a warning."""
    bound_seconds: float = attrs.field(default=60.0, validator=attrs.validators.gt(0))
    """Longest probe of all replicas together."""


class Probe:
    """Has every replica answer a few prompts, and the trainer score the same ids.

    Costs prompts x tokens on each replica and one scoring pass; may be run at any time while the
    rollout generates. Aged tokens of the training itself cannot show this: their gap holds the
    policy's own change.
    """

    def __init__(
        self,
        settings: ProbeSettings,
        *,
        trainer: Scorer,
        store: RowStore,
        replicas: Callable[[], Mapping[str, RolloutEngine]],
        prompts: Sequence[tuple[int, ...]],
    ) -> None:
        """Args: replicas: those that serve now, by the name that errors give them.
        prompts: ids; a few real ones show outliers, a single one is enough after a transfer.
        """
        self._settings, self._trainer, self._store = settings, trainer, store
        self._replicas, self._prompts = replicas, tuple(prompts)

    async def check(self, version: int) -> Metrics:
        """Compare every replica with the trainer.

        Args: version: of the trainer's present weights.
        Raises: EngineFailed: names the replicas that disagree, did not answer within the bound,
            or answered under another version.
        """
        replicas = self._replicas()
        answers = await self._asked(replicas, version)
        rows, batch = self._batch(answers)
        self._store.put(batch)
        try:
            await self._trainer.score(rows, {"old"})
            stored = self._store.get(rows.ids, ["old", "behaviour", "action"])
        finally:
            self._store.drop(rows.ids)
        action_T, owner_T = stored["action"], batch.owner
        owner_T = owner_T[action_T] // len(self._prompts)
        old_T, behaviour_T = stored["old"][action_T], stored["behaviour"][action_T]
        found: dict[str, Comparison] = {}
        for place, name in enumerate(replicas):
            mine_T = owner_T == place
            found[name] = compare(
                trainer_T=old_T[mine_T],
                engine_T=behaviour_T[mine_T],
                owner_T=batch.owner[action_T][mine_T] % len(self._prompts),
                rows=len(self._prompts),
                tolerance=self._settings.tolerance,
            )
        self._judge(found, version)
        return merge([comparison.metrics for comparison in found.values()])

    async def _asked(self, replicas: Mapping[str, RolloutEngine], version: int) -> list[Generation]:
        """In the order of replicas, then prompts."""
        tasks = {
            (name, place): asyncio.create_task(engine.generate(self._request(name, place)))
            for name, engine in replicas.items()
            for place in range(len(self._prompts))
        }
        try:
            await asyncio.wait(tasks.values(), timeout=self._settings.bound_seconds)
        finally:
            late = {name for (name, _), task in tasks.items() if not task.done()}
            for task in tasks.values():
                task.cancel()
        if late:
            raise EngineFailed(
                f"{', '.join(sorted(late))} did not answer the probe of version {version} within"
                f" {self._settings.bound_seconds:g} s"
            )
        answers = {key: task.result() for key, task in tasks.items()}
        wrong = {
            name
            for (name, _), answer in answers.items()
            if any(span.version != version for span in answer.spans)
        }
        if wrong:
            raise EngineFailed(
                f"{', '.join(sorted(wrong))} answered the probe of version {version} under another"
                " version"
            )
        return list(answers.values())

    def _request(self, name: str, place: int) -> Request:
        chosen = self._settings
        return Request(
            id=f"probe.{name}.{place}",
            prompt=self._prompts[place],
            sampling=Sampling(
                max_new_tokens=chosen.tokens,
                min_new_tokens=chosen.tokens,
                temperature=chosen.temperature,
            ),
            seed=seed_for(chosen.seed, "probe", place),
            priority=-1,
        )

    def _batch(self, answers: Sequence[Generation]) -> tuple[Sequences, Batch]:
        prompts = [
            torch.tensor(self._prompts[place % len(self._prompts)]) for place in range(len(answers))
        ]
        lengths_S = torch.tensor(
            [len(p) + len(a.tokens) for p, a in zip(prompts, answers, strict=True)]
        )
        before_S = torch.tensor([len(prompt) for prompt in prompts])
        ids_S = _FIRST_ID + torch.arange(len(answers))
        rows = Sequences.of(
            {"id": ids_S, "length": lengths_S, "group": ids_S, "prompt_length": before_S}
        )
        pairs = list(zip(prompts, answers, strict=True))
        position_T = torch.cat([torch.arange(int(length)) for length in lengths_S])
        tokens = {
            "token": torch.cat([torch.cat([p, a.tokens]) for p, a in pairs]),
            "position": position_T,
            "action": position_T >= torch.repeat_interleave(before_S, lengths_S),
            "behaviour": torch.cat([_behind(len(p), a.logprobs) for p, a in pairs]),
        }
        return rows, Batch.of(rows, _typed(tokens, rows))

    def _judge(self, found: Mapping[str, Comparison], version: int) -> None:
        chosen = self._settings
        for name, comparison in found.items():
            if comparison.verdict is Verdict.OUTLIERS:
                log.warning(
                    "%s, version %d: probes %s disagree with the trainer (%s)",
                    name, version, comparison.outliers, comparison.words,
                )  # fmt: skip
        wrong = [name for name, one in found.items() if one.verdict is Verdict.DISAGREES]
        if not wrong:
            return
        message = (
            f"version {version}: the log-probs of "
            + "; ".join(f"{name} ({found[name].words})" for name in wrong)
            + f" are not the trainer's (tolerance {chosen.tolerance.mean:g} on average): stale or"
            " wrong weights, another temperature, or another model"
        )
        if chosen.stop:
            raise EngineFailed(message)
        log.warning("%s", message)


def _behind(before: int, logprobs_A: Tensor) -> Tensor:
    return torch.cat([logprobs_A.new_zeros(before), logprobs_A])


def _typed(tokens: Mapping[str, Tensor], rows: Sequences) -> dict[str, Tensor]:
    """In the types that the schema declares."""
    declared = rows.schema.tokens
    return {name: column.to(declared[name].dtype) for name, column in tokens.items()}
