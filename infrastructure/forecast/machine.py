"""Devices and their speeds, and how they may be divided between rollout and training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.domain.errors import WrongValue
from hexpo.domain.schedule import Order
from hexpo.domain.schedule.capacity import balanced_window, largest_window
from hexpo.infrastructure.forecast.measuring import Forecast
from hexpo.infrastructure.forecast.world import Choice, Costs, Workload, forecast


@attrs.frozen(kw_only=True)
class Machine:
    """So many equal devices."""

    gpus: int = attrs.field(validator=attrs.validators.ge(1))
    gpus_per_replica: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    rollout: RolloutSpeed = attrs.field(factory=RolloutSpeed)
    """Of one replica."""
    training: TrainingCost = attrs.field(
        factory=lambda: TrainingCost(token_seconds=5e-4, score_seconds=1.7e-4)
    )
    """Of one device: tokens are divided among those that train."""
    load_seconds: float = 1.0
    """A weight update, when the two sides are separate."""
    switch_seconds: float = 5.0
    """From generating to training and back, on the same devices."""

    def separate(self, generate: int) -> Costs:
        """Some devices generate, the others train. Raises WrongValue: a side would have none."""
        train, replicas = self.gpus - generate, generate // self.gpus_per_replica
        if train < 1 or replicas < 1:
            raise WrongValue(
                f"a split of {generate}:{train} leaves a side without a device (a replica takes"
                f" {self.gpus_per_replica} of {self.gpus})"
            )
        return self._costs(replicas, train, load_seconds=self.load_seconds)

    def colocated(self) -> Costs:
        """All devices generate, then all train."""
        replicas = max(1, self.gpus // self.gpus_per_replica)
        costs = self._costs(replicas, self.gpus, load_seconds=0.0)
        return attrs.evolve(costs, switch_seconds=self.switch_seconds)

    def _costs(self, replicas: int, train: int, *, load_seconds: float) -> Costs:
        cost = attrs.evolve(
            self.training,
            token_seconds=self.training.token_seconds / train,
            score_seconds=self.training.score_seconds / train,
        )
        return Costs(
            replicas=replicas, rollout=self.rollout, training=cost, load_seconds=load_seconds
        )

    def balance(self, work: Workload) -> float:
        """The share of devices for which both sides would be busy all the time."""
        length = work.lengths.mean()
        generate = length * self.gpus_per_replica / self.rollout.most_tokens_per_second
        train = (length + work.prompt_tokens) * self.training.token_seconds
        return generate / (generate + train) if generate + train else 0.5


@attrs.frozen(kw_only=True)
class Offer:
    """One way to use the devices, and what it reaches."""

    generate: int | None
    """Devices that generate, the others train; None: colocated."""
    choice: Choice
    seen: Forecast

    @property
    def is_colocated(self) -> bool:
        """Both sides take turns on all devices."""
        return self.generate is None


def splits(machine: Machine, work: Workload) -> list[int]:
    """Devices that generate, worth trying: about the balance, more of them as tails are idle."""
    unit, gpus = machine.gpus_per_replica, machine.gpus
    centre = machine.balance(work) * gpus
    tried = {round(centre * factor / unit) * unit for factor in (0.75, 1.0, 1.25, 1.5)}
    tried |= {round(gpus / 2 / unit) * unit}
    most = (gpus - 1) // unit * unit
    return sorted({min(max(unit, one), most) for one in tried if most >= unit})


def offer(
    machine: Machine, work: Workload, choice: Choice, generate: int | None, *, steps: int, seed: int
) -> Offer:
    """Play one way. Raises WrongValue: an impossible split or window."""
    if generate is None:  # while it waits for a further part the policy would be away
        costs, choice = machine.colocated(), attrs.evolve(choice, parts=1)
    else:
        costs = machine.separate(generate)
    warmup = 3 + round(2 * choice.max_staleness)
    seen = forecast(work, costs, choice, steps=steps, warmup=warmup, seed=seed)
    return Offer(generate=generate, choice=choice, seen=seen)


def sweep(
    machine: Machine,
    work: Workload,
    choice: Choice,
    *,
    staleness: Sequence[float] = (0.0, 0.5, 1.0, 2.0),
    steps: int = 8,
    seed: int = 0,
) -> Iterator[Offer]:
    """Colocated; then splits for each staleness in the chosen order, its window as wide as fits
    there; then the other orders at the best, a window as wide as it may be."""
    on_policy = attrs.evolve(choice, max_staleness=0.0, order=Order.SUBMISSION, window=None)
    yield offer(machine, work, on_policy, None, steps=steps, seed=seed)
    found: list[Offer] = []
    for age in staleness:
        for generate in splits(machine, work):
            aged = _aged(choice, age, groups=work.groups)
            found.append(offer(machine, work, aged, generate, steps=steps, seed=seed))
            yield found[-1]
    if not found:
        return
    best = fastest(found)
    for order in Order:
        if order is best.choice.order or (order is Order.WINDOW and not best.choice.max_staleness):
            continue
        window = None
        if order is Order.WINDOW:
            age = best.choice.max_staleness
            window = balanced_window(groups=work.groups, max_staleness=age)
        other = attrs.evolve(best.choice, order=order, window=window)
        yield offer(machine, work, other, best.generate, steps=steps, seed=seed)


def _aged(choice: Choice, staleness: float, *, groups: int) -> Choice:
    """The choice at another staleness, where a window may have to be narrower."""
    window = choice.window
    if window is not None and window > largest_window(groups=groups, max_staleness=staleness):
        window = balanced_window(groups=groups, max_staleness=staleness)
    return attrs.evolve(choice, max_staleness=staleness, window=window)


def fastest(offers: Sequence[Offer]) -> Offer:
    """The shortest step; of those within 2 % of it the one with the freshest tokens."""
    least = min(one.seen.step_seconds for one in offers)
    near = [one for one in offers if one.seen.step_seconds <= 1.02 * least]
    return min(near, key=lambda one: (one.seen.age_mean, one.seen.step_seconds))
