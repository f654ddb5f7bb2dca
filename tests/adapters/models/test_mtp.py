"""Heads that predict further tokens, against a loop over positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.families import forward_of, kernels_for, require_plain_head
from hexpo.adapters.models.head import Head
from hexpo.adapters.models.layout import Rows, lay_out
from hexpo.adapters.models.mtp import DeepForward, MultiToken, without_first
from hexpo.adapters.models.policy import Policy

Tiny = Callable[..., Policy]

PROMPTS = [[7, 8, 9, 10], [5, 6], [11, 8, 9, 10], [13, 8, 9, 10], [12]]
GROUPS = [0, 1, 2, 2, 4]
"""Of each prompt. Two that differ in their first token alone claim to be one."""
ROWS = [
    *((0, [20, 21, 22]), (1, [30]), (0, [23, 21]), (2, [20, 24]), (3, [25, 20, 26])),
    *((4, []), (4, [40]), (0, [])),
]
TEMPERATURE = 0.7


def ragged() -> Rows:
    """Rows of 1 to 7 tokens, with a gap in what is selected, and rows without any."""
    tokens = [PROMPTS[prompt] + answer for prompt, answer in ROWS]
    selected = [[False] * len(PROMPTS[prompt]) + [True] * len(answer) for prompt, answer in ROWS]
    selected[0][5] = False
    selected[1][1] = True  # within the prompt: at depth 1 too early by one
    return Rows(
        tokens_T=torch.tensor([token for row in tokens for token in row]),
        positions_T=torch.tensor([place for row in tokens for place in range(len(row))]),
        lengths_S=torch.tensor([len(row) for row in tokens]),
        prompt_lengths_S=torch.tensor([len(PROMPTS[prompt]) for prompt, _ in ROWS]),
        groups_S=torch.tensor([GROUPS[prompt] for prompt, _ in ROWS]),
        selected_T=torch.tensor([flag for row in selected for flag in row]),
    )


def heads_of(policy: Policy, depths: int) -> MultiToken:
    """Heads whose every weight matters."""
    heads = MultiToken(policy, depths)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in heads.module.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return heads


def plain(policy: Policy, heads: MultiToken, rows: Rows) -> list[tuple[list[bool], Tensor, Tensor]]:
    """For each depth which selected tokens it reaches, their log-probs and the likeliest ids in
    their places: position by position, each from its own row's first tokens."""
    model: Any = policy.module
    head = model.get_output_embeddings().weight
    sizes = rows.lengths_S.tolist()
    found: list[tuple[list[bool], list[Tensor], list[Tensor]]] = [
        ([], [], []) for _ in heads.module
    ]
    for tokens, selected in zip(
        rows.tokens_T.split(sizes), rows.selected_T.split(sizes), strict=True
    ):
        before = model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
        for number, depth in enumerate(heads.module, start=1):
            part: Any = depth
            embedded = model.get_input_embeddings()(tokens[number:])
            joined = part.join(embedded, before[: len(embedded)])
            here = []
            for place in range(len(embedded)):
                positions = torch.arange(place + 1)[None]
                out = part.block(
                    joined[None, : place + 1],
                    attention_mask=None,
                    position_ids=positions,
                    position_embeddings=model.base_model.rotary_emb(joined[None], positions),
                )
                here.append(out[0, -1])
            before = torch.stack(here) if here else before[:0]
            logprobs = ((part.norm(before) @ head.t()) / TEMPERATURE).log_softmax(-1)
            for place in selected.nonzero()[:, 0].tolist():
                reached = place > number
                found[number - 1][0].append(reached)
                if reached:
                    own = logprobs[place - number - 1]
                    found[number - 1][1].append(own[tokens[place]])
                    found[number - 1][2].append(own.argmax())
    return [(reached, torch.stack(own), torch.stack(best)) for reached, own, best in found]


def deep(policy: Policy) -> tuple[DeepForward, Head]:
    kernels = kernels_for(policy)
    head = Head(
        weight_VH=require_plain_head(policy), kernels=kernels, temperature=TEMPERATURE, chunk=3
    )
    return forward_of(policy, kernels), head  # type: ignore[return-value]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_packed_depths_equal_a_loop_over_positions(tiny: Tiny, family: str) -> None:
    """A2: log-probs, and the gradient in every weight of heads and policy; no row sees another
    one, a shared prompt is run once, and rows that only seem to share one are kept apart."""
    policy, rows = tiny(family), ragged()
    heads = heads_of(policy, 3)
    wanted = plain(policy, heads, rows)
    weights = [*policy.module.parameters(), *heads.module.parameters()]
    pull = [torch.randn(len(logprobs)) for _, logprobs, _ in wanted]
    loss = sum((logprobs * p).sum() for (_, logprobs, _), p in zip(wanted, pull, strict=True))
    of_plain = torch.autograd.grad(loss, weights, allow_unused=True)  # type: ignore[arg-type]

    forward, head = deep(policy)
    ran = forward.ran(rows, detached=False)
    guesses = list(heads.guess(forward, head, rows, ran, detached=False))
    assert [guess.reached_M.tolist() for guess in guesses] == [one[0] for one in wanted]
    for guess, (_, logprobs, _) in zip(guesses, wanted, strict=True):
        assert_close(guess.logprobs_R, logprobs, rtol=0, atol=1e-5)
    loss = sum((g.logprobs_R * p).sum() for g, p in zip(guesses, pull, strict=True))
    of_packed = torch.autograd.grad(loss, weights, allow_unused=True)  # type: ignore[arg-type]
    for one, other in zip(of_packed, of_plain, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert_close(one, other, rtol=1e-4, atol=1e-5 * float(1 + other.abs().max()))


def test_detached_depths_leave_the_policy_alone(tiny: Tiny) -> None:
    """Their graph ends at the policy's hidden states, embedding and output layer."""
    policy, rows = tiny("llama"), ragged()
    heads = heads_of(policy, 2)
    forward, head = deep(policy)
    ran = forward.ran(rows, detached=True)
    assert torch.equal(ran.hidden_MH, forward.hidden(rows))  # type: ignore[attr-defined]
    guesses = list(heads.guess(forward, head, rows, ran, detached=True))
    sum(guess.logprobs_R.sum() for guess in guesses).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is None for parameter in policy.module.parameters())
    assert all(parameter.grad is not None for parameter in heads.module.parameters())


def test_a_guess_is_right_where_the_token_that_came_is_the_likeliest(tiny: Tiny) -> None:
    """A greedy draft of it would be accepted."""
    policy, rows = tiny("llama"), ragged()
    heads = heads_of(policy, 1)
    forward, head = deep(policy)
    ((reached, _, likeliest),) = plain(policy, heads, rows)
    last = rows.lengths_S[0] - 1  # nothing is read after it, so it may become any id
    place = sum(reached[: int(rows.selected_T[:last].sum())])
    tokens = rows.tokens_T.clone()
    for token, is_right in ((likeliest[place], True), (likeliest[place] - 1, False)):
        tokens[last] = token
        rows = attrs.evolve(rows, tokens_T=tokens)
        (guess,) = heads.guess(forward, head, rows, forward.ran(rows, detached=True), detached=True)
        assert bool(guess.right_R[place]) is is_right
        labels = rows.labels[guess.reached_M]
        assert torch.equal(guess.right_R, labels == likeliest)


def test_the_first_depth_begins_as_the_last_layer_run_once_more(tiny: Tiny) -> None:
    """No weight is drawn: two makings agree, and the told token is not heard yet."""
    policy = tiny("llama")
    one, other = MultiToken(policy, 1), MultiToken(policy, 1)
    for name, parameter in one.named_parameters().items():
        assert torch.equal(parameter, other.named_parameters()[name])
    own = {"enorm.weight", "hnorm.weight", "norm.weight", "eh_proj.weight"}
    inner = {f"block.{name}" for name, _ in policy.module.base_model.layers[-1].named_parameters()}  # type: ignore[index,union-attr]
    assert one.named_parameters().keys() == {f"0.{name}" for name in own | inner}
    hidden = torch.randn(5, 32)
    part: Any = one.module[0]
    joined = [part.join(torch.randn(5, 32), hidden) for _ in range(2)]
    assert torch.equal(joined[0], joined[1])
    layer: Any = policy.module.base_model.layers[-1]  # type: ignore[index,union-attr]
    assert torch.equal(part.block.mlp.up_proj.weight, layer.mlp.up_proj.weight)


def test_rows_without_their_first_token_keep_their_order() -> None:
    """What is dropped, what becomes unpredictable, and which rows still share a prompt."""
    rows = ragged()
    shorter, own_T = without_first(rows, lay_out(rows))
    assert shorter.lengths_S.tolist() == [6, 2, 5, 5, 6, 0, 1, 3]
    assert torch.equal(shorter.tokens_T, rows.tokens_T[own_T])
    assert shorter.labels.tolist() == [20, 22, 30, 23, 21, 20, 24, 25, 20, 26]
    groups = shorter.groups_S.tolist()
    assert groups[0] == groups[2]
    assert len({groups[0], groups[1], groups[3], groups[4]}) == 4
