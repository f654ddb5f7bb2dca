"""Beside the weights: writes a version as safetensors files, a bucket each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hexpo.adapters.models import checksum
from hexpo.adapters.transfer.disk.folder import Versions
from hexpo.adapters.transfer.wire.stream import whole
from hexpo.application.ports.transfer import Digest, Send, Update, Weight
from hexpo.domain.errors import EngineFailed


def _send(stream: Iterable[Weight], update: Update) -> Digest:
    versions, version = Versions.of(update), update.version
    size, digester = int(update.address["bucket"]), checksum.digester()
    try:
        versions.begin(version)
        bucket: dict[str, Tensor] = {}
        files: list[str] = []
        for name, tensor in whole(stream):
            digester.add(name, tensor)
            if bucket and _bytes(bucket) + tensor.nbytes > size:
                files.append(_write(versions, version, len(files), bucket))
                bucket = {}
            bucket[name] = torch.empty_like(tensor, device="cpu").copy_(tensor)
        if bucket:
            files.append(_write(versions, version, len(files), bucket))
        versions.end(version, files, keep=int(update.address["keep"]))
    except OSError as error:
        raise EngineFailed(
            f"version {version} could not be written to {update.address['folder']}: {error}"
        ) from error
    return digester.digest


def _bytes(bucket: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in bucket.values())


def _write(versions: Versions, version: int, number: int, bucket: dict[str, Tensor]) -> str:
    from safetensors.torch import save

    name = f"{number:05d}.safetensors"
    versions.write(version, name, save(bucket))
    return name


def build_sender() -> Send:
    """A sender for one process."""
    return _send
