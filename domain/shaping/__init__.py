"""What happens to rewards and groups before advantages, and to rows after them."""

from hexpo.domain.shaping.curriculum import PassRates, draw, in_band
from hexpo.domain.shaping.groups import Flat, Refill, has_spread
from hexpo.domain.shaping.length import overlong_penalty
from hexpo.domain.shaping.placement import outcomes, place_rewards
from hexpo.domain.shaping.resampling import Preference, resample

__all__ = [
    "Flat",
    "PassRates",
    "Preference",
    "Refill",
    "draw",
    "has_spread",
    "in_band",
    "outcomes",
    "overlong_penalty",
    "place_rewards",
    "resample",
]
