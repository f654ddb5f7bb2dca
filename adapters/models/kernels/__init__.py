"""Small native kernels with eager twins, and their autograd functions.

    kernels = load_kernels(head_dim=64, group=3)     # native=False forces the eager twins

    kernels.native                                                     -> bool
    kernels.rms_norm(x_TH, weight_H, eps)                              -> y_TH
    kernels.rms_norm_rstd(x_TH, weight_H, eps)                         -> (y_TH, rstd_T fp32)
    kernels.rms_norm_backward(grad_TH, x_TH, weight_H, rstd_T)         -> (dx_TH, dweight_H fp32)
    kernels.swiglu(gate_up_TI)                                         -> y, half as wide
    kernels.swiglu_backward(grad, gate_up_TI)                          -> dgate_up_TI
    kernels.rotate_(x_TW, positions_T, cos, sin, heads=R, inverse=False)   in place, first R heads
    kernels.transpose(x_RC)                                            -> x_CR, contiguous
    kernels.linear(x_TK, *weights_NK)                                  -> x W^T
    kernels.linear_backward(grad_TN, *weights_NK)                      -> grad W
    kernels.pack(*weights_NK, transposed=False)                        -> Packed or None
    kernels.add_product_(sum_NK fp32, a_TN, b_TK)                      in place: += a^T b
    kernels.label_logprobs(logits_NV, labels_N, temperature=1.0)       -> LabelLogprobs
    kernels.logits_gradient_(logits_NV, labels_N, statistics, dlogprob_N, dentropy_N=None,
                             temperature=1.0)                          in place
    kernels.cached_attention(qkv_RW, keys, values, places), kernels.sample(...)  cached decoding

    functions.rms_norm(kernels, x_TH, weight_H, eps)                   differentiable
    functions.swiglu(kernels, gate_up_TI)
    functions.rotate(kernels, x_TW, positions_T, cos, sin, heads=R)    overwrites x_TW
    functions.linear(kernels, x_TH, weights, bias=None)
    functions.embedding(weight_VH, ids_T, padding)
    causal(library, qkv_NW, runs_R4, kv_heads, scale)                  of `kernels.library(qkv)`

Rows lie contiguous; `cos` and `sin` are fp32 tables (positions, head_dim / 2) from `rope_tables`.
Storage is bf16 or fp32, arithmetic fp32; any other dtype or device takes the eager twin.
"""

from hexpo.adapters.models.kernels import functions
from hexpo.adapters.models.kernels.cached import Places
from hexpo.adapters.models.kernels.causal import causal
from hexpo.adapters.models.kernels.dispatch import Kernels, load_kernels
from hexpo.adapters.models.kernels.eager import LabelLogprobs, rope_tables
from hexpo.adapters.models.kernels.packed import Packed

__all__ = [
    "Kernels",
    "LabelLogprobs",
    "Packed",
    "Places",
    "causal",
    "functions",
    "load_kernels",
    "rope_tables",
]
