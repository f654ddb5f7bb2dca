"""What a sequence costs: a L + b L^2, from the model's shape."""

from __future__ import annotations

import attrs
from torch import Tensor


@attrs.frozen(kw_only=True)
class ModelShape:
    """The numbers of a decoder that decide what a token costs."""

    layers: int
    hidden: int
    heads: int
    head_size: int
    key_value_heads: int
    intermediate: int
    """Width of the feed-forward part that one token passes (for experts: of the chosen ones)."""
    vocabulary: int = 0
    """Rows of the head; 0 leaves it out."""

    @property
    def per_token(self) -> float:
        """a: multiply-adds of one token through all matrices."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.key_value_heads)
        feed_forward = 3 * self.hidden * self.intermediate
        head = self.hidden * self.vocabulary
        return float(self.layers * (attention + feed_forward) + head)

    @property
    def per_token_pair(self) -> float:
        """b: multiply-adds of causal attention for L^2 / 2 pairs, scores and values."""
        return float(self.layers * self.heads * self.head_size)


def costs(length_S: Tensor, shape: ModelShape) -> Tensor:
    """Multiply-adds of a forward pass of each sequence: a L + b L^2.

    Backward is about twice as much, for both parts alike, so that one table serves both.

    Args: length_S: (S,) tokens. Returns: (S,) float64.
    """
    length = length_S.double()
    return shape.per_token * length + shape.per_token_pair * length.square()
