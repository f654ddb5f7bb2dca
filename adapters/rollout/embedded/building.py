"""How the embedded engine is made: its settings, and which decoder a policy gets."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import attrs
import torch

from hexpo.adapters.models.decode import Decoder, GenericDecoder, LlamaDecoder, WeightsMode
from hexpo.adapters.models.kernels import Kernels, load_kernels
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.rollout.embedded.engine import EmbeddedEngine
from hexpo.application.ports.tokenizer import Tokenizer


class DecodePrecision(Enum):
    """What the engine computes in."""

    AUTO = "auto"
    """The policy's own, except that fp32 replaces bf16 on processors that don't multiply it."""
    BF16 = "bf16"
    """Brain floats, from packed copies: the trainer may change its weights meanwhile."""
    FP32 = "fp32"
    """Single precision; a policy in fp32 is read in place."""


@attrs.frozen(kw_only=True)
class Config:
    """Settings of the embedded engine."""

    slots: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    """Most answers that are generated at once."""
    max_tokens: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Most tokens of prompt and answer together; 0 is what the model was made for."""
    precision: DecodePrecision = DecodePrecision.AUTO
    """What the engine computes in."""
    native: bool = True
    """Use compiled kernels where there is a compiler."""
    threads: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Processor threads of a step; 0 takes torch's number, or one where that is two and nothing is
    compiled: measured, starting the second costs more than it gains in operations that small."""


def build(
    config: Config,
    *,
    policy: Policy,
    tokenizer: Tokenizer,
    sampling_stop_ids: Collection[int] = (),
) -> EmbeddedEngine:
    """An engine on the policy's present weights, as version 0.

    Args: sampling_stop_ids: ids that end an answer, besides the model's and the tokenizer's own.
    """
    spec = policy.spec
    limit = getattr(policy.config.get_text_config(), "max_position_embeddings", 0) or 2**31
    decoder: Decoder
    if spec is None:
        vocabulary = policy.config.get_text_config().vocab_size
        kernels = load_kernels(head_dim=64, group=1, native=config.native)
        decoder = GenericDecoder(policy.module, vocabulary=vocabulary)
    else:
        kernels = load_kernels(head_dim=spec.head_dim, group=spec.group, native=config.native)
        own = policy.precision.dtype
        dtype = _dtype(config.precision, own, policy.device)
        is_live = dtype == own == torch.float32
        mode = WeightsMode.LIVE if is_live else WeightsMode.PACKED
        decoder = LlamaDecoder(spec, policy.weight, kernels, mode=mode, dtype=dtype)
    return EmbeddedEngine(
        decoder,
        kernels,
        slots=config.slots,
        max_tokens=min(config.max_tokens or limit, limit),
        stop_ids={*policy.stop_ids, *tokenizer.stop_ids, *sampling_stop_ids},
        decode=tokenizer.decode,
        threads=config.threads or _threads(kernels, policy.device),
    )


def _dtype(precision: DecodePrecision, own: torch.dtype, device: torch.device) -> torch.dtype:
    if precision is not DecodePrecision.AUTO:
        return torch.bfloat16 if precision is DecodePrecision.BF16 else torch.float32
    is_slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if own == torch.bfloat16 and is_slow else own


def _threads(kernels: Kernels, device: torch.device) -> int:
    is_small = device.type == "cpu" and not kernels.native and torch.get_num_threads() == 2
    return 1 if is_small else 0
