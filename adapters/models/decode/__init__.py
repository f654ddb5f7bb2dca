"""Decoding with a cache: a step feeds ids to sequences and gives the logits of what comes next."""

from hexpo.adapters.models.decode.cache import Lane
from hexpo.adapters.models.decode.decoder import Decoder, Feed, WeightsMode
from hexpo.adapters.models.decode.filters import floors_of
from hexpo.adapters.models.decode.generic import GenericDecoder
from hexpo.adapters.models.decode.llama import LlamaDecoder

__all__ = [
    "Decoder",
    "Feed",
    "GenericDecoder",
    "Lane",
    "LlamaDecoder",
    "WeightsMode",
    "floors_of",
]
