"""Weights of SmolLM2-135M from a trainer to a vLLM replica, beside the engine's own reload.

    python tests/benchmarks/transfer_vllm.py [--repeats 5]

The bar: what is moved takes at most twice the time of copying the same bytes in memory. `reload` is
vLLM's own work (loading, packing): a load of weights that lie in the replica already, neither moved
nor checked. `moved` is the transfer without it, checksums and confirmation included. Each process
has one thread. Medians over the repeats, after one round that is not counted. Needs `.venv-vllm`
(make test-engines).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure import HERE, ROOT, calibrated, print_table, restart_with_process_settings
from transfer import MODEL, READER, Trainer

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
OPTIONS = {"slots": 8, "max_tokens": 512}


class Receiver:
    """In vLLM's worker: keeps what came first, for loads that move nothing and check nothing."""

    def __init__(self, reader: str) -> None:
        from hexpo.adapters.rollout.vllm import worker
        from hexpo.adapters.transfer import shared_memory

        self._receive = shared_memory.build_receiver(reader=reader)
        self._kept: list[tuple[str, Any]] = []
        self._check, self._is_kept = worker.checked, False
        worker.checked = self._checked

    def __call__(self, update: Any, *, keep: bool = False) -> Iterable[tuple[str, Any]]:
        self._is_kept = bool(update.address.get("kept"))
        if self._is_kept:
            return iter(self._kept)
        return self._receive(update, keep=keep) if self._kept else self._keeping(update)

    def _keeping(self, update: Any) -> Iterable[tuple[str, Any]]:
        for name, tensor in self._receive(update):
            self._kept.append((name, tensor.clone()))
            yield self._kept[-1]

    def _checked(self, stream: Any, wanted: Any, digester: Any) -> Any:
        return stream if self._is_kept else self._check(stream, wanted, digester)


def build_receiver(*, reader: str) -> Receiver:
    """What vLLM's worker builds."""
    return Receiver(reader)


def copied(trainer: Trainer) -> float:
    """Seconds of copying all weights in memory, into pages that are there."""
    tensors = [weight.tensor for weight in trainer.stream()]
    copies = [tensor.clone() for tensor in tensors]
    began = time.perf_counter()
    for tensor, copy in zip(tensors, copies, strict=True):
        copy.copy_(tensor)
    return time.perf_counter() - began


async def measured(repeats: int, folder: Path) -> list[dict[str, float]]:
    """Parts of each transfer."""
    from hexpo.adapters.cluster import local
    from hexpo.adapters.rollout.vllm import SERVE, Config, environment
    from hexpo.adapters.rollout.wire import connect
    from hexpo.application.ports.cluster import ProcessSpec
    from hexpo.application.ports.rollout import PauseMode
    from hexpo.application.ports.transfer import Update
    from hexpo.domain.metrics import values
    from hexpo.infrastructure.parts import make

    trainer = Trainer("shared_memory")
    config = Config(python=str(PYTHON))
    cluster = local.build(local.Config(oversubscribe=True), folder=folder)
    spec = ProcessSpec(
        name=READER,
        entry=SERVE,
        value={"model": MODEL, "options": OPTIONS, "receiver": Path(__file__).stem},
        environment={**environment(config), "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
        python=config.python,
    )
    try:
        began = time.perf_counter()
        (process,) = await cluster.start([spec])
        replica = await connect(process)
        print(f"started in {time.perf_counter() - began:.1f} s", flush=True)
        await replica.pause(PauseMode.DRAIN)
        transfer = make(
            "transfer", "shared_memory", {}, training=trainer, replicas={READER: replica}
        )
        found = []
        for version in range(repeats + 1):
            metrics = values(await transfer.transfer(version))
            began = time.perf_counter()
            await replica.load_weights(Update(version=version, address={"kept": True}))
            reload = time.perf_counter() - began
            copy = statistics.median(copied(trainer) for _ in range(3))
            parts = {"copy": copy, "send": trainer.computed, "reload": reload}
            found.append({**parts, "transfer": metrics["time/transfer"]})
        await transfer.close()
        await replica.close()
        return found[1:]
    finally:
        await cluster.close()


def main() -> None:
    """Measure and print the parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with calibrated(), tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(arguments.repeats, Path(folder)))

    def median(name: str) -> float:
        return statistics.median(one[name] for one in found)

    moved = statistics.median(one["transfer"] - one["reload"] for one in found)
    header = ("kind", "copy", "send (CPU)", "transfer", "reload", "moved", "copies")
    parts = [median(name) for name in ("copy", "send", "transfer", "reload")]
    print_table("Seconds", header, [("shared_memory", *parts, moved, moved / median("copy"))])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(HERE))
    restart_with_process_settings()
    main()
