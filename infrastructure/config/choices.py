"""What may be chosen by name where the configuration itself says what there is."""

from __future__ import annotations

from enum import Enum


class KLPlace(Enum):
    """Where the KL to the reference acts."""

    NONE = "none"
    """Nowhere: no reference is built."""
    LOSS = "loss"
    """As a term of the objective."""
    REWARD = "reward"
    """Subtracted from the reward of each action token."""
    BOTH = "loss-and-reward"
    """In both at once; rarely meant, so it has to be said."""


class ModelRole(Enum):
    """What a model beside the policy is for."""

    CRITIC = "critic"
    """Says what a state is worth; learns beside the policy."""
    TEACHER = "teacher"
    """Is drawn to; never learns."""


class Start(Enum):
    """Which policy is the proximal one (`old`) of a ratio."""

    AUTO = "auto"
    """`current` where a batch makes one optimizer step, else `stored`."""
    CURRENT = "current"
    """The policy itself: exact for one optimizer step a batch."""
    STORED = "stored"
    """Scored before the first optimizer step of each batch."""
    BEHAVIOUR = "behaviour"
    """The policy that sampled: no scoring pass."""


class Placement(Enum):
    """Whether generation and training have devices of their own."""

    SEPARATE = "separate"
    """Each has its own; or there is one memory for both, as on a CPU."""
    STREAMING = "streaming"
    """Separate, and each of a batch's `training.updates_per_batch` optimizer steps is made as soon
    as its groups are there. The gradients are the same, or it is refused."""
    COLOCATED = "colocated"
    """They take turns on the same devices: who waits gives its memory back."""
