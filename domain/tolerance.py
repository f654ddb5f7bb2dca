"""Whether two engines agree on log-probs, and what to make of it if they do not (C1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs
import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes
from hexpo.domain.metrics import Measure, largest, mean_of, total
from hexpo.domain.ragged import row_counts


class Verdict(Enum):
    """What a comparison shows."""

    AGREES = "agrees"
    """Within the tolerance: numerical noise."""
    OUTLIERS = "outliers"
    """Some sequences are far off, the others agree: look at these."""
    DISAGREES = "disagrees"
    """The engines compute something else: other weights, another temperature, another model."""


@attrs.frozen(kw_only=True)
class Tolerance:
    """How far |trainer - engine| log-probs may be apart, in nats."""

    mean: float = attrs.field(validator=attrs.validators.gt(0))
    """Over all tokens."""
    sequence: float = attrs.field(validator=attrs.validators.gt(0))
    """Over the tokens of one sequence; one above it is an outlier."""


TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float32: Tolerance(mean=2e-4, sequence=2e-3),
    torch.bfloat16: Tolerance(mean=0.08, sequence=0.25),
    torch.float16: Tolerance(mean=0.02, sequence=0.1),
}
"""By the coarser type of the two engines. Measured between different engines with equal weights:
fp32 5e-6 on average and 5e-5 at most, bf16 0.027 and 0.29; one stale matrix in bf16 gives 0.13."""


@attrs.frozen(kw_only=True, eq=False)
class Comparison:
    """Of some sequences' sampled tokens."""

    verdict: Verdict
    mean: float
    """Mean gap of a token; infinite where a log-prob is missing or not finite."""
    worst: float
    """Mean gap of the worst sequence."""
    outliers: tuple[int, ...]
    """Places of the sequences above the tolerance."""
    metrics: Mapping[str, Measure]

    @property
    def words(self) -> str:
        """For a message."""
        return f"mean gap {self.mean:.2g}, worst sequence {self.worst:.2g} nats a token"


def compare(
    *, trainer_T: Tensor, engine_T: Tensor, owner_T: Tensor, rows: int, tolerance: Tolerance
) -> Comparison:
    """Compare the log-probs that trainer and engine give to the same sampled ids.

    Args: trainer_T, engine_T: (T,) nats, of equal weights, temperature and support.
        owner_T: (T,) int64, the place of each token's sequence; rows: how many there are.
    Raises: WrongColumn: axes disagree.
    """
    require_same_axes(trainer=trainer_T, engine=engine_T)
    gap_T = (
        (trainer_T.double() - engine_T.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    )
    counts_S = row_counts(owner_T, rows=rows).clamp(min=1)
    means_S = torch.zeros(rows, dtype=torch.float64).index_add_(0, owner_T, gap_T) / counts_S
    mean = float(gap_T.mean()) if len(gap_T) else 0.0
    worst = float(means_S.max()) if rows else 0.0
    outliers = tuple((means_S > tolerance.sequence).nonzero()[:, 0].tolist())
    verdict = Verdict.OUTLIERS if outliers else Verdict.AGREES
    # A majority of outliers is no accident of single sequences.
    if not mean <= tolerance.mean or 2 * len(outliers) > rows:
        verdict = Verdict.DISAGREES
    finite_T = gap_T[gap_T.isfinite()]
    return Comparison(
        verdict=verdict,
        mean=mean,
        worst=worst,
        outliers=outliers,
        metrics={
            "agreement/probe": mean_of(float(finite_T.sum()), len(finite_T)),
            "agreement/probe_worst": largest(worst if worst != torch.inf else 1e9),
            "agreement/outliers": total(len(outliers)),
        },
    )
