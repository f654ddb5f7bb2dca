"""A checksum of named tensors: what was sent is what was received."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import WrongBatch

_ROWS, _COLUMNS = 64, 1021
"""Words of a block: half a megabyte, so that the second pass over it finds it in the cache. An odd
length of rows lets a flip of all signs change their sums."""
_BLOCKS_HERE = 4
_BLOCKS_ELSEWHERE = 4096
"""Blocks at once on the processor, and on another device."""
_NO_TAIL = 0x9E3779B97F4A7C15
"""The sum of no byte behind the last word."""

Words = Callable[[Tensor], int]
"""The 64-bit sum of (W,) int64, contiguous: `sum_of_words`, or what gives the same faster."""


@attrs.frozen(kw_only=True)
class Digest:
    """What was sent or received, so that both can be compared."""

    tensors: int
    bytes: int
    checksum: str
    """Of every tensor's name, type, shape and bytes, whatever their order."""


class Digester:
    """Takes tensors one by one, in any order, each whole.

    A tensor's 64-bit words are laid into blocks of rows; the sums of rows and of columns, modulo
    2^64, are multiplied by odd numbers of their place, folded and summed: as fast as memory. Names,
    types, shapes and sums, sorted by name, then go through BLAKE2b. It finds faults, not forgers:
    a changed word and two exchanged ones change a sum for certain, and then the checksum but for
    about one case in 2^60. What it cannot see are changes of at least four words of one half
    megabyte that cancel in every row and column of it at once.
    """

    def __init__(self, words: Words | None = None) -> None:
        """Args: words: how words are summed, if not by `sum_of_words`."""
        self._words = words or sum_of_words
        self._lines: dict[str, str] = {}
        self._bytes = 0

    def add(self, name: str, tensor: Tensor, total: int | None = None) -> None:
        """Count a tensor in. Args: total: its `sum_of`, where that is known already.

        Raises WrongBatch: the name was there before.
        """
        if name in self._lines:
            raise WrongBatch(f"the weight {name} came twice; a stream has each name once")
        total = sum_of(tensor, self._words) if total is None else total
        shape = "x".join(map(str, tensor.shape))
        self._lines[name] = f"{name} {tensor.dtype} {shape} {total:016x}"
        self._bytes += tensor.numel() * tensor.element_size()

    @property
    def digest(self) -> Digest:
        """Of all so far."""
        state = hashlib.blake2b(digest_size=16)
        for name in sorted(self._lines):
            state.update(self._lines[name].encode() + b"\n")
        return Digest(tensors=len(self._lines), bytes=self._bytes, checksum=state.hexdigest())


def digested(
    stream: Iterable[tuple[str, Tensor]], digester: Digester
) -> Iterator[tuple[str, Tensor]]:
    """The stream itself; each tensor is counted as it passes."""
    for name, tensor in stream:
        digester.add(name, tensor)
        yield name, tensor


def sum_of(tensor: Tensor, words: Words | None = None) -> int:
    """The 64-bit sum of one tensor's bytes; equal for equal bytes on every device."""
    words_W, behind = words_of(tensor)
    return (behind + ((words or sum_of_words)(words_W) if len(words_W) else 0)) % 2**64


def words_of(tensor: Tensor) -> tuple[Tensor, int]:
    """(W,) int64: a tensor's whole words; and the sum of the bytes behind them."""
    flat_B = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = flat_B.numel() // 8 * 8
    has_tail = whole != flat_B.numel()
    words_B = flat_B[:whole] if has_tail else flat_B
    if words_B.storage_offset() % 8:
        words_B = words_B.clone()
    return words_B.view(torch.int64), _tail(flat_B[whole:]) if has_tail else _NO_TAIL


def _tail(bytes_B: Tensor) -> int:
    """Of the last bytes that are no whole word; a 1 is set behind them."""
    return int.from_bytes(bytes([*bytes_B.tolist(), 1]), "little") * _NO_TAIL


def sum_of_words(words_W: Tensor) -> int:
    """The 64-bit sum of (W,) int64 on any device, modulo 2^64; it may come with a sign."""
    count, device = words_W.numel(), words_W.device
    rows = count // _COLUMNS
    grid_RC = words_W[: rows * _COLUMNS].view(rows, _COLUMNS)
    at_once = _ROWS * (_BLOCKS_HERE if device.type == "cpu" else _BLOCKS_ELSEWHERE)
    of_rows: list[Tensor] = []
    of_columns: list[Tensor] = []
    for start in range(0, rows, at_once):
        part_RC = grid_RC[start : start + at_once]
        of_rows.append(part_RC.sum(1))
        whole = len(part_RC) // _ROWS * _ROWS
        if whole:
            of_columns.append(part_RC[:whole].view(-1, _ROWS, _COLUMNS).sum(1).view(-1))
        if whole < len(part_RC):
            of_columns.append(part_RC[whole:].sum(0))
    sums_N = torch.cat([*of_rows, *of_columns, words_W[rows * _COLUMNS :]])
    # A product moves no high bit down, so that high bits alone (signs) could cancel: folded, they
    # spread.
    mixed_N = sums_N.mul_(_multipliers(count, device))
    return int(mixed_N.bitwise_xor_(mixed_N >> 32).sum())


@lru_cache(maxsize=64)
def _multipliers(count: int, device: torch.device) -> Tensor:
    """The odd number of each sum, in the order in which `sum_of_words` makes them: all rows, all
    columns, what is left.

    A sum's own place is another: block after block, each with its rows and then its columns; then
    the rows of what is no whole block, its columns (kept free where it has no row), the rest.
    """
    rows = count // _COLUMNS
    blocks, others = divmod(rows, _ROWS)
    ends = blocks * (_ROWS + _COLUMNS)
    places_BN = torch.arange(ends).view(blocks, _ROWS + _COLUMNS)
    behind_N = torch.arange(ends, ends + others + _COLUMNS + count - rows * _COLUMNS)
    of_others, of_columns, of_rest = torch.split(
        behind_N, [others, _COLUMNS, count - rows * _COLUMNS]
    )
    order_N = torch.cat(
        [
            places_BN[:, :_ROWS].reshape(-1),
            of_others,
            places_BN[:, _ROWS:].reshape(-1),
            of_columns if others else of_columns[:0],
            of_rest,
        ]
    )
    return _odd(ends + len(behind_N))[order_N].to(device)


def _odd(count: int) -> Tensor:
    """Fixed odd multipliers, splitmix64 of the place: the same on every device."""
    x = torch.arange(1, count + 1, dtype=torch.int64) * (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - 2**64)
    return (x ^ _shifted(x, 31)) | 1


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
