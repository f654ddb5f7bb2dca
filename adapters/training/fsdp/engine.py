"""The asynchronous host of one rank: fetches rows, splits them, counts steps, merges metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.backend import Added, Gradient, Part, Progress
from hexpo.adapters.training.fsdp import checkpoint
from hexpo.adapters.training.fsdp.config import Config
from hexpo.adapters.training.fsdp.rank import Rank
from hexpo.adapters.training.fsdp.schedule import learning_rate
from hexpo.adapters.training.fsdp.stream import exported
from hexpo.adapters.training.wire import (
    by_row,
    columns_of,
    counted,
    joined,
    kept_columns,
    part_of,
    skipped,
    split_rows,
)
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.training import StepResult, TrainingCapabilities
from hexpo.application.ports.transfer import Digest, Send, Update
from hexpo.domain.aggregate import Unit
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import EngineFailed, HexpoError, Unsupported, WrongBatch
from hexpo.domain.estimators import Estimator
from hexpo.domain.metrics import Metrics, latest, mean_of, merge, total
from hexpo.domain.objective import Objective

_P = ParamSpec("_P")
_T = TypeVar("_T")


@attrs.define
class _Step:
    """What has been accumulated since the last step."""

    tokens: int = 0
    parts: int = 0
    spoilt: list[int] = attrs.field(factory=list)


class FsdpEngine:
    """Implements the TrainingEngine port in one process.

    All torch work runs in one thread of its own, a micro-batch at a time, so the event loop never
    waits and a cancelled call ends between micro-batches.
    """

    def __init__(
        self,
        rank: Rank,
        config: Config,
        *,
        policy: Policy,
        store: RowStore,
        tokenizer: Tokenizer,
        total_steps: int,
        release: Callable[[], None],
        send: Send | None = None,
    ) -> None:
        self._rank, self._config, self._policy = rank, config, policy
        self._store, self._tokenizer = store, tokenizer
        self._total_steps, self._release, self._send = total_steps, release, send
        self._progress = Progress()
        self._step = _Step()
        self._base: str | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fsdp")

    @property
    def capabilities(self) -> TrainingCapabilities:
        """Packing as the family allows; a reference where one is held."""
        views = frozenset({"reference"}) if self._rank.has_reference else frozenset()
        return TrainingCapabilities(
            packing=self._rank.packs, lora=True, value_head=True, views=views
        )

    @property
    def version(self) -> int:
        """Publications so far."""
        return self._progress.version

    async def _run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self._closed:
            raise EngineFailed("the training engine is closed")
        if self._failure is not None:
            raise EngineFailed("the training engine failed before") from self._failure
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))
        except HexpoError:
            raise
        except Exception as error:
            self._failure = error
            raise EngineFailed(f"training failed: {type(error).__name__}: {error}") from error

    # ---- scoring ----

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write `old` (log-probs of the present weights), `entropy` and `squares` for the rows; a
        critic writes `value`."""
        if unknown := sorted(set(columns) - self._rank.scores):
            raise Unsupported(
                f"the training engine does not make the columns {', '.join(unknown)};"
                f" it makes {', '.join(sorted(self._rank.scores))}, and `reference` by its view"
            )
        async with self._lock:
            self._store.extend(rows.ids, await self._measure(rows, columns, reference=False))
        return {"score/tokens": total(float(rows.lengths.sum()))}

    async def score_reference(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write what the model before training says: `reference`, log-probs of the sampled ids,
        and `reference_topk`, `reference_ids`, its likeliest ones."""
        made = kept_columns("reference")
        if set(columns) - made.keys():
            raise Unsupported(f"a reference makes {', '.join(made)}, not {sorted(columns)}")
        async with self._lock:
            asked = {made[name] for name in columns}
            found = await self._measure(rows, asked, reference=True)
            self._store.extend(rows.ids, {name: found[made[name]] for name in columns})
        return {"score/tokens": total(float(rows.lengths.sum()))}

    async def _measure(
        self, rows: Sequences, columns: Collection[str], *, reference: bool
    ) -> dict[str, Tensor]:
        def score(part: Part) -> dict[str, Tensor]:
            return self._rank.score(part, columns, reference=reference)

        pieces: list[dict[str, Tensor]] = [{}] * len(rows)
        for places in self._split(rows, keep_groups=False):
            part = part_of(self._store, rows.select(places), {"action"})
            found = await self._run(score, part)
            for place, piece in zip(places, by_row(found, part.sequences), strict=True):
                pieces[place] = piece
        return joined(pieces, columns)

    def view(self, name: str) -> Scorer:
        """`reference`: the model before training. Raises Unsupported: another name; none held."""
        if name != "reference":
            raise Unsupported(f"this engine holds no view {name!r}; it holds `reference`")
        if not self._rank.has_reference:
            raise Unsupported("no reference is kept: set `reference = true` for the engine")
        return _Reference(self)

    async def compute(self, rows: Sequences, estimator: Estimator) -> Metrics:
        """Run a token estimator over all the rows together, and write the columns that it gives."""
        needs = estimator.needs
        names = frozenset(needs.tokens) - {"owner"}
        async with self._lock:
            columns = columns_of(self._store, rows, names)
            columns["owner"] = torch.repeat_interleave(rows.lengths)
            arguments = {f"{name}_T": columns[name] for name in needs.tokens}
            arguments |= {f"{name}_S": rows[name] for name in needs.sequences}
            made = await self._run(estimator.function, **arguments, **estimator.options)
            if isinstance(made, Tensor):
                raise WrongBatch(
                    f"{_name_of(estimator)} gives one number a row: it is an outcome"
                    " estimator and runs on the driver"
                )
            self._store.extend(rows.ids, made)
        return {}

    # ---- learning ----

    async def accumulate(self, rows: Sequences, objective: Objective) -> Metrics:
        """Add the rows' gradients, a micro-batch at a time."""
        pairs = any(term.loss.unit is Unit.PAIR for term in objective.terms)
        async with self._lock:
            metrics: list[Metrics] = []
            try:
                for places in self._split(rows, keep_groups=pairs):
                    part = part_of(self._store, rows.select(places), objective.token_columns)
                    draw = (self._progress.applied, self._step.parts)
                    added = await self._run(self._rank.accumulate, part, objective, draw=draw)
                    metrics.append(added.metrics)
                    self._count(added)
            except asyncio.CancelledError:
                self._thread.submit(self._rank.masters.forget)  # after the part that still runs
                self._step = _Step()
                raise
            return merge(metrics)

    def _count(self, added: Added) -> None:
        self._step.tokens += added.tokens
        self._step.parts += 1
        self._step.spoilt += added.spoilt

    async def step(self) -> StepResult:
        """Apply what was accumulated, or skip it whole, and forget it.

        Raises: NonFinite: this was the last of `max_skipped_steps` non-finite steps in a row.
        """
        async with self._lock:
            step, self._step = self._step, _Step()
            gradient = await self._run(self._rank.masters.gradient) if step.tokens else Gradient(0)
            is_finite = not step.spoilt and not gradient.bad
            if step.tokens and is_finite:
                return await self._apply(gradient)
            await self._run(self._rank.masters.forget)
            return self._skip(step, gradient, is_finite=is_finite)

    async def _apply(self, gradient: Gradient) -> StepResult:
        applied = self._progress.applied
        rate = learning_rate(self._config, applied=applied, total_steps=self._total_steps)
        await self._run(self._rank.masters.apply, gradient.norm, rate)
        self._progress = attrs.evolve(self._progress, applied=applied + 1, skipped_in_row=0)
        self._release()
        clipped = bool(self._config.clip_norm) and gradient.norm > self._config.clip_norm
        return StepResult(
            applied=True,
            metrics={
                "train/gradient_norm": mean_of(gradient.norm, 1),
                "train/clipped_steps": total(clipped),
                "train/learning_rate": latest(rate),
                "train/skipped_steps": total(0),
            },
        )

    def _skip(self, step: _Step, gradient: Gradient, *, is_finite: bool) -> StepResult:
        self._release()
        self._progress = counted(self._progress, is_finite=is_finite)
        return skipped(
            self._progress,
            gradient,
            spoilt=step.spoilt,
            is_finite=is_finite,
            most=self._config.max_skipped_steps,
        )

    async def publish(self) -> int:
        """Count the present weights as the next policy version."""
        async with self._lock:
            version = self._progress.version + 1
            self._progress = attrs.evolve(self._progress, version=version)
            return version

    async def send(self, update: Update) -> Digest:
        """Send the present weights. Raises Unsupported: the engine was built without a sender, as
        with a rollout in this process, which reads these weights."""
        if self._send is None:
            raise Unsupported("this training engine was built without a sender")
        stream = exported(self._policy, self._policy.names(), sent=self._config.sent)
        async with self._lock:
            return await self._run(self._send, stream, update)

    async def offload(self) -> None:
        """Not on a CPU: host memory is all there is."""
        raise Unsupported("this training engine cannot offload")

    async def onload(self) -> None:
        """Nothing is ever away."""

    # ---- files ----

    async def save(self, folder: Path) -> None:
        """Write weights, optimizer state and counts. Raises WrongBatch: gradients are pending."""
        async with self._lock:
            if self._step.tokens:
                raise WrongBatch("a save in the middle of an optimizer step: call step() first")
            base = await self._base_digest()
            await self._run(checkpoint.write, folder, self._rank.masters, self._progress, base=base)

    async def saved(self) -> None:
        """Nothing is ever being written here."""

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote; pending gradients are forgotten."""
        async with self._lock:
            base = await self._base_digest()
            self._progress = await self._run(checkpoint.read, folder, self._rank.masters, base=base)
            self._step = _Step()

    async def _base_digest(self) -> str:
        if self._base is None:
            self._base = await self._run(self._rank.base_digest)
        return self._base

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face model folder, adapters merged, with the tokenizer."""
        async with self._lock:
            await self._run(self._rank.export, folder)
            await self._run(self._tokenizer.save, folder)

    async def close(self) -> None:
        """Let the thread end; free gradients, and what the sender maps or holds open."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._thread.shutdown)
            self._send = None
            self._rank.close()

    # ---- rows ----

    def _split(self, rows: Sequences, *, keep_groups: bool) -> list[list[int]]:
        return split_rows(
            rows,
            budget=self._config.micro_tokens,
            share_prompts=self._rank.packs,
            keep_groups=keep_groups,
        )


def _name_of(estimator: Estimator) -> str:
    return getattr(estimator.function, "__qualname__", None) or repr(estimator.function)


class _Reference:
    """The model before training, as a scorer."""

    def __init__(self, engine: FsdpEngine) -> None:
        self._engine = engine

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write `reference`, or its likeliest ids, for the rows."""
        return await self._engine.score_reference(rows, columns)
