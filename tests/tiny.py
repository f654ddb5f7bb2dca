"""What many tests make: a random Llama of two layers, and an answer of two tokens."""

from __future__ import annotations

from typing import Any

import torch

from hexpo.domain.trajectory import StopReason, Ticket, Trajectory


def llama(*, seed: int = 0, **settings: Any) -> Any:
    """A `LlamaForCausalLM` of 32 hidden units, the same for the same seed and settings.

    Args: settings: of its `LlamaConfig`, in place of or beside those below.
    """
    import transformers

    torch.manual_seed(seed)
    usual = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**usual, **settings}))


def answer(ticket: Ticket, sample: int) -> Trajectory:
    """One prompt token and two sampled ones, under version 0."""
    return Trajectory(
        id=ticket.number * ticket.samples + sample,
        group=ticket.number,
        prompt=ticket.prompt,
        tokens=torch.tensor([1, 2, 3]),
        prompt_length=1,
        action=torch.tensor([False, True, True]),
        behaviour=torch.tensor([0.0, -1.0, -1.0]),
        version=torch.zeros(3, dtype=torch.int64),
        stop=StopReason.STOP,
    )
