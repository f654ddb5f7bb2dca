"""Buckets: some tensors end to end in one piece of memory, and a listing of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import EngineFailed

_ALIGNMENT = 64


@attrs.frozen
class Piece:
    """Bytes of a tensor that lie in a bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """First byte of the tensor that lies here."""
    offset: int
    """Where in the bucket, in bytes."""
    length: int
    """In bytes."""


class Packer:
    """Fills one bucket after the other. Only a tensor longer than a whole bucket is cut."""

    def __init__(
        self,
        size: int,
        *,
        take: Callable[[], Tensor],
        put: Callable[[bytes, int], None],
        listing: int,
        copy: Callable[[Tensor, Tensor], object] = Tensor.copy_,
    ) -> None:
        """Args: size: bytes of a bucket, a multiple of 64.
        take: gives the memory of the next bucket, (size,) uint8; waits until it is free.
        put: hands a bucket over: its listing, and how many bytes are used.
        listing: most bytes of a listing.
        copy: (target, source), both (B,) uint8.
        """
        self._size, self._take, self._put, self._listing = size, take, put, listing
        self._copy = copy
        self._memory: Tensor | None = None
        self._entries: list[str] = []
        self._listed = self._used = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Copy a whole, contiguous tensor in."""
        bytes_B = tensor.detach().reshape(-1).view(torch.uint8)
        rest = bytes_B.numel()
        longest = len(name.encode()) * 6 + 24 * tensor.dim() + 100
        while True:
            fits = self._used + rest <= self._size
            is_cut = rest > self._size and self._used < self._size
            if self._entries and (not (fits or is_cut) or self._listed + longest > self._listing):
                self.flush()
                continue
            start = bytes_B.numel() - rest
            length = min(rest, self._size - self._used)
            self._place(name, tensor, bytes_B[start : start + length], start)
            rest -= length
            if not rest:
                return

    def _place(self, name: str, tensor: Tensor, piece_B: Tensor, start: int) -> None:
        if self._memory is None:
            self._memory = self._take()
        length = piece_B.numel()
        self._copy(self._memory[self._used : self._used + length], piece_B)
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._entries.append(json.dumps([name, dtype, [*tensor.shape], start, self._used, length]))
        self._listed += len(self._entries[-1]) + 1
        self._used = min(self._size, -(-(self._used + length) // _ALIGNMENT) * _ALIGNMENT)

    def flush(self) -> None:
        """Hand the present bucket over, if anything is in it."""
        if self._entries:
            self._put(f"[{','.join(self._entries)}]".encode(), self._used)
        self._memory, self._entries, self._listed, self._used = None, [], 0, 0


def unpacked(
    buckets: Iterable[tuple[bytes, Tensor]], *, keep: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors. One that lies in a bucket as a whole is a view of it, valid until the next
    tensor is asked for; or a copy, to keep. A longer one has memory of its own in any case.

    Raises: EngineFailed: a tensor's pieces are out of order, or end early.
    """
    open_: _Growing | None = None
    for listing, memory in buckets:
        for piece in (Piece(a, b, tuple(c), d, e, f) for a, b, c, d, e, f in json.loads(listing)):
            here = memory[piece.offset : piece.offset + piece.length]
            open_ = open_ or _Growing(piece, keep=keep)
            if (tensor := open_.take(piece, here)) is not None:
                open_ = None
                yield piece.name, tensor
    if open_ is not None:
        raise EngineFailed(f"weight {open_.piece.name} ended after {open_.filled} bytes")


class _Growing:
    """A tensor whose pieces come one after the other."""

    def __init__(self, piece: Piece, *, keep: bool) -> None:
        self.piece, self.filled = piece, 0
        self._keep = keep
        self._dtype: torch.dtype = getattr(torch, piece.dtype)
        self._bytes = torch.Size(piece.shape).numel() * self._dtype.itemsize
        self._memory: Tensor | None = None

    def take(self, piece: Piece, here_B: Tensor) -> Tensor | None:
        """The whole tensor, once its last piece came."""
        if piece.name != self.piece.name or piece.start != self.filled:
            raise EngineFailed(
                f"weight {piece.name}: byte {piece.start} came where byte {self.filled} of"
                f" {self.piece.name} should follow"
            )
        self.filled += piece.length
        if piece.length == self._bytes:
            here_B = here_B.clone() if self._keep else here_B
            return here_B.view(self._dtype).view(piece.shape)
        if self._memory is None:
            self._memory = torch.empty(self._bytes, dtype=torch.uint8, device=here_B.device)
        self._memory[piece.start : self.filled].copy_(here_B)
        done = self.filled == self._bytes
        return self._memory.view(self._dtype).view(piece.shape) if done else None
