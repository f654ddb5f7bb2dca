"""Which way a model family runs, and what is refused.

A family may run packed only if a test shows that packed rows equal separate ones: some models
mix neighbours silently (a convolution or a recurrent state that ignores row bounds).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hexpo.adapters.models.generic import PackedForward, PaddedForward, install_packed_attention
from hexpo.adapters.models.kernels import Kernels, load_kernels
from hexpo.adapters.models.layout import Rows
from hexpo.adapters.models.llama import LlamaForward
from hexpo.adapters.models.policy import Policy
from hexpo.domain.errors import ModelError, Unsupported

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PACKED_FAMILIES = frozenset({"llama", "qwen2", "qwen3", "qwen3_moe"})
"""Model types whose packed rows are tested to equal separate ones."""


class Packing(Enum):
    """How rows share a forward."""

    AUTO = "auto"
    """Packed where the family is tested for it, else padded."""
    PACKED = "packed"
    """End to end; refused for a family without a test."""
    PADDED = "padded"
    """In a table as wide as its longest row: right for every family, and slow."""


class Forward(Protocol):
    """One way to run rows."""

    def hidden(self, rows: Rows) -> Tensor:
        """(M, H): for each selected token the normalised hidden state that predicts it."""
        ...


def runs_packed(policy: Policy) -> bool:
    """Whether the family is tested for packing, and this model has no local attention."""
    return packs(policy.config)


def packs(config: PretrainedConfig) -> bool:
    """The same of a model that is not loaded."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    is_global = kinds == {"full_attention"} and not getattr(config, "use_sliding_window", False)
    return config.model_type in PACKED_FAMILIES and is_global and not config.attention_dropout


def forward_of(
    policy: Policy,
    kernels: Kernels,
    *,
    packing: Packing = Packing.AUTO,
    checkpointing: bool = False,
) -> Forward:
    """The best way that is right. Raises Unsupported: packing is asked of an untested family."""
    if packing is Packing.PACKED and not runs_packed(policy):
        raise Unsupported(
            f"model type {policy.config.model_type!r} has no test that packed rows equal separate"
            f" ones in this setting; use packing = auto or padded. Tested, with global attention:"
            f" {', '.join(sorted(PACKED_FAMILIES))}"
        )
    if packing is Packing.PADDED or not runs_packed(policy):
        return PaddedForward(policy, checkpointing=checkpointing)
    if policy.spec is not None:
        return LlamaForward(policy, kernels, checkpointing=checkpointing)
    install_packed_attention(policy)
    return PackedForward(policy, checkpointing=checkpointing)


def kernels_for(policy: Policy, *, native: bool = True) -> Kernels:
    """Kernels that fit the model; the eager twins where no native one does."""
    spec = policy.spec
    if spec is None:
        return load_kernels(head_dim=64, group=1, native=native)
    return load_kernels(head_dim=spec.head_dim, group=spec.group, native=native)


def require_plain_head(policy: Policy) -> Tensor:
    """The weight of a head that is one product: (V, H), live.

    Raises: ModelError: the family's head does more (a bias, a scale, a soft cap), found by running
        the model on a few ids.
    """
    module = policy.module
    head: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise ModelError(f"{policy.config.model_type} has no output layer")
    ids = torch.arange(1, 6)[None] % int(policy.config.vocab_size)
    with torch.no_grad():
        logits = module(input_ids=ids, use_cache=False).logits.float()
        hidden = module.base_model(input_ids=ids, use_cache=False).last_hidden_state
        plain = (hidden @ head.weight.t()).float()
    if not torch.allclose(logits, plain, rtol=2e-2, atol=2e-2 * float(logits.abs().max())):
        raise ModelError(
            f"{policy.config.model_type}: its logits are not hidden states times the head's weight"
            " (a bias, scale or soft cap); such heads are not supported"
        )
    weight: Tensor = head.weight
    return weight
