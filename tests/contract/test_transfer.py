"""What every transfer of weights promises. Sender and receivers run in threads of their own, each
with its own maps and sockets, as they would in processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import torch
from torch import Tensor

from hexpo.adapters.transfer import collective, disk, shared_memory
from hexpo.adapters.transfer.wire import SendAndLoad
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.transfer import Digest, Receive, Send, Update, Weight
from hexpo.domain.digest import Digester
from hexpo.domain.errors import EngineFailed
from hexpo.domain.metrics import values

MIB = 2**20


class Trainer:
    """The half of a training engine that sends."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.weights: dict[str, Tensor] = {}
        self.break_after: int | None = None

    def stream(self) -> Iterator[Weight]:
        for number, (name, tensor) in enumerate(self.weights.items()):
            if number == self.break_after:
                raise ValueError("the trainer broke")
            yield Weight(name=name, shape=tuple(tensor.shape), tensor=tensor)

    async def send(self, update: Update) -> Digest:
        return await asyncio.to_thread(self._send, self.stream(), update)


class Replica:
    """Copies what it receives; may be made to misbehave."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.version = 0
        self.weights: dict[str, Tensor] = {}
        self.spoil = lambda name, tensor: tensor
        self.keeps = False
        self.raises: Exception | None = None
        self.hangs = False
        self.reports: int | None = None

    async def load_weights(self, update: Update) -> Digest | None:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        digest = await asyncio.to_thread(self._load, update)
        self.version = update.version if self.reports is None else self.reports
        return digest

    def _load(self, update: Update) -> Digest:
        digester, weights = Digester(), dict[str, Tensor]()
        for name, tensor in self._receive(update, keep=self.keeps):
            if self.raises is not None:
                raise self.raises
            weights[name] = self.spoil(name, tensor if self.keeps else tensor.clone())
        for name, tensor in weights.items():  # behind all of them: what was kept is as it came
            digester.add(name, tensor)
        self.weights = weights
        return digester.digest


@attrs.frozen(eq=False)
class Bench:
    """A transfer under test."""

    transfer: SendAndLoad
    trainer: Trainer
    replicas: Mapping[str, Replica]
    folder: Path


def bench(
    module: Any, config: Any, folder: Path, *, names: Sequence[str] = ("one", "two")
) -> Bench:
    trainer = Trainer(module.build_sender())
    replicas = {name: Replica(module.build_receiver(reader=name)) for name in names}
    transfer = module.build(
        config, training=trainer, replicas=cast(Mapping[str, RolloutEngine], replicas)
    )
    return Bench(transfer, trainer, replicas, folder)


OpenBench = Callable[..., Bench]


def ring(folder: Path, bound: float = 20.0) -> Bench:
    config = shared_memory.Config(folder=str(folder), bucket_mib=1, bound_seconds=bound)
    return bench(shared_memory, config, folder)


def kept(folder: Path, bound: float = 20.0) -> Bench:
    config = shared_memory.Config(folder=str(folder), bucket_mib=1, buckets=0, bound_seconds=bound)
    return bench(shared_memory, config, folder)


def files(folder: Path, bound: float = 20.0) -> Bench:
    config = disk.Config(folder=str(folder), bucket_mib=1, bound_seconds=bound)
    return bench(disk, config, folder)


def broadcast(folder: Path, bound: float = 20.0) -> Bench:
    return bench(collective, collective.Config(bucket_mib=1, bound_seconds=bound), folder)


benches = pytest.mark.parametrize(
    "open_bench", [ring, kept, files, broadcast], ids=lambda f: f.__name__
)


def weights(seed: int = 0) -> dict[str, Tensor]:
    """6 MiB: scalars, nothing, odd sizes, every precision, one tensor of several buckets."""
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    layers = {f"layers.{i}.weight": some(300, 200).bfloat16() for i in range(12)}
    return {
        "embed": some(3000, 250),
        **layers,
        "norm": some(577).bfloat16(),
        "scale": some(),
        "nothing": some(0, 4),
        "bytes": (some(10001) * 20).to(torch.int8),
    }


def work(of: Bench, play: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        try:
            await play(of)
        finally:
            await of.transfer.close()

    asyncio.run(run())


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def assert_arrived(of: Bench, sent: Mapping[str, Tensor], version: int) -> None:
    for replica in of.replicas.values():
        assert replica.version == version
        assert set(replica.weights) == set(sent)
        for name, tensor in sent.items():
            assert replica.weights[name].dtype == tensor.dtype
            assert torch.equal(replica.weights[name], tensor)


@pytest.mark.parametrize("keeps", [False, True])
@benches
def test_every_tensor_arrives_bit_for_bit_at_every_replica(
    open_bench: OpenBench, tmp_path: Path, keeps: bool
) -> None:
    """G2, G3: three versions in a row, each other than the last; whether a replica copies what it
    gets, or has it made to keep."""

    async def play(of: Bench) -> None:
        for replica in of.replicas.values():
            replica.keeps = keeps
        for version in (1, 2, 7):
            of.trainer.weights = weights(version)
            metrics = values(await of.transfer.transfer(version))
            assert_arrived(of, of.trainer.weights, version)
            size = sum(tensor.nbytes for tensor in of.trainer.weights.values())
            assert metrics["transfer/bytes"] == size
            assert 0 < metrics["time/send"] <= metrics["time/transfer"]

    work(open_bench(tmp_path), play)


@benches
def test_a_replica_that_read_something_else_is_named(open_bench: OpenBench, tmp_path: Path) -> None:
    """G1: one value of one tensor, a missing tensor, another version."""

    async def play(of: Bench) -> None:
        of.trainer.weights = weights()

        def spoil(name: str, tensor: Tensor) -> Tensor:
            if name == "norm":
                tensor[3] += 1
            return tensor

        of.replicas["two"].spoil = spoil
        with pytest.raises(EngineFailed, match="did not arrive: two read 17 tensors"):
            await of.transfer.transfer(1)
        of.replicas["two"].spoil = lambda name, tensor: tensor
        of.replicas["one"].reports = 0
        with pytest.raises(EngineFailed, match="one reports version 0 after loading 2"):
            await of.transfer.transfer(2)
        of.replicas["one"].reports = None
        await of.transfer.transfer(3)
        assert_arrived(of, of.trainer.weights, 3)

    work(open_bench(tmp_path), play)


@benches
def test_a_replica_that_never_answers_is_named_within_the_bound(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    """G10, F4: the others got theirs; the next transfer works again."""

    async def play(of: Bench) -> None:
        of.trainer.weights = weights()
        of.replicas["two"].hangs = True
        with pytest.raises(EngineFailed, match="two"):
            async with asyncio.timeout(15):
                await of.transfer.transfer(1)
        of.replicas["two"].hangs = False
        await of.transfer.transfer(2)
        assert_arrived(of, of.trainer.weights, 2)

    work(open_bench(tmp_path, 2.0), play)


@benches
def test_a_replica_that_fails_is_named_with_its_cause(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    """O5: the first failure is the one shown."""

    async def play(of: Bench) -> None:
        of.trainer.weights = weights()
        of.replicas["one"].raises = EngineFailed("out of memory over there")
        with pytest.raises(EngineFailed, match=r"one failed .*out of memory over there"):
            async with asyncio.timeout(15):
                await of.transfer.transfer(1)
        of.replicas["one"].raises = None
        await of.transfer.transfer(2)
        assert_arrived(of, of.trainer.weights, 2)

    work(open_bench(tmp_path, 2.0), play)


@benches
def test_a_sender_that_fails_half_way_leaves_no_replica_waiting(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    """F7: receivers learn of it; no replica counts the version."""

    async def play(of: Bench) -> None:
        of.trainer.weights, of.trainer.break_after = weights(), 9
        with pytest.raises(EngineFailed, match=r"the trainer failed .*the trainer broke") as caught:
            async with asyncio.timeout(15):
                await of.transfer.transfer(1)
        assert isinstance(caught.value.__cause__, ValueError)
        assert [replica.version for replica in of.replicas.values()] == [0, 0]
        of.trainer.break_after = None
        await of.transfer.transfer(2)
        assert_arrived(of, of.trainer.weights, 2)

    work(open_bench(tmp_path, 5.0), play)


@benches
def test_an_update_of_another_kind_is_refused(open_bench: OpenBench, tmp_path: Path) -> None:
    """M1: sender, receivers and driver must be of one kind."""

    async def play(of: Bench) -> None:
        foreign = Update(version=1, address={"somewhere": "else"})
        with pytest.raises(EngineFailed, match="made by another transfer"):
            await of.trainer.send(foreign)
        with pytest.raises(EngineFailed, match="made by another transfer"):
            await of.replicas["one"].load_weights(foreign)

    work(open_bench(tmp_path), play)


@benches
def test_threads_and_files_do_not_grow_with_the_number_of_transfers(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    """I2: after the first two, nothing is added; after the end nothing but the newest versions."""

    async def play(of: Bench) -> None:
        of.trainer.weights = {"w": torch.zeros(1000)}
        counts = []
        for version in range(1, 8):
            await of.transfer.transfer(version)
            sizes = [path.stat().st_size for path in files_below(tmp_path)]
            counts.append((len(sizes), sum(sizes)))
        assert len(set(counts[1:])) == 1

    of = open_bench(tmp_path)
    work(of, play)
    assert len(files_below(tmp_path)) == (4 if open_bench is files else 0)
    assert threading.active_count() < 50


@pytest.mark.parametrize("open_bench", [kept, files], ids=lambda f: f.__name__)
def test_a_stream_that_is_read_only_after_the_call_returned_still_is_that_version(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    """O14, G5: weights that the trainer changed meanwhile do not show through."""

    async def play(of: Bench) -> None:
        of.trainer.weights = weights(1)
        sent = {name: tensor.clone() for name, tensor in of.trainer.weights.items()}
        streams: list[Iterable[tuple[str, Tensor]]] = []
        lazy = of.replicas["one"]._receive
        original = of.replicas["one"]._load

        def load(update: Update) -> Digest:
            streams.append(lazy(update))
            return original(update)

        of.replicas["one"]._load = load  # type: ignore[method-assign]
        await of.transfer.transfer(1)
        for tensor in of.trainer.weights.values():
            tensor.zero_()
        late = {name: tensor.clone() for name, tensor in streams[0]}
        assert all(torch.equal(late[name], tensor) for name, tensor in sent.items())

    work(open_bench(tmp_path), play)
