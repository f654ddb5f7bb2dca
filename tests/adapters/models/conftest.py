"""Tiny models of several families, with random weights, and ragged rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hexpo.adapters.models.layout import Rows
from hexpo.adapters.models.policy import Policy, Precision

_SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _config(family: str, **settings: Any) -> Any:
    from transformers import AutoConfig

    own: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": True},
        "qwen2": {"tie_word_embeddings": True},
        "qwen3": {"head_dim": 16},
        "qwen3_moe": {
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
        "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16},
    }
    return AutoConfig.for_model(family, **{**_SHAPE, **own.get(family, {}), **settings})


@pytest.fixture
def tiny() -> Callable[..., Policy]:
    """Makes a policy of a family; biases and norms are random too: a forgotten one shows."""

    def make(family: str, precision: Precision = Precision.FP32, **settings: Any) -> Policy:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(3)
        module = AutoModelForCausalLM.from_config(_config(family, **settings)).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
                parameter.data = parameter.data.to(precision.dtype)
        return Policy(module, precision=precision)

    return make


@pytest.fixture
def ragged() -> Callable[[int], Rows]:
    """Makes shuffled rows: groups with a common prompt (one longer than an attention block), rows
    alone, rows without any selected token, gaps in the selection."""

    def make(seed: int) -> Rows:
        draw = torch.Generator().manual_seed(seed)
        shapes = [(11, [3, 9, 1, 5]), (7, [4, 4, 4]), (270, [300, 5]), (6, [2]), (5, [3, 3])]
        rows = []
        for group, (prompt, answers) in enumerate(shapes):
            common = torch.randint(3, 101, (prompt,), generator=draw)
            for answer in answers:
                own = torch.randint(3, 101, (answer,), generator=draw)
                rows.append((group, prompt, torch.cat((common, own))))
        rows = [rows[place] for place in torch.randperm(len(rows), generator=draw).tolist()]
        lengths = torch.tensor([len(tokens) for _, _, tokens in rows])
        prompts = torch.tensor([prompt for _, prompt, _ in rows])
        positions = torch.cat([torch.arange(len(tokens)) for _, _, tokens in rows])
        owner = torch.repeat_interleave(lengths)
        groups = torch.tensor([group for group, _, _ in rows])
        keep = torch.rand(len(positions), generator=draw) > 0.2
        return Rows(
            tokens_T=torch.cat([tokens for _, _, tokens in rows]),
            positions_T=positions,
            lengths_S=lengths,
            prompt_lengths_S=prompts,
            groups_S=groups,
            selected_T=(positions >= prompts[owner]) & keep & (groups[owner] != 4),
        )

    return make


@pytest.fixture
def plain_logprobs() -> Callable[..., torch.Tensor]:
    """Log-probs of the selected tokens in the plain way: a row at a time, all logits, in at least
    single precision."""

    def run(policy: Policy, rows: Rows, temperature: float) -> torch.Tensor:
        pieces = []
        for tokens in torch.split(rows.tokens_T, rows.lengths_S.tolist()):
            logits = policy.module(tokens[None]).logits[0, :-1]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
            chosen = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]
            pieces.append(torch.cat((chosen.new_zeros(1), chosen)))
        return torch.cat(pieces)[rows.selected_T]

    return run
