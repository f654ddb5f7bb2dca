"""Device memory that waits in host memory, and comes back under the same tensors."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from torch import Tensor, UntypedStorage

from hexpo.adapters.training.fsdp.masters import Masters


@attrs.frozen(eq=False)
class _Away:
    storage: UntypedStorage
    host_B: Tensor
    """Its bytes."""

    def view(self, tensor: Tensor) -> Tensor:
        """What `tensor` was, in host memory."""
        flat = self.host_B.view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Parking:
    """Storages are emptied and not replaced, so that whoever holds a tensor of them (FSDP2, an
    optimizer) holds it still; between, nothing but `weights` and `moments` may be read."""

    def __init__(self, masters: Masters, others: Iterable[Tensor]) -> None:
        """Take weights, gradients and moments away. Args: others: further tensors."""
        weights, moments = masters.weights(), masters.moments()
        self._away: dict[int, _Away] = {}
        for tensor in (*weights.values(), *masters.gradients, *moments.values(), *others):
            self._take(tensor)
        self._weights = {name: self._seen(tensor) for name, tensor in weights.items()}
        self._moments = {name: self._seen(tensor) for name, tensor in moments.items()}
        for away in self._away.values():
            away.storage.resize_(0)

    def _take(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in self._away:
            device = _bytes_of(storage, tensor.device)
            pinned = tensor.device.type == "cuda"
            host = torch.empty(len(device), dtype=torch.uint8, pin_memory=pinned)
            self._away[storage.data_ptr()] = _Away(storage, host.copy_(device))

    def _seen(self, tensor: Tensor) -> Tensor:
        away = self._away.get(tensor.untyped_storage().data_ptr())
        return tensor if away is None else away.view(tensor)

    def weights(self) -> dict[str, Tensor]:
        """Masters by name, in host memory."""
        return self._weights

    def moments(self) -> dict[str, Tensor]:
        """The optimizer's, in host memory."""
        return self._moments

    def restore(self) -> None:
        """Bring everything back, bit for bit."""
        for away in self._away.values():
            away.storage.resize_(len(away.host_B))
            _bytes_of(away.storage, away.storage.device).copy_(away.host_B)


def _bytes_of(storage: UntypedStorage, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
