"""The ring: readers that die or come late, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hexpo.adapters.transfer.shared_memory import Config, build, build_receiver, build_sender
from hexpo.adapters.transfer.shared_memory.ring import HEAD, MOST_SLOTS, Place, create
from hexpo.application.ports.transfer import Digest, Update, Weight
from hexpo.domain.errors import EngineFailed

MIB = 2**20

READER = """
import json, sys, time
from hexpo.adapters.transfer.shared_memory import build_receiver
from hexpo.application.ports.transfer import Update
update = Update(version=1, address=json.loads(sys.argv[1]))
print("there", flush=True)
for name, tensor in build_receiver(reader="dies")(update):
    print(name, flush=True)
    time.sleep(60)
"""


def stream(count: int = 12) -> Iterator[Weight]:
    for number in range(count):
        tensor = torch.full((MIB // 8,), float(number))  # half a bucket
        yield Weight(name=f"w{number}", shape=tuple(tensor.shape), tensor=tensor)


def address(folder: Path, *readers: str, slots: int = 2, bound: float = 30.0) -> dict[str, Any]:
    ring = folder / "ring"
    create(ring, readers=readers, bucket=MIB, slots=slots)
    return Place(
        folder=str(ring),
        attempt=1,
        bucket=MIB,
        slots=slots,
        readers=readers,
        bound_seconds=bound,
    ).address


def test_a_reader_that_is_killed_is_given_up_at_once_and_the_others_get_all(
    tmp_path: Path,
) -> None:
    """G2, O3: kill -9 half-way; long before the bound."""
    where = address(tmp_path, "dies", "lives", bound=60.0)
    update = Update(version=1, address=where)
    command = [sys.executable, "-c", READER, json.dumps(where)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        sent: list[Digest] = []
        sending = threading.Thread(target=lambda: sent.append(build_sender()(stream(), update)))
        found: dict[str, float] = {}

        def read() -> None:
            for name, tensor in build_receiver(reader="lives")(update):
                found[name] = float(tensor.sum() / tensor.numel())

        reading = threading.Thread(target=read)
        sending.start()
        reading.start()
        assert other.stdout.readline() == "w0\n"
        time.sleep(0.2)
        assert sending.is_alive()
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        sending.join(10)
        reading.join(10)
    assert sent[0].tensors == 12
    assert found == {f"w{number}": float(number) for number in range(12)}


def test_a_sender_that_is_gone_is_noticed_by_its_readers(tmp_path: Path) -> None:
    """F4: long before the bound."""
    where = address(tmp_path, "one", bound=60.0)
    code = (
        "import json, sys, os, torch\n"
        "from hexpo.adapters.transfer.shared_memory import build_sender\n"
        "from hexpo.application.ports.transfer import Update, Weight\n"
        "def stream():\n"
        "    yield Weight(name='a', shape=(4,), tensor=torch.zeros(4))\n"
        "    os._exit(1)\n"
        "build_sender()(stream(), Update(version=1, address=json.loads(sys.argv[1])))\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(where)], check=False)
    began = time.monotonic()
    with pytest.raises(EngineFailed, match="one: the sender failed while it sent version 1"):
        list(build_receiver(reader="one")(Update(version=1, address=where)))
    assert time.monotonic() - began < 5


def test_a_reader_of_an_older_attempt_learns_that_it_is_too_late(tmp_path: Path) -> None:
    """G2: what is written over is never taken for what was sent."""
    where = address(tmp_path, "slow", bound=0.4)
    send, slow = build_sender(), build_receiver(reader="slow")
    pairs = iter(slow(Update(version=1, address=where)))

    def sent_in_vain() -> None:
        with pytest.raises(EngineFailed, match="no replica reads the weights: slow"):
            send(stream(), Update(version=1, address=where))

    sending = threading.Thread(target=sent_in_vain)
    sending.start()
    assert next(iter(pairs))[0] == "w0"
    sending.join(5)
    with pytest.raises(EngineFailed, match="slow was too late for version 1"):
        list(pairs)
    later = {**where, "attempt": 2}
    reading = iter(slow(Update(version=1, address=where)))
    threading.Thread(
        target=lambda: send(stream(2), Update(version=2, address=later)), daemon=True
    ).start()
    time.sleep(0.1)
    with pytest.raises(EngineFailed, match="slow was too late for version 1"):
        next(reading)


def test_who_is_not_a_reader_reads_a_kept_version_only(tmp_path: Path) -> None:
    """A lease that ends, a replica that comes back: with `buckets = 0`."""
    ring = Update(version=1, address=address(tmp_path / "a", slots=2))
    with pytest.raises(EngineFailed, match="buckets = 0"):
        list(build_receiver(reader="later")(ring))
    kept = Update(version=1, address=address(tmp_path / "b", slots=0))
    sent = build_sender()(stream(5), kept)
    late = build_receiver(reader="later")
    for _ in range(2):
        assert len(list(late(kept))) == sent.tensors == 5


def test_the_ring_holds_buckets_and_no_copy_of_the_weights(tmp_path: Path) -> None:
    """I5: two buckets, whatever is sent; a disk that is full is said before anything is written."""
    where = address(tmp_path, "one")
    update = Update(version=1, address=where)
    reading = threading.Thread(target=lambda: list(build_receiver(reader="one")(update)))
    reading.start()
    assert build_sender()(stream(40), update).bytes == 20 * MIB
    reading.join()
    size = sum(path.stat().st_size for path in (tmp_path / "ring").iterdir())
    assert size < 2 * MIB + MIB
    with pytest.raises(EngineFailed, match=r"has no room for .* another file system"):
        create(tmp_path / "huge", readers=["one"], bucket=2**50, slots=2)


def slots_of(where: dict[str, Any]) -> int:
    size = (Path(where["folder"]) / "buckets").stat().st_size
    assert size % (HEAD + MIB) == 0
    return size // (HEAD + MIB)


def test_what_a_reader_keeps_stays_as_it_is_and_what_it_lets_go_is_used_again(
    tmp_path: Path,
) -> None:
    """G1: no copy is made; a slot more for each bucket of which something is held, and no
    more; a view holds it too, and so does what is left of an older version."""
    where = address(tmp_path, "one")
    send, receive = build_sender(), build_receiver(reader="one")
    held: dict[str, Tensor] = {}
    for version in (1, 2):
        update = Update(version=version, address={**where, "attempt": version})
        sending = threading.Thread(target=send, args=(stream(), update))
        sending.start()
        for name, tensor in receive(update, keep=True):
            if name in {"w0", "w5", "w11"} and version == 1:
                held[name] = tensor[10:20]
        sending.join(10)
        assert not sending.is_alive()
        assert slots_of(where) <= 2 + len(held)
        assert {name: view.unique().tolist() for name, view in held.items()} == {
            "w0": [0.0],
            "w5": [5.0],
            "w11": [11.0],
        }


def test_a_reader_that_lets_go_needs_no_more_slots_and_sees_every_value(tmp_path: Path) -> None:
    """G1: the values are those that were sent, though slots are used in any order."""
    where = address(tmp_path, "one", "two")
    update = Update(version=1, address=where)
    found: dict[str, list[float]] = {"one": [], "two": []}

    def read(name: str, *, keep: bool) -> None:
        for _, tensor in build_receiver(reader=name)(update, keep=keep):
            found[name].append(float(tensor.sum() / tensor.numel()))

    threads = [
        threading.Thread(target=read, args=("one",), kwargs={"keep": True}),
        threading.Thread(target=read, args=("two",), kwargs={"keep": False}),
    ]
    for thread in threads:
        thread.start()
    build_sender()(stream(40), update)
    for thread in threads:
        thread.join(10)
    assert found["one"] == found["two"] == [float(number) for number in range(40)]
    assert slots_of(where) <= 3


def test_a_reader_that_never_lets_go_is_given_up(tmp_path: Path) -> None:
    """G2: there is an end to the slots; what it holds is as it was when it learns of that."""
    where = address(tmp_path, "greedy", bound=2.0)
    update = Update(version=1, address=where)
    held: list[Tensor] = []

    def read() -> None:
        with pytest.raises(EngineFailed, match="greedy"):
            held.extend(tensor for _, tensor in build_receiver(reader="greedy")(update, keep=True))

    reading = threading.Thread(target=read)
    reading.start()
    with pytest.raises(EngineFailed, match="no replica reads the weights: greedy"):
        build_sender()(stream(2 * MOST_SLOTS + 8), update)
    reading.join(10)
    assert not reading.is_alive()
    assert [float(tensor[0]) for tensor in held] == [float(n) for n in range(2 * MOST_SLOTS)]
    assert slots_of(where) == MOST_SLOTS


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """O3: by the owner's process id; that of a living one stays."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    orphan = tmp_path / f"hexpo-weights-{gone.pid}-0123abcd"
    alive = tmp_path / f"hexpo-weights-{os.getpid()}-0123abcd"
    for ring in (orphan, alive):
        create(ring, readers=["one"], bucket=64, slots=1)
    build(Config(folder=str(tmp_path)), training=None, replicas={})  # type: ignore[arg-type]
    assert not orphan.exists()
    assert alive.exists()


def test_a_receiver_on_another_node_says_so(tmp_path: Path) -> None:
    """The folder is not there."""
    where = {**address(tmp_path, "one"), "folder": str(tmp_path / "elsewhere")}
    with pytest.raises(EngineFailed, match="receivers must run on the sender's node"):
        build_receiver(reader="one")(Update(version=1, address=where))
