"""Checksums of weights at the speed of memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from hexpo.adapters.models.kernels.memory import library
from hexpo.adapters.models.kernels.native import Library
from hexpo.domain.digest import Digest, Digester, Words, sum_of_words, words_of

_AT_ONCE = 32 * 2**20
"""Bytes of tensors that are counted in one call beside the caller."""


def digester() -> Digester:
    """An empty one; where there is a compiler, its words are summed in one pass."""
    compiled = library()
    return Digester() if compiled is None else Digester(words(compiled))


def digester_beside() -> Digester:
    """One that counts in a thread while the caller goes on, where there is a compiler.

    Tensors must stay as they are until `digest` is asked for, or nobody but the digester holds
    them.
    """
    compiled = library()
    return Digester() if compiled is None else _Beside(compiled)


def words(compiled: Library) -> Words:
    """`sum_of_words` by its compiled twin, for words that lie on the processor."""

    def sums(words_W: Tensor) -> int:
        if words_W.device.type != "cpu":
            return sum_of_words(words_W)
        total = torch.empty(1, dtype=torch.int64)
        compiled.call("checksum", words_W, len(words_W), total)
        return int(total)

    return sums


class _Beside(Digester):
    """Sums many tensors in one call, which leaves the interpreter to the caller: a thread that came
    back for each tensor would take it away each time (a load into vLLM took 50 ms more)."""

    def __init__(self, compiled: Library) -> None:
        super().__init__(words(compiled))
        self._compiled, self._pool = compiled, ThreadPoolExecutor(1, "hexpo-checksum")
        self._waiting: list[tuple[str, Tensor]] = []
        self._waiting_bytes = 0
        self._counting: Future[None] | None = None

    def add(self, name: str, tensor: Tensor, total: int | None = None) -> None:
        """Tensors that wait, or are being counted, are held."""
        if total is not None or tensor.device.type != "cpu":
            super().add(name, tensor, total)
            return
        self._waiting.append((name, tensor))
        self._waiting_bytes += tensor.numel() * tensor.element_size()
        if self._waiting_bytes >= _AT_ONCE:
            self._hand_over()

    @property
    def digest(self) -> Digest:
        """Waits until all are counted."""
        self._hand_over()
        self._wait()
        return super().digest

    def _hand_over(self) -> None:
        self._wait()
        self._counting = self._pool.submit(self._count, self._waiting)
        self._waiting, self._waiting_bytes = [], 0

    def _wait(self) -> None:
        if self._counting is not None:
            self._counting.result()

    def _count(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        parts = [words_of(tensor) for _, tensor in tensors]
        addresses = torch.tensor([words_W.data_ptr() for words_W, _ in parts], dtype=torch.int64)
        lengths = torch.tensor([len(words_W) for words_W, _ in parts], dtype=torch.int64)
        totals = torch.empty_like(lengths)
        self._compiled.call("checksums", addresses, lengths, len(parts), totals)
        for (name, tensor), (_, behind), total in zip(tensors, parts, totals.tolist(), strict=True):
            super().add(name, tensor, (behind + total) % 2**64)
