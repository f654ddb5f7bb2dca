"""Packed, padded and separate rows say the same."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch.testing import assert_close

from hexpo.adapters.models.families import (
    PACKED_FAMILIES,
    Forward,
    Packing,
    forward_of,
    kernels_for,
    require_plain_head,
    runs_packed,
)
from hexpo.adapters.models.generic import PackedForward, PaddedForward, install_packed_attention
from hexpo.adapters.models.head import Head
from hexpo.adapters.models.layout import Rows
from hexpo.adapters.models.llama import LlamaForward
from hexpo.adapters.models.policy import Policy
from hexpo.domain.errors import ModelError, Unsupported

Tiny = Callable[..., Policy]
Ragged = Callable[[int], Rows]
Plain = Callable[..., torch.Tensor]


def _ways(policy: Policy, *, native: bool) -> dict[str, Forward]:
    kernels = kernels_for(policy, native=native)
    install_packed_attention(policy)
    ways: dict[str, Forward] = {
        "padded": PaddedForward(policy),
        "packed": PackedForward(policy),
        "packed, prompts repeated": PackedForward(policy, share_prompts=False),
    }
    if policy.spec is not None:
        ways["fast"] = LlamaForward(policy, kernels)
        ways["fast, prompts repeated"] = LlamaForward(policy, kernels, share_prompts=False)
        ways["fast, checkpointing"] = LlamaForward(policy, kernels, checkpointing=True)
    ways["packed, checkpointing"] = PackedForward(policy, checkpointing=True)
    return ways


def _in_double(policy: Policy) -> Policy:
    module = copy.deepcopy(policy.module).double()
    module.config._experts_implementation = "eager"  # the grouped product knows no float64
    return Policy(module, precision=policy.precision)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("family", sorted(PACKED_FAMILIES))
def test_every_way_to_run_a_family_equals_separate_rows(
    family: str, native: bool, tiny: Tiny, ragged: Ragged, plain_logprobs: Plain
) -> None:
    """A1, C1: log-probs within 1e-5 and gradients within 1e-4 of their largest, in fp32; of those
    in float64, because separate rows in fp32 are 6e-6 off themselves."""
    policy, rows = tiny(family), ragged(1)
    exact = _in_double(policy)
    plain = plain_logprobs(exact, rows, 0.7)
    pull = torch.randn(len(plain), generator=torch.Generator().manual_seed(0))
    wanted = torch.autograd.grad((plain * pull).sum(), list(exact.module.parameters()))
    head = Head(
        weight_VH=require_plain_head(policy),
        kernels=kernels_for(policy, native=native),
        temperature=0.7,
        chunk=50,
    )
    for name, way in _ways(policy, native=native).items():
        policy.module.zero_grad()
        logprobs, _ = head.two_pass(way.hidden(rows), rows.labels)
        gap = (logprobs.double() - plain).abs().max()
        assert gap < 1e-5, f"{name}: {gap}"
        (logprobs * pull).sum().backward()
        for parameter, gradient in zip(policy.module.parameters(), wanted, strict=True):
            scale = float(gradient.abs().max()) + 1e-2
            assert parameter.grad is not None, name
            assert_close(parameter.grad.double(), gradient, rtol=0, atol=1e-4 * scale)


def test_rows_of_one_group_with_different_prompts_are_not_shared(
    tiny: Tiny, ragged: Ragged, plain_logprobs: Plain
) -> None:
    """A wrong group number must cost time, never correctness."""
    policy, rows = tiny("llama"), ragged(2)
    lying = Rows(
        tokens_T=rows.tokens_T,
        positions_T=rows.positions_T,
        lengths_S=rows.lengths_S,
        prompt_lengths_S=torch.full_like(rows.prompt_lengths_S, 5),
        groups_S=torch.zeros_like(rows.groups_S),
        selected_T=rows.selected_T,
    )
    kernels = kernels_for(policy, native=False)
    head = Head(weight_VH=require_plain_head(policy), kernels=kernels, temperature=1.0)
    logprobs, _ = head.measure(LlamaForward(policy, kernels).hidden(lying), rows.labels)
    assert_close(logprobs, plain_logprobs(policy, rows, 1.0), rtol=0, atol=1e-5)


def test_rows_without_a_selected_token_cost_nothing(tiny: Tiny, ragged: Ragged) -> None:
    """A3: no token is run, and an empty result comes back."""
    policy, rows = tiny("llama"), ragged(3)
    silent = Rows(
        tokens_T=rows.tokens_T,
        positions_T=rows.positions_T,
        lengths_S=rows.lengths_S,
        prompt_lengths_S=rows.prompt_lengths_S,
        groups_S=rows.groups_S,
        selected_T=torch.zeros_like(rows.selected_T),
    )
    kernels = kernels_for(policy, native=False)
    assert LlamaForward(policy, kernels).hidden(silent).shape == (0, 32)


def test_an_untested_family_is_refused_for_packing_and_runs_padded(
    tiny: Tiny, ragged: Ragged, plain_logprobs: Plain
) -> None:
    """Some families mix packed neighbours in silence: none runs packed without a test."""
    policy, rows = tiny("gemma2", final_logit_softcapping=None), ragged(4)
    kernels = kernels_for(policy, native=False)
    with pytest.raises(Unsupported, match="gemma2"):
        forward_of(policy, kernels, packing=Packing.PACKED)
    forward = forward_of(policy, kernels)
    head = Head(weight_VH=require_plain_head(policy), kernels=kernels, temperature=1.0)
    logprobs, _ = head.measure(forward.hidden(rows), rows.labels)
    assert_close(logprobs, plain_logprobs(policy, rows, 1.0), rtol=0, atol=1e-5)


def test_a_local_attention_window_is_not_run_packed(tiny: Tiny) -> None:
    """A window would be ignored by our attention: such a model runs padded."""
    policy = tiny("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0)
    assert policy.spec is None
    assert not runs_packed(policy)


def test_a_head_that_caps_its_logits_is_refused(tiny: Tiny) -> None:
    """Log-probs made without the cap would be wrong in silence."""
    with pytest.raises(ModelError, match="soft cap"):
        require_plain_head(tiny("gemma2", final_logit_softcapping=1.0))
