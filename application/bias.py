"""Whether those that finish early are trained more often (F3)."""

from __future__ import annotations

from hexpo.application.turns import now
from hexpo.domain.metrics import Metrics, mean_of
from hexpo.domain.schedule import Dropped, End, Reason, Trained
from hexpo.domain.schedule.accounting import selection_bias


class Bias:
    """How long groups were played, by what became of them, and how many they passed."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._took: dict[int, float] = {}
        self._trained: list[float] = []
        self._stale: list[float] = []
        self._passed = 0

    def begins(self, number: int) -> None:
        """The group is played from now on."""
        self._began[number] = now()

    def ends(self, number: int) -> None:
        """It is whole, and waits to be trained."""
        self._took[number] = now() - self._began.pop(number)

    def settles(self, number: int, end: End, *, passed: int) -> None:
        """What became of it. Args: passed: older groups that are alive."""
        began, took = self._began.pop(number, None), self._took.pop(number, 0.0)
        seconds = took if began is None else now() - began
        if isinstance(end, Trained):
            self._trained.append(seconds)
            self._passed += passed
        elif end == Dropped(Reason.STALE):
            self._stale.append(seconds)

    def metrics(self) -> Metrics:
        """Since the last call: `bias/passed`, the mean number of older, still alive groups that a
        trained group passed (0: nobody was favoured), and the metrics of `selection_bias`."""
        trained, self._trained = self._trained, []
        stale, self._stale = self._stale, []
        passed, self._passed = self._passed, 0
        return {
            "bias/passed": mean_of(passed, len(trained)),
            **selection_bias(trained, stale),
        }
