"""What ranks cost the driver, and what it takes to bring a batch to a worker and back.

    python tests/benchmarks/ranks.py [--ranks 64 1024] [--sequences 4096] [--tokens 1000]

Ranks are simulated: they answer at once, but every message is packed and unpacked as between
processes. The batch goes through shared memory, through a second handle of the same store.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from hexpo.adapters.cluster.wire.codec import decode, encode
from hexpo.adapters.stores import mapped
from hexpo.adapters.training.backend import Abilities, Added, Gradient
from hexpo.adapters.training.host.calls import Ranks
from hexpo.adapters.training.host.engine import RankedEngine
from hexpo.application.ports.cluster import Death
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.metrics import mean_of, total
from hexpo.domain.objective import Loss, Objective, Term

PPO = Objective(terms=(Term(name="ppo", loss=Loss(function=ppo)),))
_METRICS = {f"train/number_{n}": mean_of(1.0, 10) for n in range(15)}
_ANSWERS: dict[str, Any] = {
    "accumulate": (Added(_METRICS, 64_000), 8),
    "score": True,
    "finish": (Gradient(1.0), {"train/gradient_norm": total(1.0)}),
}


class Simulated:
    """A rank that computes nothing."""

    def __init__(self, rank: int) -> None:
        self.name, self.pid = f"rank-{rank}", rank
        self._death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Both ways through the codec."""
        asked, *_ = decode([bytes(part) for part in encode((method, arguments, options))])
        return decode([bytes(part) for part in encode(_ANSWERS[asked])])

    async def death(self) -> Death:
        """Never before it is stopped."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """At once."""
        if not self._death.done():
            self._death.set_result(Death(name=self.name, cause="stopped", expected=True))


def rows_of(count: int, tokens: int) -> Batch:
    """Ragged rows in groups of eight, of `tokens` tokens on average."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(tokens // 2, tokens * 3 // 2, (count,), generator=draw)
    size = int(lengths.sum())
    table = Sequences.of(
        {
            "id": torch.arange(count),
            "group": torch.arange(count) // 8,
            "length": lengths,
            "prompt_length": torch.full((count,), tokens // 4),
            "trained": lengths - tokens // 4,
            "advantage": torch.randn(count, generator=draw),
        }
    )
    columns = {
        "token": torch.randint(0, 1000, (size,), generator=draw),
        "position": torch.arange(size),
        "behaviour": torch.zeros(size),
        "action": torch.ones(size, dtype=torch.bool),
        "trained": torch.ones(size, dtype=torch.bool),
    }
    return Batch.of(table, columns)


async def driver(ranks: int, rows: Sequences, repeats: int) -> tuple[float, float]:
    """Milliseconds of a step (score, accumulate, apply): the median by the clock, the mean of the
    processor, the ranks' half of the packing included."""
    processes = [Simulated(rank) for rank in range(ranks)]
    abilities = Abilities(
        packs=True,
        scores=frozenset({"old"}),
        has_reference=False,
        micro_tokens=8000,
        max_skipped_steps=3,
    )
    group = Ranks(processes, grace_seconds=1.0)
    engine = RankedEngine(group, abilities, tokenizer=None, sends=False)  # type: ignore[arg-type]
    times, started = [], time.process_time()
    for _ in range(repeats):
        began = time.perf_counter()
        weighed = PPO.weigh(rows)
        await engine.score(rows, ("old",))
        await engine.accumulate(weighed, PPO)
        await engine.step()
        times.append(1000 * (time.perf_counter() - began))
    used = 1000 * (time.process_time() - started) / repeats
    await engine.close()
    return statistics.median(times), used


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Milliseconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


def travel(batch: Batch) -> None:
    """A batch to a worker, a column back, each beside a copy of the same bytes in memory."""
    names = list(batch.columns)
    size = sum(column.numel() * column.element_size() for column in batch.columns.values())
    copied = best(lambda: [column.clone() for column in batch.columns.values()])
    store = mapped.build()
    began = time.perf_counter()
    store.put(batch)
    put = 1000 * (time.perf_counter() - began)
    worker = pickle.loads(pickle.dumps(store))
    ids = batch.sequences.ids
    worker.get(ids[:1], names)
    got = best(lambda: worker.get(ids, names))
    column = torch.zeros(int(batch.sequences.lengths.sum()))
    back_copied = best(lambda: column.clone())
    extended = []
    for name in ("old", "reference", "value", "entropy"):
        began = time.perf_counter()
        worker.extend(ids, {name: column})
        extended.append(1000 * (time.perf_counter() - began))
    read = best(lambda: store.get(ids, ["old"]))
    print(f"batch of {size / 1e6:.0f} MB: copy in memory {copied:.1f} ms")
    print(f"  put {put:.1f} ms, a worker's own rows (all of them) {got:.1f} ms")
    print(
        f"  a column of {column.numel() * 4 / 1e6:.0f} MB back: {min(extended):.1f} ms,"
        f" read {read:.1f} ms, its copy in memory {back_copied:.1f} ms"
    )
    store.close()


def main() -> None:
    """Print a line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--sequences", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = rows_of(options.sequences, options.tokens)
    for ranks in options.ranks:
        median, used = asyncio.run(driver(ranks, batch.sequences, options.repeats))
        print(f"{ranks} ranks: the driver's step {median:.0f} ms, of processor time {used:.0f} ms")
    travel(batch)


if __name__ == "__main__":
    main()
