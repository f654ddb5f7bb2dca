"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_same_axes


def value(
    *, prediction_T: Tensor, value_T: Tensor, return_T: Tensor, clip: float | None = 0.5
) -> Tensor:
    """PPO's clipped value loss, a term a trained token; the factor 1/2 is in it.

    1/2 max((v - G)^2, (clip(v, v_old - c, v_old + c) - G)^2)

    Args: (T,) action tokens, floating, in units of return; `prediction_T` is what the critic says
            now and carries gradient, `value_T` what it said before the step, `return_T` its target.
        clip: c, larger than 0; None for the plain squared error.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: the clip is out of range.
    Source: Schulman et al. 2017 (1707.06347); the clip: OpenAI Baselines' ppo2.
    """
    require_same_axes(prediction=prediction_T, value=value_T, **{"return": return_T})
    error_T = (prediction_T - return_T).square()
    if clip is not None:
        require_above(0.0, clip=clip)
        held_T = value_T + (prediction_T - value_T).clamp(-clip, clip)
        error_T = torch.maximum(error_T, (held_T - return_T).square())
    return error_T / 2


def value_measures(
    *, prediction_T: Tensor, value_T: Tensor, return_T: Tensor, clip: float | None = 0.5
) -> dict[str, Tensor]:
    """(T,) each: the prediction, its squared error, and where the clip holds it."""
    measured = {"prediction": prediction_T, "squared_error": (prediction_T - return_T).square()}
    if clip is not None:
        held_T = value_T + (prediction_T - value_T).clamp(-clip, clip)
        worse_T = (held_T - return_T).square() > measured["squared_error"]
        measured["clip_share"] = worse_T.to(prediction_T.dtype)
    return measured
