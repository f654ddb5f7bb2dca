"""Equal work for every rank and micro-batch, by what sequences cost."""

from hexpo.domain.balance.cost import ModelShape, costs
from hexpo.domain.balance.microbatches import microbatches, needed, reorder
from hexpo.domain.balance.partition import imbalance, partition

__all__ = [
    "ModelShape",
    "costs",
    "imbalance",
    "microbatches",
    "needed",
    "partition",
    "reorder",
]
