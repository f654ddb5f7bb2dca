"""How old trained tokens are, and how many answers more than one version sampled."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from hexpo.domain.batch import Batch
from hexpo.domain.metrics import Measure, largest, mean_of


@attrs.frozen(kw_only=True)
class Tally:
    """What some rows' versions say, before it is known at which version they are trained."""

    tokens: int
    """Trained ones."""
    version_sum: int
    """Of their versions."""
    oldest: int
    """The lowest version; 0 where nothing is trained."""
    answers: int
    """Rows with a trained token."""
    partial: int
    """Of them: sampled by more than one version."""
    span_sum: int
    """Versions that sampled each answer, added up."""
    span_max: int

    def metrics(self, *, at: int) -> dict[str, Measure]:
        """Args: at: the version that the rows were trained from.

        Returns: `age/mean` and `age/max` of trained tokens, in versions; `partial/share` of
        answers that more than one version sampled, `partial/span` mean versions of an answer,
        `partial/span_max`.
        """
        measures = {
            "age/mean": mean_of(at * self.tokens - self.version_sum, self.tokens),
            "partial/share": mean_of(self.partial, self.answers),
            "partial/span": mean_of(self.span_sum, self.answers),
        }
        if self.tokens:
            measures["age/max"] = largest(at - self.oldest)
            measures["partial/span_max"] = largest(self.span_max)
        return measures


def tally(batch: Batch) -> Tally:
    """Counts over the trained tokens of a batch.

    Versions of one answer only rise, so the versions that sampled it are counted by its steps.
    """
    trained_T = batch.tokens["trained"]
    version_T = batch.tokens["version"][trained_T]
    owner_T = batch.owner[trained_T]
    tokens = version_T.numel()
    if not tokens:
        return Tally(
            tokens=0, version_sum=0, oldest=0, answers=0, partial=0, span_sum=0, span_max=0
        )
    span_S = _changes(version_T, owner_T, rows=len(batch))
    has_any_S = torch.bincount(owner_T, minlength=len(batch)) > 0
    return Tally(
        tokens=tokens,
        version_sum=int(version_T.sum()),
        oldest=int(version_T.min()),
        answers=int(has_any_S.sum()),
        partial=int((span_S[has_any_S] > 1).sum()),
        span_sum=int(span_S[has_any_S].sum()),
        span_max=int(span_S.max()),
    )


def _changes(version_T: Tensor, owner_T: Tensor, *, rows: int) -> Tensor:
    """(S,) int64: runs of equal versions in each row."""
    starts_T = torch.ones_like(owner_T, dtype=torch.bool)
    starts_T[1:] = (version_T[1:] != version_T[:-1]) | (owner_T[1:] != owner_T[:-1])
    return torch.bincount(owner_T[starts_T], minlength=rows)
