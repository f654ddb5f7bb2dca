"""Hugging Face tokenizers, from a model folder or a GGUF file.

There is no setting, so no `Config`.
"""

from __future__ import annotations

from hexpo.adapters.models.loading import locate
from hexpo.adapters.tokenizers.transformers.tokenizer import TransformersTokenizer
from hexpo.domain.errors import ModelError

__all__ = ["TransformersTokenizer", "build"]


def build(*, reference: str) -> TransformersTokenizer:
    """The tokenizer of a model reference (see `models.loading.locate`).

    Raises: ModelError: there is none, or no fast one. MissingExtra: GGUF needs more packages.
    """
    from transformers import AutoTokenizer

    location = locate(reference)
    location.require_readable()
    try:
        tokenizer = AutoTokenizer.from_pretrained(location.folder, **location.arguments)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {reference!r} has no tokenizer that transformers can read"
            f" ({str(error).splitlines()[0]})"
        ) from error
    if not tokenizer.is_fast:
        raise ModelError(f"model {reference!r} has only a slow tokenizer: add its tokenizer.json")
    return TransformersTokenizer(tokenizer, location=location)
