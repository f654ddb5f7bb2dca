"""How long simulated answers are: each length is a pure function of its request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import attrs

from hexpo.application.ports.rollout import Request
from hexpo.domain.errors import DataError, WrongValue
from hexpo.domain.seeds import seed_for

Quantile = Callable[[float], float]
"""Length in tokens at a place in (0, 1) of the distribution."""

_NORMAL = NormalDist()


def _share(owner: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value <= 1:
        raise WrongValue(f"{type(owner).__name__}.{attribute.name} is {value}; it lies in [0, 1]")


@attrs.frozen(kw_only=True)
class LogNormal:
    """The usual shape: most answers near the median, some many times longer."""

    median: float
    spread: float
    """Standard deviation of the logarithm."""

    def __call__(self, place: float) -> float:
        """Length at a place."""
        return self.median * math.exp(self.spread * _NORMAL.inv_cdf(place))


@attrs.frozen(kw_only=True)
class Pareto:
    """A heavy tail: the share of answers longer than x falls as x to the power of -exponent."""

    shortest: float
    exponent: float

    def __call__(self, place: float) -> float:
        """Length at a place."""
        return float(self.shortest * (1 - place) ** (-1 / self.exponent))


@attrs.frozen(kw_only=True)
class Measured:
    """The lengths of a real run, drawn with equal chances."""

    lengths: tuple[float, ...]
    """In rising order. Build with `measured`."""

    def __call__(self, place: float) -> float:
        """Length at a place."""
        return self.lengths[min(int(place * len(self.lengths)), len(self.lengths) - 1)]


def measured(path: Path) -> Measured:
    """Lengths from a file: one number a line, or the `samples.jsonl` of a run (its training
    samples, or all where there is none of training). Raises DataError: no length in it."""
    trained: list[float] = []
    others: list[float] = []
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise DataError(f"lengths cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            length, is_training = _length_in(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}:{number} is neither a number nor a sample with `tokens` and"
                f" `prompt_length`: {line[:60]!r}"
            ) from error
        (trained if is_training else others).append(length)
    lengths = sorted(trained or others)
    if not lengths or lengths[0] <= 0 or not math.isfinite(lengths[-1]):
        raise DataError(f"{path} holds no lengths above 0")
    return Measured(lengths=tuple(lengths))


def _length_in(line: object) -> tuple[float, bool]:
    if isinstance(line, int | float):
        return float(line), True
    if not isinstance(line, dict):
        raise TypeError(type(line).__name__)
    answer = len(line["tokens"]) - line["prompt_length"]
    return float(max(1, answer)), line.get("phase", "train") == "train"


@attrs.frozen(kw_only=True)
class Lengths:
    """Draws one length a request, the same each time it is asked."""

    quantile: Quantile
    longest: int
    """The token budget: longer answers are cut there."""
    kinship: float = attrs.field(default=0.0, validator=_share)
    """How alike the answers of one prompt are: the share of the (normal) variance that they have
    in common. It changes no length's own distribution."""

    def __call__(self, request: Request) -> int:
        """Tokens of the whole answer, at least 1."""
        place = _place(request.seed)
        if self.kinship:
            shared = _NORMAL.inv_cdf(_place(seed_for(request.session)))
            own = _NORMAL.inv_cdf(place)
            mixed = math.sqrt(self.kinship) * shared + math.sqrt(1 - self.kinship) * own
            place = min(max(_NORMAL.cdf(mixed), 1e-12), 1 - 1e-12)
        return max(1, min(self.longest, round(self.quantile(place))))

    def mean(self, *, points: int = 20_000) -> float:
        """Expected tokens of an answer, by the midpoint rule."""
        places = ((point + 0.5) / points for point in range(points))
        return sum(max(1.0, min(self.longest, self.quantile(p))) for p in places) / points


def _place(seed: int) -> float:
    """A number in (0, 1) from a seed: neighbours land far apart (Fibonacci hashing)."""
    return ((seed * 0x9E3779B97F4A7C15 % 2**64 >> 11) + 0.5) / 2.0**53
