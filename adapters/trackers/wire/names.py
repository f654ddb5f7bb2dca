"""Which metrics are of a training step, and which of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hexpo.domain.metrics import Metrics, values

_EVALUATION = "evaluate/"


@attrs.frozen
class Split:
    """One report's numbers."""

    training: Mapping[str, float]
    """By full name."""
    evaluations: Mapping[str, Mapping[str, float]]
    """By the evaluation's name, then by the metric's: `evaluate/<name>/<metric>`."""


def split_evaluations(metrics: Metrics) -> Split:
    """Reduced numbers of a report, those of evaluations apart; means of nothing are left out."""
    training: dict[str, float] = {}
    evaluations: dict[str, dict[str, float]] = {}
    for name, value in values(metrics).items():
        if name.startswith(_EVALUATION):
            data, _, metric = name.removeprefix(_EVALUATION).partition("/")
            evaluations.setdefault(data, {})[metric or data] = value
        else:
            training[name] = value
    return Split(training, evaluations)
