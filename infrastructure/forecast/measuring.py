"""What a forecast measures, and how: a tracker that watches the loop from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import attrs

from hexpo.adapters.simulated.fleet import SimulatedFleet
from hexpo.adapters.simulated.timed import TimedTraining
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedTracker
from hexpo.application.ports.tracker import Sample
from hexpo.domain.metrics import Metrics, values
from hexpo.domain.schedule.bounds import Floors, bubble, little
from hexpo.domain.trajectory import Prompt


@attrs.frozen(kw_only=True)
class Forecast:
    """Means over the measured steps; seconds are of virtual time."""

    steps: int
    step_seconds: float
    tokens_per_second: float
    """Trained answer tokens."""
    waiting_seconds: float
    """Of the trainer, for groups."""
    training_seconds: float
    """Scoring, learning, publishing."""
    update_seconds: float
    """Between a pause and the resume after it."""
    rollout_running: float
    """Share of time in which a replica has a request, mean over replicas."""
    rollout_reading: float
    """Share of time that goes into reading prompts and caches that an update made void."""
    rollout_use: float
    """Tokens sampled, over what all replicas sample with all slots taken."""
    age_mean: float
    """Versions, over trained tokens."""
    age_max: int
    partial: float
    """Share of trained answers that more than one version sampled."""
    span_max: int
    """Most versions that sampled one answer."""
    dropped: float
    """Share of groups that were dropped as stale."""
    alive: float
    """Groups alive after a publication."""
    waiting_requests: float
    """Requests without a slot after a publication."""
    mean_length: float
    """Tokens of a trained answer."""
    floors: Floors

    @property
    def trainer_bubble(self) -> float:
        """Share of a step in which the trainer waits."""
        return bubble(step_seconds=self.step_seconds, busy_seconds=self.training_seconds)

    @property
    def rollout_bubble(self) -> float:
        """Share of time in which a replica has nothing to do or is held."""
        return 1 - self.rollout_running


class TimedPrompts(SimulatedPrompts):
    """Notes when each ticket was admitted: it is drawn then."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._clock = asyncio.get_running_loop().time
        self.admitted: dict[int, float] = {}
        self._drawn = 0

    def draw(self) -> Prompt:
        """The next row."""
        self.admitted[self._drawn] = self._clock()
        self._drawn += 1
        return super().draw()


@attrs.frozen(kw_only=True)
class _Seen:
    """Counters at one publication."""

    time: float
    busy: float
    running: float
    reading: float
    ids: float
    waiting: int
    metrics: dict[str, float]
    stays: tuple[float, ...]
    rows: int
    trained_ids: int
    aged_ids: int
    age_max: int
    partial: int
    span_max: int


class Watcher(SimulatedTracker):
    """Keeps counters at each step, and nothing of the samples themselves."""

    def __init__(
        self, fleet: SimulatedFleet, training: TimedTraining, prompts: TimedPrompts
    ) -> None:
        super().__init__()
        self._fleet, self._training, self._prompts = fleet, training, prompts
        self._clock = asyncio.get_running_loop().time
        self._rows: Sequence[Sample] = ()
        self.seen: list[_Seen] = []

    def samples(self, samples: Sequence[Sample]) -> None:
        """Arrive just before the step's report."""
        self._rows = samples

    def report(self, step: int, metrics: Metrics) -> None:
        """One publication."""
        now, usage = self._clock(), self._fleet.usage
        versions = [set(row.versions[row.prompt_length :]) for row in self._rows]
        ages = [step - 1 - v for row in self._rows for v in row.versions[row.prompt_length :]]
        groups = {row.group for row in self._rows}
        self.seen.append(
            _Seen(
                time=now,
                busy=self._training.busy,
                running=usage.running,
                reading=usage.reading,
                ids=usage.ids,
                waiting=self._fleet.waiting,
                metrics=values(metrics),
                stays=tuple(now - self._prompts.admitted.pop(group) for group in groups),
                rows=len(self._rows),
                trained_ids=len(ages),
                aged_ids=sum(ages),
                age_max=max(ages, default=0),
                partial=sum(len(of_row) > 1 for of_row in versions),
                span_max=max((len(of_row) for of_row in versions), default=0),
            )
        )
        self._rows = ()

    def forecast(self, *, warmup: int, groups: int, capacity: int) -> Forecast:
        """Means over all steps after the first `warmup` ones."""
        begin, kept = self.seen[warmup - 1], self.seen[warmup:]
        end, steps = kept[-1], len(kept)
        seconds = end.time - begin.time
        stays = [stay for one in kept for stay in one.stays]
        trained = sum(one.trained_ids for one in kept)
        settings = self._fleet.settings
        best = settings.replicas * settings.speed.most_tokens_per_second / settings.grain
        busy = (end.busy - begin.busy) / steps
        replica_seconds = seconds * settings.replicas

        def total(read: Callable[[_Seen], float]) -> float:
            return sum(read(one) for one in kept)

        def of(name: str) -> float:
            return total(lambda one: one.metrics.get(name, 0.0))

        rows = total(lambda one: one.rows)
        stale = of("schedule/dropped/stale")
        return Forecast(
            steps=steps,
            step_seconds=seconds / steps,
            tokens_per_second=trained * settings.grain / seconds,
            waiting_seconds=of("time/wait") / steps,
            training_seconds=busy,
            update_seconds=of("time/publish") / steps,
            rollout_running=(end.running - begin.running) / replica_seconds,
            rollout_reading=(end.reading - begin.reading) / replica_seconds,
            rollout_use=(end.ids - begin.ids) / (best * seconds),
            age_mean=total(lambda one: one.aged_ids) / max(1, trained),
            age_max=max(one.age_max for one in kept),
            partial=total(lambda one: one.partial) / max(1, rows),
            span_max=max(one.span_max for one in kept),
            dropped=stale / max(1.0, stale + of("schedule/trained")),
            alive=of("schedule/alive") / steps,
            waiting_requests=total(lambda one: one.waiting) / steps,
            mean_length=trained * settings.grain / max(1, rows),
            floors=Floors(
                generation=trained / steps / best,
                training=busy,
                little=little(
                    stay_seconds=sum(stays) / max(1, len(stays)), capacity=capacity, groups=groups
                ),
            ),
        )
