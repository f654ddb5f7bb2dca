"""What a model's files say of its size, read without loading it."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from hexpo.adapters.models.gguf import read_gguf
from hexpo.adapters.models.loading import Location, described, locate, require_family
from hexpo.domain.errors import HexpoError
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import Problem


@attrs.frozen(kw_only=True)
class Shape:
    """A decoder's size; None where its files do not say it in a known way."""

    family: str
    layers: int | None
    hidden: int | None
    intermediate: int | None
    vocabulary: int | None
    context: int | None
    """Longest sequence in tokens."""
    tied: bool = False
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None

    @property
    def parameters(self) -> int | None:
        """Weights of a gated decoder of this shape (norms and biases left out)."""
        sizes = (self.layers, self.hidden, self.intermediate, self.vocabulary, self.heads)
        known = [size for size in sizes if size]
        if len(known) < len(sizes):
            return None
        layers, hidden, intermediate, vocabulary, heads = known
        head_dim = self.head_dim or hidden // heads
        kv_heads = self.kv_heads or heads
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        return layers * (attention + 3 * hidden * intermediate) + vocabulary * hidden * (
            1 if self.tied else 2
        )


def shape_of(reference: str) -> Shape:
    """The shape of a model. Raises ModelError, MissingExtra: no such model."""
    location = locate(reference)
    return _of_gguf(location) if location.gguf else _of_folder(location)


def problems(config: RunConfig) -> Iterator[Problem]:
    """The model is there, and answers fit into its context."""
    try:
        shape = shape_of(config.model.path)
    except HexpoError as error:
        yield Problem("model.path", str(error))
        return
    longest = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    if shape.context is not None and longest > shape.context:
        room = shape.context - config.rollout.max_new_tokens
        yield Problem(
            "rollout.max_new_tokens",
            f"data.max_prompt_tokens {config.data.max_prompt_tokens} +"
            f" {config.rollout.max_new_tokens} = {longest} tokens do not fit into the model's"
            f" context of {shape.context}; use"
            + (
                f" data.max_prompt_tokens={room}"
                if room > 0
                else f" rollout.max_new_tokens={shape.context // 2} or less"
            ),
        )


def _of_gguf(location: Location) -> Shape:
    file = read_gguf(location.folder / str(location.gguf))
    fields = file.metadata
    family = str(fields.get("general.architecture", "unknown"))

    def number(name: str) -> int | None:
        value = fields.get(f"{family}.{name}")
        return int(value) if value is not None else None

    return Shape(
        family=family,
        layers=number("block_count"),
        hidden=number("embedding_length"),
        intermediate=number("feed_forward_length"),
        vocabulary=number("vocab_size"),
        context=number("context_length"),
        heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"),
        head_dim=number("rope.dimension_count"),
        tied="output.weight" not in file.stored,
    )


def _of_folder(location: Location) -> Shape:
    read = described(location.folder)
    require_family(location.folder, read.get("model_type"))
    read |= dict(read.get("text_config") or {})

    def number(name: str) -> int | None:
        value = read.get(name)
        return int(value) if isinstance(value, int | float) else None

    return Shape(
        family=str(read.get("model_type", "unknown")),
        layers=number("num_hidden_layers"),
        hidden=number("hidden_size"),
        intermediate=number("intermediate_size"),
        vocabulary=number("vocab_size"),
        context=number("max_position_embeddings"),
        heads=number("num_attention_heads"),
        kv_heads=number("num_key_value_heads"),
        head_dim=number("head_dim"),
        tied=bool(read.get("tie_word_embeddings", True)),
    )
