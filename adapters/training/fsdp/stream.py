"""The policy's weights as other engines load them, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from hexpo.adapters.models.lora import ADAPTER
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.fsdp.config import Sent
from hexpo.application.ports.transfer import Weight


def exported(policy: Policy, names: Iterable[str], *, sent: Sent) -> Iterator[Weight]:
    """Whole weights under the names of the family's published folders, in the policy's precision;
    a tied head comes once, as the embedding. One weight is made at a time.

    Args: names: as `Policy.names` gives them; of a sharded policy those that are whole now.
        sent: adapters alone come under the names that peft's own folders use.
    """
    pairs = _adapters if sent is Sent.ADAPTERS else _merged
    for name, tensor in pairs(policy, names):
        whole = tensor.to(policy.precision.dtype).contiguous()
        yield Weight(name=name, shape=tuple(whole.shape), tensor=whole)


def _merged(policy: Policy, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    from transformers.core_model_loading import revert_weight_conversion

    for name in names:
        # One by one: a family's fused tensor comes apart into several, never the other way.
        with torch.no_grad():
            own = revert_weight_conversion(policy.module, {name: _whole(policy.weight(name))})
        yield from own.items()


def _whole(weight: Tensor) -> Tensor:
    """A weight that ranks cut among them comes together on all of them."""
    from torch.distributed.tensor import DTensor

    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def _adapters(policy: Policy, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        path = name.rpartition(".")[0]
        layer: Any = policy.module.get_submodule(path)
        if name.endswith(".weight") and hasattr(layer, "lora_A"):
            for factor in ("lora_A", "lora_B"):
                weight = getattr(layer, factor)[ADAPTER].weight
                yield f"base_model.model.{path}.{factor}.weight", weight.detach()
