"""Hugging Face tokenizers, from a model folder or a GGUF file.

There is no setting, so no `Config`.
"""

from hexpo.adapters.tokenizers.transformers.tokenizer import TransformersTokenizer, build

__all__ = ["TransformersTokenizer", "build"]
