"""The kernels in torch: what the native ones must equal, and what runs without a compiler."""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 256
"""Vocabulary entries of one partial sum in `sample`."""


@attrs.frozen(kw_only=True, eq=False)
class LabelLogprobs:
    """What a pass over logits says of each row; all (N,) fp32, at the pass's temperature."""

    logprobs_N: Tensor
    """Log-prob of the label."""
    lse_N: Tensor
    """Log of the sum of exponentials."""
    entropy_N: Tensor
    """Entropy in nats."""


def rope_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions (Su et al. 2021): fp32 (length, head_dim / 2) each."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rms_norm_rstd(x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Root-mean-square norm, and the reciprocal root mean square of each row in fp32."""
    wide_TH = x_TH.float()
    rstd_T = wide_TH.square().mean(-1).add(eps).rsqrt()
    return (wide_TH * rstd_T[:, None] * weight_H.float()).to(x_TH.dtype), rstd_T


def rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm alone; the quickest eager form."""
    if x_TH.dtype == torch.float32:
        return F.rms_norm(x_TH, weight_H.shape, weight_H, eps)
    wide_TH = x_TH.float()
    norm_T = torch.linalg.vector_norm(wide_TH, dim=-1, keepdim=True)
    rstd_T = norm_T.square_().div_(x_TH.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(wide_TH.mul_(rstd_T), weight_H.float(), out=torch.empty_like(x_TH))


def rms_norm_backward(
    grad_TH: Tensor, x_TH: Tensor, weight_H: Tensor, rstd_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the input (its dtype) and of the weight (fp32)."""
    g_TH, x32_TH, r_T = grad_TH.float(), x_TH.float(), rstd_T[:, None]
    weighted_TH = g_TH * weight_H.float()
    dot_T = (weighted_TH * x32_TH).mean(-1, keepdim=True) * r_T.square()
    dx_TH = r_T * (weighted_TH - x32_TH * dot_T)
    return dx_TH.to(x_TH.dtype), (g_TH * x32_TH * r_T).sum(0)


def swiglu(gate_up_TI: Tensor) -> Tensor:
    """silu(gate) * up of rows that hold both side by side."""
    gate, up = gate_up_TI.chunk(2, -1)
    return F.silu(gate).mul_(up)


def swiglu_backward(grad: Tensor, gate_up_TI: Tensor) -> Tensor:
    """Gradient of gate and up, side by side."""
    gate, up = gate_up_TI.float().chunk(2, -1)
    s, g = gate.sigmoid(), grad.float()
    return torch.cat((g * up * (s + gate * s * (1 - s)), g * gate * s), -1).to(gate_up_TI.dtype)


def rotate_(
    x_TWD: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, *, heads: int, inverse: bool
) -> None:
    """Rotates the first `heads` heads of (T, W, D) rows in place."""
    c, s = cos[positions_T][:, None], sin[positions_T][:, None]
    part = x_TWD[:, :heads]
    a, b = part.float().chunk(2, -1)
    s = -s if inverse else s
    part.copy_(torch.cat((a * c - b * s, b * c + a * s), -1))


def label_logprobs(logits_NV: Tensor, labels_N: Tensor, temperature: float) -> LabelLogprobs:
    """Log-probs of labels, log-sum-exp and entropy at a temperature."""
    scaled_NV = logits_NV.float() / temperature
    lse_N = scaled_NV.logsumexp(-1)
    label_N = scaled_NV.gather(1, labels_N[:, None])[:, 0]
    logp_NV = scaled_NV - lse_N[:, None]
    p_NV = logp_NV.exp()
    entropy_N = -torch.where(p_NV > 0, p_NV * logp_NV, 0.0).sum(-1)
    return LabelLogprobs(logprobs_N=label_N - lse_N, lse_N=lse_N, entropy_N=entropy_N)


def logits_gradient_(
    logits_NV: Tensor,
    labels_N: Tensor,
    statistics: LabelLogprobs,
    dlogprob_N: Tensor,
    dentropy_N: Tensor | None,
    temperature: float,
) -> None:
    """Overwrites logits with the gradient of sum(dlogprob logprob + dentropy entropy)."""
    logp_NV = logits_NV.float() / temperature - statistics.lse_N[:, None]
    p_NV = logp_NV.exp()
    gradient_NV = -dlogprob_N[:, None] * p_NV
    gradient_NV.scatter_add_(1, labels_N[:, None], dlogprob_N[:, None].to(gradient_NV.dtype))
    if dentropy_N is not None:
        surprise_NV = logp_NV + statistics.entropy_N[:, None]
        of_entropy_NV = -dentropy_N[:, None] * p_NV * surprise_NV
        gradient_NV += torch.where(p_NV > 0, of_entropy_NV, 0.0)
    logits_NV.copy_(gradient_NV / temperature)


def add_product_(sum_NK: Tensor, a_TN: Tensor, b_TK: Tensor, *, tiles: bool) -> None:
    """sum += a^T b; where the processor multiplies tiles, transposing first is faster."""
    a_NT = a_TN.t().contiguous() if tiles else a_TN.t()
    if a_NT.dtype == b_TK.dtype == sum_NK.dtype:
        sum_NK.addmm_(a_NT, b_TK)  # no product beside the sum: for a head that is a second weight
    else:
        sum_NK += a_NT @ b_TK


def sample(
    logits_NV: Tensor, uniforms_N: Tensor, temperatures_N: Tensor, floors_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Draws one id a row by inverting its distribution function; see `Kernels.sample`."""
    rows, vocabulary = logits_NV.shape
    is_greedy_N = temperatures_N == 0
    wide_NV = logits_NV.float()
    if bool((floors_N > -torch.inf).any()):
        wide_NV = wide_NV.masked_fill(wide_NV < floors_N[:, None], -torch.inf)
    if bool((temperatures_N != 1).any()):
        scale_N = torch.where(is_greedy_N, 1.0, temperatures_N)
        wide_NV = (wide_NV - wide_NV.amax(-1, keepdim=True)).div_(scale_N[:, None])
    p_NV = wide_NV.softmax(-1)
    padded_NV = F.pad(p_NV, (0, -vocabulary % CHUNK)) if vocabulary % CHUNK else p_NV
    mass = padded_NV.view(rows, -1, CHUNK)
    sums = mass.sum(-1).double().cumsum(-1)
    total_N = sums[:, -1:].contiguous()  # 1, but for what single precision lost
    left_N = uniforms_N[:, None] * total_N
    chunk_N = torch.searchsorted(sums, left_N, right=True)
    chunk_N = torch.minimum(chunk_N, torch.searchsorted(sums, total_N))
    before_N = torch.where(chunk_N > 0, sums.gather(1, (chunk_N - 1).clamp(min=0)), 0.0)
    inside = mass[torch.arange(rows, device=mass.device), chunk_N[:, 0]].double().cumsum(-1)
    offset_N = torch.searchsorted(inside, left_N - before_N, right=True)
    offset_N = torch.minimum(offset_N, torch.searchsorted(inside, inside[:, -1:].contiguous()))
    tokens_N = chunk_N * CHUNK + offset_N
    logprobs_N = (p_NV.gather(1, tokens_N).double() / total_N).log().float()[:, 0]
    tokens_N = tokens_N[:, 0]
    if bool(is_greedy_N.any()):
        tokens_N = torch.where(is_greedy_N, logits_NV.float().argmax(-1), tokens_N)
        logprobs_N = torch.where(is_greedy_N, 0.0, logprobs_N)
    return tokens_N, logprobs_N
