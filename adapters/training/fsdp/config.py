"""Settings of the engine."""

from __future__ import annotations

from enum import Enum

import attrs

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.lora import Lora

_positive = attrs.validators.gt(0.0)
_not_negative = attrs.validators.ge(0.0)


class Schedule(Enum):
    """What becomes of the learning rate after its warm-up."""

    CONSTANT = "constant"
    """It stays."""
    LINEAR = "linear"
    """It falls in a line to `min_ratio` at the last step."""
    COSINE = "cosine"
    """It falls in half a cosine to `min_ratio` at the last step."""


class Sent(Enum):
    """What goes to engines that hold a copy of the policy."""

    MERGED = "merged"
    """Every weight, adapters added in."""
    ADAPTERS = "adapters"
    """The adapters alone, for an engine that has the base and applies them itself."""


OF_SEVERAL_RANKS = (
    *("reduce_late", "keep_gathered", "cpu_offload", "compiled"),
    *("save_aside", "tensor_parallel", "sequence_parallel"),
)
"""Settings that one process cannot follow."""


@attrs.frozen(kw_only=True)
class Config:
    """How the policy learns: AdamW (Loshchilov and Hutter 2017, 1711.05101) on fp32 masters."""

    learning_rate: float = attrs.field(default=1e-6, validator=_positive)
    """Of a step after the warm-up."""
    beta_gradient: float = attrs.field(
        default=0.9, validator=[_not_negative, attrs.validators.lt(1.0)]
    )
    """Decay of the mean gradient."""
    beta_square: float = attrs.field(
        default=0.95, validator=[_not_negative, attrs.validators.lt(1.0)]
    )
    """Decay of the mean squared gradient."""
    epsilon: float = attrs.field(default=1e-8, validator=_positive)
    """Added to the root of the mean squared gradient."""
    weight_decay: float = attrs.field(default=0.0, validator=_not_negative)
    """Decoupled, of matrices only."""
    clip_norm: float = attrs.field(default=1.0, validator=_not_negative)
    """Gradients of a larger norm are scaled down to it; 0 never clips."""
    schedule: Schedule = Schedule.CONSTANT
    """What becomes of the learning rate."""
    warmup_steps: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Applied steps over which the learning rate rises from 0."""
    min_ratio: float = attrs.field(default=0.0, validator=[_not_negative, attrs.validators.le(1.0)])
    """Share of the learning rate that is left at the last step."""
    max_skipped_steps: int = attrs.field(default=3, validator=attrs.validators.ge(1))
    """The run stops after so many non-finite steps in a row."""
    micro_tokens: int = attrs.field(default=1200, validator=attrs.validators.ge(1))
    """Tokens that are run at once; a single longer row is run alone."""
    head_tokens: int = attrs.field(default=512, validator=attrs.validators.ge(1))
    """Tokens whose logits exist at once."""
    top_k: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    """Likeliest ids that a teacher's or a reference's distribution is kept by, where it is asked
    for; the rest of the mass is one tail."""
    packing: Packing = Packing.AUTO
    """How rows share a forward."""
    activation_checkpointing: bool = False
    """Keep only each layer's input and run it again in backward: less memory, a third slower."""
    native_kernels: bool = True
    """Use compiled kernels where there is a C compiler."""
    lora: Lora | None = None
    """Train low-rank adapters on a frozen base instead of all weights."""
    value_head: bool = False
    """Be a critic: a value of each token's state in the place of a distribution."""
    reference: bool = False
    """Keep a frozen copy of the policy for `view("reference")`; adapters need none."""
    mtp_depths: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Heads that predict further tokens, one after the other, for a term that reads `mtp`."""
    mtp_detached: bool = True
    """Of these heads: they learn from the policy's hidden states and leave the policy alone."""
    sent: Sent = Sent.MERGED
    """What `send` sends."""
    reduce_late: bool = False
    """Over ranks: keep whole gradients and share them out once a call, not once a micro-batch."""
    keep_gathered: bool = False
    """Over ranks: keep layers whole between forward and backward; more memory, fewer gathers."""
    cpu_offload: bool = False
    """Over ranks: weights, gradients and optimizer live in host memory, layers come as needed."""
    tensor_parallel: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Over ranks: so many neighbours cut each layer's weights, the embedding and the head."""
    sequence_parallel: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Over ranks: so many cut the tokens of each micro-batch among them (Ulysses)."""
    save_aside: bool = False
    """Over ranks: copy what is saved to host memory, and write it while training goes on."""
    compiled: bool = False
    """Over ranks: run each layer through torch.compile; not with the native kernels' own path."""
