"""The probe that compares every replica with the trainer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, cast

import attrs
import pytest
import torch
from torch import Tensor

from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.application.agreeing import Probe, ProbeSettings
from hexpo.application.ports.rollout import Generation, Request, RolloutEngine, Span
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import Metrics, values
from hexpo.domain.tolerance import Tolerance
from hexpo.domain.trajectory import StopReason

TOLERANCE = Tolerance(mean=1e-3, sequence=1e-2)
PROMPTS = [(5, 6, 7), (9,), (1, 2)]


def logprob(ids: Tensor) -> Tensor:
    """What a model says of each id of a sequence: a function of it and the one before."""
    before = torch.cat([ids[:1], ids[:-1]])
    return -1 - 0.1 * (ids % 7) - 0.01 * (before % 3)


class Replica:
    """Answers from the same table, `off` nats away on the prompts of some places."""

    def __init__(self, *, off: float = 0.0, of: Collection[int] = range(3)) -> None:
        self.off, self.of, self.version, self.hangs = off, of, 4, False
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Generation:
        self.requests.append(request)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        generator = torch.Generator().manual_seed(request.seed)
        count = request.sampling.max_new_tokens
        tokens = torch.randint(0, 50, (count,), generator=generator)
        ids = torch.cat([torch.tensor(request.prompt), tokens])
        wrong = self.off if PROMPTS.index(request.prompt) in self.of else 0.0
        return Generation(
            tokens=tokens,
            logprobs=(logprob(ids)[-count:] + wrong).float(),
            spans=(Span(0, count, self.version),),
            stop=StopReason.LENGTH,
        )


class Trainer:
    """Scores by the table."""

    def __init__(self, store: MemoryRowStore) -> None:
        self._store = store

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        assert set(columns) == {"old"}
        found = self._store.get(rows.ids, ["token", "action"])
        parts = torch.split(found["token"], rows.lengths.tolist())
        old = torch.cat([logprob(part) for part in parts]).float()
        self._store.extend(rows.ids, {"old": torch.where(found["action"], old, 0.0)})
        return {}


@attrs.frozen(eq=False)
class Bench:
    probe: Probe
    store: MemoryRowStore
    replicas: dict[str, Replica]

    def check(self, version: int = 4) -> dict[str, float]:
        try:
            return values(asyncio.run(self.probe.check(version)))
        finally:
            assert len(self.store) == 0


def bench(replicas: dict[str, Replica], **settings: Any) -> Bench:
    store = MemoryRowStore()
    probe = Probe(
        ProbeSettings(tolerance=TOLERANCE, **settings),
        trainer=Trainer(store),
        store=store,
        replicas=lambda: cast(dict[str, RolloutEngine], replicas),
        prompts=PROMPTS,
    )
    return Bench(probe, store, replicas)


def test_replicas_that_agree_pass_and_are_asked_the_same() -> None:
    """G1: equal seeds and sampling at every replica; the rows are forgotten."""
    of = bench({"one": Replica(), "two": Replica()}, tokens=5, temperature=0.7)
    found = of.check()
    assert found["agreement/probe"] == pytest.approx(0, abs=1e-6)
    assert found["agreement/outliers"] == 0
    asked = [
        [(one.prompt, one.seed, one.sampling) for one in replica.requests]
        for replica in of.replicas.values()
    ]
    assert asked[0] == asked[1]
    assert {one.sampling.temperature for one in of.replicas["one"].requests} == {0.7}
    assert len({one.seed for one in of.replicas["one"].requests}) == 3


def test_a_replica_with_other_weights_is_named_and_stops_the_run() -> None:
    """C1, G1: only that one, with its gap."""
    of = bench({"one": Replica(), "two": Replica(off=0.13)})
    with pytest.raises(EngineFailed, match=r"version 4: the log-probs of two \(mean gap 0.13") as e:
        of.check()
    assert "one" not in str(e.value).replace("none", "").split("are not")[0]


def test_a_disagreement_may_be_a_warning_only(caplog: pytest.LogCaptureFixture) -> None:
    """C1: it can stop the run; it need not."""
    of = bench({"one": Replica(off=0.13)}, stop=False)
    with caplog.at_level(logging.WARNING):
        assert of.check()["agreement/probe"] == pytest.approx(0.13, abs=1e-5)
    assert "are not the trainer's" in caplog.text


def test_outliers_are_warned_of_by_place(caplog: pytest.LogCaptureFixture) -> None:
    """C1: one of three prompts is far off."""
    of = bench({"one": Replica(off=0.05, of=[1])}, tokens=8)
    strict = attrs.evolve(of.probe._settings, tolerance=Tolerance(mean=0.1, sequence=0.02))
    of.probe._settings = strict
    with caplog.at_level(logging.WARNING):
        assert of.check()["agreement/outliers"] == 1
    assert "probes (1,) disagree" in caplog.text


def test_a_replica_that_is_late_or_at_another_version_is_named() -> None:
    """G10, G2: within the bound."""
    late = Replica()
    late.hangs = True
    of = bench({"one": Replica(), "two": late}, bound_seconds=0.05)
    with pytest.raises(
        EngineFailed, match=r"two did not answer the probe of version 4 within 0.05"
    ):
        of.check()
    of = bench({"one": Replica()})
    with pytest.raises(EngineFailed, match="one answered the probe of version 5 under another"):
        of.check(5)
