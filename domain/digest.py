"""A checksum of named tensors: what was sent is what was received."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import WrongBatch

_WORDS = 1 << 15
"""Words that one row of the sum spans; a row and its multipliers stay in a core's cache."""
_ROWS_ELSEWHERE = 4096
"""Rows at once on a device that is not the processor: 1 GiB."""
_SEED = 0x5EED


@attrs.frozen(kw_only=True)
class Digest:
    """What was sent or received, so that both can be compared."""

    tensors: int
    bytes: int
    checksum: str
    """Of every tensor's name, type, shape and bytes, whatever their order."""


class Digester:
    """Takes tensors one by one, in any order, each whole.

    A tensor's 64-bit words are multiplied by odd numbers of their place, folded and summed modulo
    2^64 (a multilinear hash, Carter and Wegman 1979): as fast as memory. Names, types, shapes and
    sums, sorted by name, then go through BLAKE2b. It finds faults, not forgers: any change of a
    single word is found but for about one case in 2^63, any other damage but for about one in
    2^60; the numbers are fixed, so whoever wants to can construct a collision.
    """

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}
        self._bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Count a tensor in. Raises WrongBatch: the name was there before."""
        if name in self._lines:
            raise WrongBatch(f"the weight {name} came twice; a stream has each name once")
        shape = "x".join(map(str, tensor.shape))
        self._lines[name] = f"{name} {tensor.dtype} {shape} {sum_of(tensor):016x}"
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


@torch.no_grad()
def sum_of(tensor: Tensor) -> int:
    """The 64-bit sum of one tensor's bytes; equal for equal bytes on every device."""
    flat_B = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = flat_B.numel() // 8 * 8
    total = _tail(flat_B[whole:])
    if whole:
        aligned_B = flat_B[:whole]
        if aligned_B.storage_offset() % 8:
            aligned_B = aligned_B.clone()
        total += _words(aligned_B.view(torch.int64))
    return total % 2**64


def _tail(bytes_B: Tensor) -> int:
    """Of the last bytes that are no whole word; a 1 is set behind them."""
    return int.from_bytes(bytes([*bytes_B.tolist(), 1]), "little") * 0x9E3779B97F4A7C15


def _words(words_W: Tensor) -> int:
    device = words_W.device
    width = min(_WORDS, words_W.numel())
    within_W = _odd(width, device)
    rows = min(words_W.numel() // width, 1 if device.type == "cpu" else _ROWS_ELSEWHERE)
    scratch = torch.empty(2, rows, width, dtype=torch.int64, device=device)
    even = words_W.numel() // width * width
    slabs = words_W[:even].view(-1, width).split(rows)
    sums = [_folded(slab, within_W, scratch[:, : len(slab)]) for slab in slabs]
    if even < words_W.numel():
        rest_W = words_W[even:]
        count = rest_W.numel()
        sums.append(_folded(rest_W[None], within_W[:count], scratch[:, :1, :count]))
    sums_R = torch.cat(sums)
    return int((sums_R * _odd(len(sums_R), device, seed=_SEED + 1)).sum())


def _folded(words_RW: Tensor, within_W: Tensor, scratch: Tensor) -> Tensor:
    """(R,) sums. A product moves no high bit down, so that high bits alone (signs) could cancel:
    folded, they spread."""
    mixed_RW, high_RW = scratch[0], scratch[1]
    torch.mul(words_RW, within_W, out=mixed_RW)
    torch.bitwise_right_shift(mixed_RW, 32, out=high_RW)
    return mixed_RW.bitwise_xor_(high_RW).sum(1)


@lru_cache(maxsize=16)
def _odd(count: int, device: torch.device, *, seed: int = _SEED) -> Tensor:
    """Fixed odd multipliers, splitmix64 of the place: the same on every device."""
    x = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _signed(0x9E3779B97F4A7C15)
    x = x + seed
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return (x ^ _shifted(x, 31)) | 1


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
