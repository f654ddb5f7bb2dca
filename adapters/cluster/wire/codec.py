"""Values as a pickle and its large buffers, which are neither copied nor searched."""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from collections.abc import Sequence
from typing import Any

SMALL = 4096
"""Bytes; a buffer below it lies inside the pickle."""

Part = bytes | bytearray | memoryview


class _Pickler(pickle.Pickler):
    """Hands out the memory of CPU tensors as it lies; torch's own way writes it twice."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        if value.device.type != "cpu" or value.layout is not torch.strided or value.is_quantized:
            return NotImplemented
        flat = value.detach().contiguous().view(-1)
        memory = pickle.PickleBuffer(flat.view(torch.uint8).numpy()) if flat.numel() else None
        return _tensor, (memory, str(value.dtype).removeprefix("torch."), tuple(value.shape))


def _tensor(memory: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if memory is None:
        return torch.empty(shape, dtype=kind)
    if memoryview(memory).readonly:  # a tensor may be written to; what lies elsewhere may not
        memory = bytearray(memory)
    return torch.frombuffer(memory, dtype=kind).view(shape)


def encode(value: Any) -> list[Part]:
    """A pickle, then its large buffers, which alias the value's own memory.

    A tensor's memory travels, its graph does not. A tensor in a memory-mapped file travels by name.
    """
    stream = io.BytesIO()
    buffers: list[Part] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL:
            return True
        buffers.append(raw)
        return False

    _Pickler(stream, protocol=5, buffer_callback=keep_inside).dump(value)
    return [stream.getvalue(), *buffers]


def decode(parts: Sequence[Part]) -> Any:
    """The value; its tensors lie in the given buffers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return pickle.loads(parts[0], buffers=parts[1:])
