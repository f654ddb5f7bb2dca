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
from torch import Tensor

from hexpo.adapters.cluster.wire.codec import decode, encode
from hexpo.adapters.stores import mapped
from hexpo.adapters.stores.mapped.spares import Spares
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
    """Milliseconds of the processor, of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        times.append(1000 * (time.thread_time() - began))
    return min(times)


def travel(batch: Batch, repeats: int) -> None:
    """A batch to a worker and a column back, each beside a copy of the same bytes within memory
    that is there already: once into new shared memory, then over what was dropped. All times are
    the thread's own, so that other work on the machine weighs less."""
    names = list(batch.columns)
    size = sum(column.numel() * column.element_size() for column in batch.columns.values())
    places = {name: column.clone() for name, column in batch.columns.items()}
    copied = best(lambda: [places[name].copy_(batch.columns[name]) for name in names])
    column = torch.zeros(int(batch.sequences.lengths.sum()))
    back = column.clone()
    back_copied = best(lambda: back.copy_(column))
    print(f"batch of {size / 1e6:.0f} MB: a copy within memory {copied:.1f} ms")
    print(f"column of {column.numel() * 4 / 1e6:.0f} MB: a copy within memory {back_copied:.1f} ms")
    store = mapped.build(mapped.Config(spare_bytes=0))
    worker = pickle.loads(pickle.dumps(store))
    for kind in ("into new memory", "over dropped rows"):
        rounds = [_round(store, worker, batch, names, column) for _ in range(repeats)]
        least = {what: min(one[what] for one in rounds) for what in rounds[0]}
        there = (least["put"] + least["seen"]) / copied
        again = (least["back"] + least["seen back"]) / back_copied
        both = sum(least[what] for what in ("put", "seen", "back", "seen back"))
        print(f"{kind}: " + ", ".join(f"{what} {ms:.1f} ms" for what, ms in least.items()))
        print(
            f"  there {there:.1f} copies, back {again:.1f}, both together"
            f" {both / (copied + back_copied):.1f}"
        )
        if kind == "into new memory":
            kept = Spares(store.folder, most_bytes=1 << 30, cool_seconds=0)
            worker._spares = store._spares = kept
            _round(store, worker, batch, names, column)
    store.close()


def _round(
    store: mapped.MappedRowStore,
    worker: mapped.MappedRowStore,
    batch: Batch,
    names: list[str],
    column: Tensor,
) -> dict[str, float]:
    """Milliseconds of the processor of each leg; the rows are gone afterwards."""
    ids = batch.sequences.ids
    share = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))[: len(ids) // 64]
    legs: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> None:
        began = time.thread_time()
        work()
        legs[what] = 1000 * (time.thread_time() - began)

    timed("put", lambda: store.put(batch))
    timed("seen", lambda: len(worker))
    timed("back", lambda: worker.extend(ids, {"old": column}))
    timed("seen back", lambda: len(store))
    timed("a 64th gathered", lambda: worker.get(ids[share], names))
    timed("all gathered", lambda: worker.get(ids, names))
    timed("column gathered", lambda: store.get(ids, ["old"]))
    timed("dropped", lambda: store.drop(ids))
    return legs


def main() -> None:
    """Print a line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--sequences", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = rows_of(options.sequences, options.tokens)
    for ranks in options.ranks:
        median, used = asyncio.run(driver(ranks, batch.sequences, options.repeats))
        print(f"{ranks} ranks: the driver's step {median:.0f} ms, of processor time {used:.0f} ms")
    travel(batch, options.rounds)


if __name__ == "__main__":
    main()
