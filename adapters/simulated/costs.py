"""What generation and training cost in virtual time."""

from __future__ import annotations

import attrs

from hexpo.domain.errors import WrongValue


def _not_negative(owner: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not value >= 0:  # NaN is none either
        raise WrongValue(f"{type(owner).__name__}.{attribute.name} is {value}; it must be >= 0")


@attrs.frozen(kw_only=True)
class RolloutSpeed:
    """How fast one replica generates.

    A decoding pass gives each of n running requests one token and takes
    `token_seconds + n request_seconds`: reading the weights once, and what every request adds.
    """

    token_seconds: float = attrs.field(default=0.005, validator=_not_negative)
    """Seconds of a pass before any request is counted."""
    request_seconds: float = attrs.field(default=0.0002, validator=_not_negative)
    """Seconds that each running request adds to a pass."""
    slots: int = attrs.field(default=256, validator=attrs.validators.ge(1))
    """Requests that run together; further ones wait for a slot, first come, first served."""
    prefill_seconds: float = attrs.field(default=0.0, validator=_not_negative)
    """Seconds of a token that is read, not sampled: prompts, and answers whose cache a weight
    update made void. The replica generates nothing meanwhile."""

    def __attrs_post_init__(self) -> None:
        if not self.token_seconds + self.request_seconds > 0:
            raise WrongValue("a pass takes no time: set token_seconds or request_seconds")

    def pass_seconds(self, running: int) -> float:
        """Seconds until each of the running requests has one more token."""
        return self.token_seconds + running * self.request_seconds

    @property
    def most_tokens_per_second(self) -> float:
        """Of a replica whose slots are all taken."""
        return self.slots / self.pass_seconds(self.slots)


@attrs.frozen(kw_only=True)
class TrainingCost:
    """What the devices that train need, all together."""

    token_seconds: float = attrs.field(default=0.0, validator=_not_negative)
    """Of a token that is learnt from: forward, backward."""
    score_seconds: float = attrs.field(default=0.0, validator=_not_negative)
    """Of a token whose log-prob is taken without a gradient, for each column asked."""
    step_seconds: float = attrs.field(default=0.0, validator=_not_negative)
    """Of an optimizer step, whatever its size."""
    publish_seconds: float = attrs.field(default=0.0, validator=_not_negative)
    """Before a version can be sent: gathering, and whatever else a batch costs once."""
