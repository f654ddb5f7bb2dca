"""An optimizer step that is skipped whole: counted, blamed, and after too many an error (J1)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import attrs

from hexpo.adapters.training.backend import Gradient, Progress
from hexpo.application.ports.training import StepResult
from hexpo.domain.errors import NonFinite
from hexpo.domain.metrics import total

_log = logging.getLogger(__name__)


def counted(progress: Progress, *, is_finite: bool) -> Progress:
    """One more skipped step; one without a trained token is no non-finite one."""
    in_row = progress.skipped_in_row + (0 if is_finite else 1)
    return attrs.evolve(progress, skipped=progress.skipped + 1, skipped_in_row=in_row)


def skipped(
    progress: Progress,
    gradient: Gradient,
    *,
    spoilt: Sequence[int],
    is_finite: bool,
    most: int,
) -> StepResult:
    """What became of a skipped step.

    Args: progress: after `counted`. spoilt: ids of the samples whose loss was not finite.
        is_finite: no token was trained, and that is all.
        most: non-finite steps in a row that end the run.
    Raises: NonFinite: this was the last of them.
    """
    cause = "no token was trained" if is_finite else _blame(spoilt, gradient)
    _log.warning("optimizer step after %d applied ones skipped: %s", progress.applied, cause)
    if not is_finite and progress.skipped_in_row >= most:
        raise NonFinite(
            f"{progress.skipped_in_row} optimizer steps in a row were not finite, the last because"
            f" {cause}; the weights are those of the last applied step. Look at these samples,"
            " lower the learning rate, or raise max_skipped_steps"
        )
    return StepResult(applied=False, metrics={"train/skipped_steps": total(1)}, cause=cause)


def _blame(spoilt: Sequence[int], gradient: Gradient) -> str:
    if spoilt:
        some = ", ".join(map(str, spoilt[:8])) + (", ..." if len(spoilt) > 8 else "")
        return f"the loss or its gradient is not finite for the samples {some}"
    return f"the gradient of {gradient.bad} is not finite (norm {gradient.norm})"
