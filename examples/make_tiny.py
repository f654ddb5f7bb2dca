"""Writes a tiny random Llama with a byte tokenizer: seconds on one core, for tests and trials.

python examples/make_tiny.py [FOLDER]    # models/tiny, where examples/tiny.yaml looks for it
"""

from __future__ import annotations

import sys
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def make(folder: Path, *, seed: int = 0) -> Path:
    """Write model and tokenizer into `folder`; the same seed gives the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=256,
                eos_token_id=tokenizer.eos_token_id,
                bos_token_id=None,
                pad_token_id=tokenizer.eos_token_id,
                tie_word_embeddings=True,
                initializer_range=0.2,
            )
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer():  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
    core = Tokenizer(model)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=SPECIAL[0])
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "models/tiny"))
