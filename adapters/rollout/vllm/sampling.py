"""Sampling settings in vLLM's terms."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hexpo.application.ports.rollout import Request
from hexpo.domain.errors import WrongValue
from hexpo.domain.seeds import seed_for

COLDEST = 0.01
"""vLLM raises any positive temperature below it."""


def require_servable(
    request: Request, *, vocabulary: int, max_tokens: int, stop_texts: bool
) -> None:
    """Raises WrongValue: the engine cannot serve the request; names it and says why."""
    prompt, sampling = request.prompt, request.sampling
    name = f"request {request.id!r}"
    if not prompt:
        raise WrongValue(f"{name}: the prompt is empty; send at least one id")
    wrong = next((i for i in prompt if not 0 <= i < vocabulary), None)
    if wrong is not None:
        raise WrongValue(f"{name}: id {wrong} lies outside the vocabulary of {vocabulary}")
    if len(prompt) + sampling.max_new_tokens > max_tokens:
        raise WrongValue(
            f"{name}: a prompt of {len(prompt)} ids and {sampling.max_new_tokens} new ones are more"
            f" than max_tokens = {max_tokens}; shorten it or raise max_tokens"
        )
    if not 0 <= request.given < len(prompt):
        raise WrongValue(
            f"{name}: given = {request.given} of {len(prompt)} ids; a prompt goes before an answer"
        )
    if 0 < sampling.temperature < COLDEST:
        raise WrongValue(
            f"{name}: temperature {sampling.temperature} lies between 0 and {COLDEST}, which vLLM"
            " would raise without a word; use 0 or more"
        )
    if sampling.min_p > 0 and sampling.top_p < 1:
        raise WrongValue(
            f"{name}: vLLM applies min_p before top_p, hexpo after it: another support; use one"
        )
    if sampling.stop_texts and not stop_texts:
        raise WrongValue(f"{name}: stop_texts need a tokenizer, and this engine was given none")


def parameters(
    request: Request, *, done: int, stop_ids: Collection[int], own_stops: bool
) -> dict[str, Any]:
    """Arguments of vLLM's SamplingParams for what is left of an answer.

    Log-probs are those of the distribution drawn from; an answer ends by ids named here alone.

    Args: done: ids that were sampled for this request before.
        own_stops: let the engine stop; else whoever reads does (it would mask stop ids before
            `min_new_tokens`, which is another distribution).
    """
    sampling = request.sampling
    earlier = request.given + done
    seed = request.seed if earlier == 0 else seed_for(request.seed, "continued", earlier)
    return {
        "max_tokens": sampling.max_new_tokens - done,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": seed % 2**63,
        "ignore_eos": True,
        "stop_token_ids": sorted(stop_ids) if own_stops else [],
        "logprobs": 0,
        "detokenize": False,
    }
