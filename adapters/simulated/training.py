"""A training engine that learns nothing, takes its time, and remembers what it was given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from pathlib import Path

from hexpo.adapters.simulated.memory import Held
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.training import StepResult, TrainingCapabilities
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import CheckpointError, Unsupported
from hexpo.domain.estimators import Estimator
from hexpo.domain.metrics import Metrics
from hexpo.domain.objective import Objective


class SimulatedTraining:
    """`trained` lists, for each optimizer step, the row ids it was accumulated from."""

    def __init__(
        self, store: RowStore, *, step_seconds: float = 0.0, held: Held | None = None
    ) -> None:
        """Args: held: its memory on a counted device; None: it needs none."""
        self._store, self._step_seconds, self._held = store, step_seconds, held
        self._version = 0
        self._part: list[int] = []
        self.trained: list[list[int]] = []
        self.capabilities = TrainingCapabilities(packing=True, offload=True)

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Every scored column repeats the behaviour's."""
        self._require("score")
        behaviour = self._store.get(rows.ids, ["behaviour"])["behaviour"]
        self._store.extend(rows.ids, {name: behaviour.clone() for name in columns})
        return {}

    async def compute(self, rows: Sequences, estimator: Estimator) -> Metrics:
        """Not simulated."""
        raise Unsupported(f"simulated training runs no token estimator ({estimator.function!r})")

    async def accumulate(self, rows: Sequences, objective: Objective) -> Metrics:
        """Remembers the rows, after checking that their tokens are there."""
        self._require("train")
        stored = [name for name in objective.token_columns if name not in rows]
        self._store.get(rows.ids, stored)
        self._part += rows.ids.tolist()
        return {}

    async def step(self) -> StepResult:
        """Takes `step_seconds`."""
        self._require("step")
        await asyncio.sleep(self._step_seconds)
        self.trained.append(self._part)
        self._part = []
        return StepResult(applied=True, metrics={})

    async def publish(self) -> int:
        """The next version."""
        self._version += 1
        return self._version

    async def send(self, update: Update) -> Digest:
        """There are no weights."""
        self._require("send")
        return Digest(tensors=0, bytes=0, checksum="")

    async def offload(self) -> None:
        """Frees what it holds."""
        if self._held is not None:
            await self._held.offload()

    async def onload(self) -> None:
        """Takes it again."""
        if self._held is not None:
            await self._held.onload()

    def view(self, name: str) -> Scorer:
        """Itself: nothing is learnt."""
        return self

    async def save(self, folder: Path) -> None:
        """Version and history."""
        state = json.dumps({"version": self._version, "trained": self.trained})
        await asyncio.to_thread(folder.mkdir, parents=True)
        await asyncio.to_thread((folder / "state.json").write_text, state)

    async def saved(self) -> None:
        """`save` wrote at once."""

    async def load(self, folder: Path) -> None:
        """What `save` wrote."""
        try:
            state = json.loads(await asyncio.to_thread((folder / "state.json").read_text))
        except OSError as error:
            raise CheckpointError(f"{folder}/state.json is missing") from error
        self._version, self.trained = state["version"], state["trained"]

    async def export(self, folder: Path) -> None:
        """There are no weights: what was trained stands in their place."""
        await asyncio.to_thread((folder / "trained.json").write_text, json.dumps(self.trained))

    async def close(self) -> None:
        """Frees what it holds."""
        await self.offload()

    def _require(self, what: str) -> None:
        if self._held is not None:
            self._held.require(what)
