"""The engine of the loop over N ranks: it holds row ids and counts, never a token."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection
from pathlib import Path

import attrs

from hexpo.adapters.training.backend import Abilities, Added, Gradient, Progress
from hexpo.adapters.training.host.calls import Ranks
from hexpo.adapters.training.host.order import shared, together
from hexpo.adapters.training.wire import (
    counted,
    describe,
    kept_columns,
    progress_of,
    skipped,
)
from hexpo.application.disk import on_disk
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.training import StepResult, TrainingCapabilities
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.aggregate import Unit
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import CheckpointError, Unsupported, WrongBatch
from hexpo.domain.estimators import Estimator
from hexpo.domain.metrics import Metrics, merge, total
from hexpo.domain.objective import Objective

_log = logging.getLogger(__name__)


@attrs.define
class _Step:
    """What has been accumulated since the last step."""

    tokens: int = 0
    parts: int = 0
    spoilt: list[int] = attrs.field(factory=list)


class RankedEngine:
    """Implements TrainingEngine. A rank that fails or dies ends the engine, with its cause."""

    def __init__(
        self, ranks: Ranks, abilities: Abilities, *, tokenizer: Tokenizer, sends: bool
    ) -> None:
        """Args: tokenizer: written beside an exported model. sends: ranks have a sender."""
        self._ranks, self._abilities = ranks, abilities
        self._tokenizer, self._sends = tokenizer, sends
        self._progress, self._step = Progress(), _Step()
        self._base: str | None = None
        self._writing: asyncio.Future[None] | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def capabilities(self) -> TrainingCapabilities:
        """Those of the backend."""
        return TrainingCapabilities(
            packing=self._abilities.packs,
            lora=True,
            value_head=True,
            offload=self._abilities.device != "cpu",
            views=frozenset({"reference"}) if self._abilities.has_reference else frozenset(),
        )

    @property
    def _shares(self) -> int:
        """Teams of ranks: each takes a share of the rows."""
        return len(self._ranks) // self._abilities.team

    @property
    def version(self) -> int:
        """Publications so far."""
        return self._progress.version

    # ---- scoring ----

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Let each rank write the columns of its rows."""
        if unknown := sorted(set(columns) - self._abilities.scores):
            raise Unsupported(
                f"the training engine does not make the columns {', '.join(unknown)};"
                f" it makes {', '.join(sorted(self._abilities.scores))}, and `reference` by its"
                " view"
            )
        return await self._score(rows, {name: name for name in columns}, reference=False)

    async def score_reference(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write what the model before training says: `reference`, log-probs of the sampled ids,
        and `reference_topk`, `reference_ids`, its likeliest ones."""
        made = kept_columns("reference")
        if set(columns) - made.keys():
            raise Unsupported(f"a reference makes {', '.join(made)}, not {sorted(columns)}")
        return await self._score(rows, {name: made[name] for name in columns}, reference=True)

    async def _score(self, rows: Sequences, columns: dict[str, str], *, reference: bool) -> Metrics:
        async with self._lock:
            if len(rows) and columns:
                packed = shared(rows, self._shares, (), columns)
                await self._ranks.all("score", packed, reference)
        return {"score/tokens": total(float(rows.lengths.sum()))}

    def view(self, name: str) -> Scorer:
        """`reference`: the model before training. Raises Unsupported: another name; none held."""
        if name != "reference":
            raise Unsupported(f"this engine holds no view {name!r}; it holds `reference`")
        if not self._abilities.has_reference:
            raise Unsupported("no reference is kept: set `reference = true` for the engine")
        return _Reference(self)

    async def compute(self, rows: Sequences, estimator: Estimator) -> Metrics:
        """Run a token estimator over all the rows together, on the first rank."""
        needs = estimator.needs
        names = {*needs.tokens, *needs.sequences}
        async with self._lock:
            packed = together(rows, self._shares, names, estimator)
            await self._ranks.first("compute", packed)
        return {}

    # ---- learning ----

    async def accumulate(self, rows: Sequences, objective: Objective) -> Metrics:
        """Add the rows' gradients on all ranks. Cancellation: waits until the ranks have added
        them, and forgets them."""
        pairs = any(term.loss.unit is Unit.PAIR for term in objective.terms)
        columns = objective.sequence_columns | objective.token_columns | {"weights"}
        async with self._lock:
            self._ranks.require_alive()
            if not len(rows):
                return {}
            packed = shared(rows, self._shares, columns, objective, keep_groups=pairs)
            try:
                found: list[tuple[Added, int]] = await self._ranks.all(
                    "accumulate", packed, self._progress.applied, self._step.parts
                )
            except asyncio.CancelledError:
                self._step = _Step()
                await asyncio.shield(self._ranks.all("forget"))
                raise
            heard = [added for added, _ in found[:: self._abilities.team]]
            for added in heard:
                self._step.tokens += added.tokens
                self._step.spoilt += added.spoilt
            self._step.parts += found[0][1]
            return merge(added.metrics for added in heard)

    async def step(self) -> StepResult:
        """Apply what was accumulated on all ranks, or skip it on all of them.

        Raises: NonFinite: this was the last of `max_skipped_steps` non-finite steps in a row.
        """
        async with self._lock:
            step, self._step = self._step, _Step()
            if not step.tokens or step.spoilt:
                await self._ranks.all("forget")
                return self._skip(step, Gradient(0.0))
            applied = self._progress.applied
            found: list[tuple[Gradient, Metrics | None]] = await self._ranks.all("finish", applied)
            gradient, metrics = found[0]
            if metrics is None:
                bad = next((each.bad for each, _ in found if each.bad), "the norm of all weights")
                return self._skip(step, Gradient(gradient.norm, bad))
            self._progress = attrs.evolve(self._progress, applied=applied + 1, skipped_in_row=0)
            return StepResult(applied=True, metrics=metrics)

    def _skip(self, step: _Step, gradient: Gradient) -> StepResult:
        is_finite = not step.spoilt and math.isfinite(gradient.norm)
        self._progress = counted(self._progress, is_finite=is_finite)
        return skipped(
            self._progress,
            gradient,
            spoilt=step.spoilt,
            is_finite=is_finite,
            most=self._abilities.max_skipped_steps,
        )

    async def publish(self) -> int:
        """Count the present weights as the next policy version."""
        async with self._lock:
            self._ranks.require_alive()
            version = self._progress.version + 1
            self._progress = attrs.evolve(self._progress, version=version)
            return version

    async def send(self, update: Update) -> Digest:
        """Gather layer by layer on all ranks; the first one sends."""
        if not self._sends:
            raise Unsupported("the training ranks were started without a sender")
        async with self._lock:
            digest: Digest = (await self._ranks.all("send", update))[0]
            return digest

    async def offload(self) -> None:
        """Every rank gives its device's memory back."""
        if not self.capabilities.offload:
            raise Unsupported("training on a CPU cannot offload: host memory is all there is")
        async with self._lock:
            await self._ranks.all("offload")

    async def onload(self) -> None:
        """Every rank takes it again."""
        async with self._lock:
            await self._ranks.all("onload")

    # ---- files ----

    async def save(self, folder: Path) -> None:
        """Every rank writes its part, at once or beside the training that follows; the description
        comes last. Raises WrongBatch: gradients are pending."""
        async with self._lock:
            if self._step.tokens:
                raise WrongBatch("a save in the middle of an optimizer step: call step() first")
            await self._saved()
            base, progress = await self._base_digest(), self._progress
            if not self._abilities.saves_aside:
                written = await self._ranks.all("save", str(folder))
                await self._describe(folder, progress, base, written)
                return
            await self._ranks.all("snapshot")
            self._writing = asyncio.ensure_future(self._write(folder, progress, base))

    async def _write(self, folder: Path, progress: Progress, base: str) -> None:
        written = await self._ranks.all("write", str(folder))
        await self._describe(folder, progress, base, written)

    async def _describe(
        self, folder: Path, progress: Progress, base: str, written: list[dict[str, int]]
    ) -> None:
        sizes = {file: size for part in written for file, size in part.items()}

        def write() -> None:
            with on_disk(folder):
                describe(folder, progress, base=base, sizes=sizes, ranks=len(self._ranks))

        await asyncio.to_thread(write)

    async def _saved(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def saved(self) -> None:
        """Wait for what is being written. Raises: why it could not be."""
        await self._saved()

    async def load(self, folder: Path) -> None:
        """Restore what any number of ranks saved (H8); pending gradients are forgotten."""
        async with self._lock:
            await self._saved()
            base = await self._base_digest()
            progress = await asyncio.to_thread(progress_of, folder, base=base)
            found = await self._ranks.all("load", str(folder), progress)
            if None in found:
                raise CheckpointError(f"{folder} could not be loaded by every rank")
            self._progress, self._step = progress, _Step()

    async def _base_digest(self) -> str:
        if self._base is None:
            digest: str = (await self._ranks.all("base_digest"))[0]
            self._base = digest
        return self._base

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face model folder, adapters merged, with the tokenizer."""
        async with self._lock:
            await self._ranks.all("export", str(folder))
            await asyncio.to_thread(self._tokenizer.save, folder)

    async def close(self) -> None:
        """End all ranks. Safe to call twice."""
        if not self._closed:
            self._closed = True
            if self._writing is not None:
                await asyncio.wait([self._writing])  # a save that has begun is not cut off
                if error := self._writing.exception():
                    _log.error("the last save is not whole: %s", error)
            await self._ranks.close()


class _Reference:
    """The model before training, as a scorer."""

    def __init__(self, engine: RankedEngine) -> None:
        self._engine = engine

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write `reference`, or its likeliest ids, for the rows."""
        return await self._engine.score_reference(rows, columns)
