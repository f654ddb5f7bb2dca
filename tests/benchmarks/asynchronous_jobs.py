"""What asynchronous.py plays: the simulations of each section."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from asynchronous_setting import (
    LONGEST,
    PROMPTS,
    SAMPLES,
    SPEED,
    TOY,
    UPDATES,
    Job,
    colocated,
    separate,
    training,
    workload,
)

from hexpo.adapters.simulated.lengths import Lengths, LogNormal
from hexpo.application.continuing import OnUpdate
from hexpo.domain.schedule import Order
from hexpo.domain.schedule.capacity import balanced_window
from hexpo.domain.schedule.switching import Cycle, should_train
from hexpo.infrastructure.forecast import Choice, Costs, Workload

S, W, C = Order.SUBMISSION, Order.WINDOW, Order.COMPLETION
KEEP, CONTINUE, DRAIN = OnUpdate.KEEP, OnUpdate.CONTINUE, OnUpdate.DRAIN
THEIRS = Choice(max_staleness=0.5, order=C, parts=4, drops_stale=False)
"""What the published system does: credits as here, in four parts, and nothing is too old."""


def toy(steps: int, *, share: int) -> Iterator[Job]:
    """Unlimited concurrency, as in a sheet of paper's model; then what a real replica adds."""
    lengths = Lengths(quantile=LogNormal(median=2_500, spread=1.0), longest=LONGEST)
    work = Workload(groups=PROMPTS // share, samples=SAMPLES, updates=UPDATES, lengths=lengths)
    costs = Costs(replicas=64 // share, rollout=TOY, training=training(113, 0, 0, work))
    cases = ((0.5, S), (1.0, S), (2.0, S), (0.5, C), (1.0, C))
    jobs = [
        (f"S {staleness:g}, {order.value}", costs, Choice(max_staleness=staleness, order=order))
        for staleness, order in cases
    ]
    busier = attrs.evolve(TOY, token_seconds=5.1e-3, request_seconds=1.5e-4)
    slower = attrs.evolve(costs, rollout=busier)
    reading = attrs.evolve(costs, rollout=attrs.evolve(busier, prefill_seconds=1.5e-4))
    for order in (S, C):
        ahead = Choice(max_staleness=1.0, order=order)
        jobs.append((f"S 1, {order.value}; a pass grows with its requests", slower, ahead))
        jobs.append((f"S 1, {order.value}; and caches are read again", reading, ahead))
    for name, its_costs, choice in jobs:
        yield Job(
            section="from a model on paper to replicas",
            name=name,
            devices=128,
            work=work,
            costs=its_costs,
            choice=attrs.evolve(choice, parts=16),
            steps=steps,
        )


def ladder(devices: int, median: float, steps: int, *, share: int) -> Iterator[Job]:
    """From the colocated step to the published asynchronous ones, and on from there."""
    work = workload(median, share=share)
    together = colocated(devices, work, share=share)
    apart = separate(devices, work, share=share)
    rungs = [
        ("colocated, old log-probs scored", together, Choice(old_pass=True)),
        ("colocated, not scored", together, Choice()),
        ("half : half", apart, Choice()),
        ("+ in 4 parts (published: 231 s)", apart, attrs.evolve(THEIRS, max_staleness=0.0)),
        ("+ S 0.1 (171 s)", apart, attrs.evolve(THEIRS, max_staleness=0.1)),
        ("+ S 0.3 (146 s)", apart, attrs.evolve(THEIRS, max_staleness=0.3)),
        ("+ S 0.5 (151 s)", apart, THEIRS),
        ("the same, old log-probs scored", apart, attrs.evolve(THEIRS, old_pass=True)),
        ("the same, drained", apart, attrs.evolve(THEIRS, on_update=DRAIN)),
    ]
    for name, costs, choice in rungs:
        yield Job(
            section=f"where it comes from, {devices} devices",
            name=name,
            devices=devices,
            work=work,
            costs=costs,
            choice=choice,
            steps=steps,
        )


def orders(devices: int, median: float, steps: int, *, share: int) -> Iterator[Job]:
    """Staleness, order and parts. The widest window is order of completion that drops nothing."""
    work = workload(median, share=share)
    choices = [THEIRS]
    for staleness in (0.5, 1.0, 2.0, 3.0):
        widest = balanced_window(groups=work.groups, max_staleness=staleness)
        choices += [
            Choice(max_staleness=staleness, order=order, window=window, parts=16)
            for order, window in ((S, None), (W, widest), (C, None))
            if staleness > 0.5 or order is not W
        ]
    choices.append(Choice(max_staleness=2, order=W, window=work.groups * 5 // 4, parts=16))
    if devices != 128:
        choices = [choices[place] for place in (0, 3, 5, 7, 10)]
    else:
        choices += [attrs.evolve(one, parts=1) for one in choices[3:]]
        choices.append(attrs.evolve(choices[-1], parts=16, on_update=CONTINUE))
    for choice in choices:
        yield Job(
            section=f"staleness and order, {devices} devices",
            name=named(choice) if choice.drops_stale else "theirs",
            devices=devices,
            work=work,
            costs=separate(devices, work, share=share),
            choice=choice,
            steps=steps,
        )


def longer(devices: int, median: float, steps: int, *, share: int) -> Iterator[Job]:
    """The rows that count, over three times as many steps: few of the longest answers fall into
    one step, and whatever is still in flight at the end is missing."""
    work = workload(median, share=share)
    widest = balanced_window(groups=work.groups, max_staleness=2)
    window = Choice(max_staleness=2, order=W, window=widest, parts=16)
    further = [
        attrs.evolve(window, max_staleness=staleness, window=work.groups * width // 32)
        for staleness, width in ((2.25, 64), (3, 64), (3, 72), (3, 76))
    ]
    for name, generate, choice in (
        ("theirs", 64, THEIRS),
        (f"64:64, {named(window)}", 64, window),
        (f"80:48, {named(window)}", 80, window),
        *((f"80:48, {named(one)}", 80, one) for one in further),
        ("colocated, old log-probs scored", None, Choice(old_pass=True)),
    ):
        apart = separate(devices, work, share=share, generate=generate)
        yield Job(
            section="over more steps, 128 devices",
            name=name,
            devices=devices,
            work=work,
            costs=apart if generate else colocated(devices, work, share=share),
            choice=choice,
            steps=3 * steps,
        )


def splits(devices: int, median: float, steps: int, *, share: int) -> Iterator[Job]:
    """Other divisions of the devices."""
    work = workload(median, share=share)
    for generate in (48, 64, 80):
        for staleness in (2, 3):
            widest = balanced_window(groups=work.groups, max_staleness=staleness)
            choice = Choice(max_staleness=staleness, order=W, window=widest, parts=16)
            yield Job(
                section="another split, 128 devices",
                name=f"{generate}:{devices - generate}, {named(choice)}",
                devices=devices,
                work=work,
                costs=separate(devices, work, share=share, generate=generate),
                choice=choice,
                steps=steps,
            )


def is_batch(cycle: Cycle) -> bool:
    """As soon as a batch is complete."""
    return cycle.finished >= cycle.wanted


def is_half_idle(cycle: Cycle) -> bool:
    """When a batch is complete and half of what may be in flight has ended."""
    return is_batch(cycle) and cycle.running <= cycle.wanted * SAMPLES / 2


def is_idle(cycle: Cycle) -> bool:
    """When everything has ended."""
    return is_batch(cycle) and not cycle.running


RULES = {
    "the batch is complete": is_batch,
    "half as many run as a batch has": is_half_idle,
    "nothing runs": is_idle,
    "the speed has fallen to the average": should_train,
}


def turns(devices: int, median: float, steps: int, *, share: int) -> Iterator[Job]:
    """Both sides on all devices, some answers ahead: when generation stops."""
    work = workload(median, share=share)
    widest = balanced_window(groups=work.groups, max_staleness=2)
    for switch in (10.0, 60.0):
        together = attrs.evolve(colocated(devices, work, share=share), switch_seconds=switch)
        for name, rule in RULES.items():
            yield Job(
                section="colocated, when to switch",
                name=f"switch {switch:g} s, when {name}",
                devices=devices,
                work=work,
                costs=together,
                choice=Choice(max_staleness=2.0, order=W, window=widest, rule=rule),
                steps=steps,
            )


def large(median: float, steps: int, *, share: int) -> Iterator[Job]:
    """Many devices: more prompts a version, and several devices for each replica.

    A pass reads its weights no faster (what more devices read at once, they lose to talking), and
    each request adds to it the less.
    """
    for devices, times in ((1_024, 4), (16_384, 8)):
        part = share * times  # as many groups are played as at 128 devices
        work, each = workload(median, share=part, times=times), devices // 128 // times
        apart = separate(128, workload(median, share=share), share=share)
        costs = Costs(
            replicas=64 * times // part,
            rollout=attrs.evolve(
                SPEED,
                request_seconds=SPEED.request_seconds / each,
                prefill_seconds=SPEED.prefill_seconds / each,
            ),
            training=attrs.evolve(
                apart.training,
                token_seconds=apart.training.token_seconds / each,
                score_seconds=apart.training.score_seconds / each,
            ),
            load_seconds=2.0,
        )
        widest = balanced_window(groups=work.groups, max_staleness=2)
        ahead = Choice(max_staleness=2, order=W, window=widest, parts=16)
        for choice in (Choice(parts=16), ahead):
            yield Job(
                section="large fleets",
                name=f"{devices:,}: {named(choice)}",
                prompts=PROMPTS * times,
                devices=devices,
                work=work,
                costs=costs,
                choice=choice,
                steps=steps,
            )


def named(choice: Choice) -> str:
    """A line's name."""
    mode = "" if choice.on_update is KEEP else f", {choice.on_update.value}"
    window = f" {choice.window}" if choice.window else ""
    return f"S {choice.max_staleness:g}, {choice.order.value}{window}, {choice.parts} parts{mode}"
