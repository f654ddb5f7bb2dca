"""What asynchronous training reaches for a published setting, and where its speed comes from.

    python tests/benchmarks/asynchronous.py                  # everything, with a picture
    python tests/benchmarks/asynchronous.py --only 128 --steps 6

The loop of the library plays Qwen2.5-7B with answers of up to 28,672 tokens on 32, 64 and 128
devices in virtual time, with the costs of verl's published table (docs/advance/fully_async.md,
August 2026): 512 prompts of 16 answers a version, 16 optimizer steps, colocated or with half of
the devices for each side. Then 1,024 and 16,384 devices, with as many prompts more.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import attrs
import torch
from measure import ROOT, print_table

from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.adapters.simulated.lengths import Lengths, LogNormal
from hexpo.application.continuing import OnUpdate
from hexpo.domain.schedule import Order
from hexpo.domain.schedule.capacity import largest_window
from hexpo.domain.schedule.switching import Cycle, should_train
from hexpo.infrastructure.forecast import Choice, Costs, Forecast, Workload, forecast

PROMPTS, SAMPLES, UPDATES = 512, 16, 16
LONGEST, PROMPT_TOKENS = 28_672, 200
SPREAD, KINSHIP = 1.2, 0.5

SPEED = RolloutSpeed(
    token_seconds=5.1e-3,  # 15 GB of weights at 3 TB/s: a lone answer gets 196 tokens a second
    request_seconds=1.5e-4,  # 15 GFLOP a token at 100 TFLOP/s, whether it is sampled or read
    slots=256,
    prefill_seconds=1.5e-4,
)
TOY = RolloutSpeed(token_seconds=1 / 160, request_seconds=0.0, slots=1 << 20)
"""Every answer gets 160 tokens a second, however many there are."""


@attrs.frozen(kw_only=True)
class Published:
    """One row of the published table, in seconds a step."""

    colocated: float
    generation: float
    old: float
    update: float
    rest: float
    asynchronous: float
    """Half of the devices for each side, staleness 0.5."""
    waiting: float
    asynchronous_update: float
    speed_up: float
    """Of the whole run of 400 steps."""


TABLE = {
    32: Published(
        colocated=790.1,
        generation=357.4,
        old=107.7,
        update=269.8,
        rest=55.2,
        asynchronous=294.8,
        waiting=21.3,
        asynchronous_update=313.8,
        speed_up=2.66,
    ),
    64: Published(
        colocated=365.3,
        generation=150.7,
        old=70.3,
        update=133.4,
        rest=10.9,
        asynchronous=189.3,
        waiting=28.5,
        asynchronous_update=157.0,
        speed_up=1.92,
    ),
    128: Published(
        colocated=356.3,
        generation=177.9,
        old=53.9,
        update=113.8,
        rest=10.7,
        asynchronous=150.6,
        waiting=33.1,
        asynchronous_update=113.2,
        speed_up=2.35,
    ),
}


def workload(median: float, *, share: int, times: int = 1) -> Workload:
    """The published batch, or several of it.

    Args: share: only so much of it is played, on as much of the replicas: a batch of a quarter
        takes as long on a quarter of the devices, but for its longest answer.
    """
    lengths = Lengths(
        quantile=LogNormal(median=median, spread=SPREAD), longest=LONGEST, kinship=KINSHIP
    )
    return Workload(
        groups=PROMPTS * times // share,
        samples=SAMPLES,
        updates=UPDATES,
        lengths=lengths,
        prompt_tokens=PROMPT_TOKENS,
    )


def training(update: float, old: float, publish: float, work: Workload) -> TrainingCost:
    """Costs a token from the seconds of a published step."""
    tokens = work.groups * work.samples * (work.lengths.mean() + work.prompt_tokens)
    return TrainingCost(
        token_seconds=update / tokens, score_seconds=old / tokens, publish_seconds=publish
    )


def colocated(devices: int, work: Workload, *, share: int) -> Costs:
    """All devices generate, then all train."""
    row = TABLE[devices]
    return Costs(
        replicas=devices // share,
        rollout=SPEED,
        training=training(row.update, row.old, row.rest, work),
    )


def separate(devices: int, work: Workload, *, share: int, generate: int | None = None) -> Costs:
    """Some devices for each side, by default half. What old log-probs would cost there is not
    published: they keep their share of the update."""
    generate = devices // 2 if generate is None else generate
    slower = devices / 2 / (devices - generate)
    row = TABLE[devices]
    old = row.old * row.asynchronous_update / row.update
    rest = max(0.0, row.asynchronous - row.waiting - row.asynchronous_update)
    return Costs(
        replicas=generate // share,
        rollout=SPEED,
        training=training(row.asynchronous_update * slower, old * slower, rest, work),
        load_seconds=1.0,
    )


@attrs.frozen(kw_only=True)
class Job:
    """One simulation."""

    section: str
    name: str
    devices: int
    work: Workload
    costs: Costs
    choice: Choice
    steps: int
    prompts: int = PROMPTS
    """Of a whole batch; fewer are played."""

    def run(self) -> Forecast:
        """Play it."""
        _settle()
        warmup = 2 + round(self.choice.max_staleness)
        return forecast(self.work, self.costs, self.choice, steps=self.steps, warmup=warmup)


def _settle() -> None:
    """A worker's settings: small tensors, and objects most of which live for a step."""
    torch.set_num_threads(1)
    gc.set_threshold(200_000, 50, 100)


def calibrated(devices: int, *, share: int) -> float:
    """The median length with which colocated generation takes as long as published (secant)."""

    _settle()

    def excess(median: float) -> float:
        work = workload(median, share=share)
        free = attrs.evolve(colocated(devices, work, share=share), training=TrainingCost())
        taken = forecast(work, free, Choice(), steps=3, warmup=1).step_seconds
        return taken - TABLE[devices].generation

    low, high = 900.0, 1_800.0
    under, over = excess(low), excess(high)
    for _ in range(3):
        if abs(over) < 1 or over == under:
            break
        low, high = high, high - over * (high - low) / (over - under)
        under, over = over, excess(high)
    return high


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
        widest = largest_window(groups=work.groups, max_staleness=staleness)
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
    widest = largest_window(groups=work.groups, max_staleness=2)
    window = Choice(max_staleness=2, order=W, window=widest, parts=16)
    for name, generate, choice in (
        ("theirs", 64, THEIRS),
        (f"64:64, {named(window)}", 64, window),
        (f"80:48, {named(window)}", 80, window),
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
            widest = largest_window(groups=work.groups, max_staleness=staleness)
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
    widest = largest_window(groups=work.groups, max_staleness=2)
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
        widest = largest_window(groups=work.groups, max_staleness=2)
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


HEADER = (
    "",
    "step s",
    "speed-up",
    "trainer waits",
    "replicas idle",
    "reading",
    "age mean",
    "max",
    "dropped",
    "lengths",
    "tokens/s",
    "busy bound s",
    "Little s",
    "over bound",
)


def line(job: Job, seen: Forecast) -> tuple[str, ...]:
    """One line of a table; the speed-up is over the published colocated step."""
    base = TABLE.get(job.devices, TABLE[128]).colocated
    return (
        job.name,
        f"{seen.step_seconds:.0f}",
        f"{base / seen.step_seconds:.2f}",
        f"{seen.trainer_bubble:.0%}",
        f"{seen.rollout_bubble:.0%}",
        f"{seen.rollout_reading:.0%}",
        f"{seen.age_mean:.2f}",
        f"{seen.age_max}",
        f"{seen.dropped:.0%}",
        f"{seen.mean_length / job.work.lengths.mean() - 1:+.0%}",
        f"{seen.tokens_per_second * job.prompts / job.work.groups / 1000:.0f}k",
        f"{seen.floors.busy:.0f}",
        f"{seen.floors.little:.0f}",
        f"{seen.step_seconds / seen.floors.highest - 1:.0%}",
    )


def draw(path: Path, results: Sequence[tuple[Job, Forecast]]) -> None:
    """Speed-up over age, a colour for each number of devices."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(
        xlabel="mean age of trained tokens, versions", ylabel="times as fast as colocated (scored)"
    )
    for colour, (devices, row) in enumerate(TABLE.items()):
        points = [
            (seen.age_mean, row.colocated / seen.step_seconds, job.choice.order)
            for job, seen in results
            if job.devices == devices and "staleness" in job.section
        ]
        for order, marker in ((S, "o"), (W, "s"), (C, "^")):
            chosen = [(age, fast) for age, fast, its in points if its is order]
            if chosen:
                axes.scatter(
                    *zip(*chosen, strict=True),
                    color=f"C{colour}",
                    marker=marker,
                    label=f"{devices} devices, {order.value}",
                )
        if not points:
            continue
        axes.axhline(row.colocated / row.asynchronous, color=f"C{colour}", linestyle=":")
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, title="dotted: published, staleness 0.5")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, nargs="*", default=[*TABLE, 0, 1024])
    parser.add_argument("--sections", nargs="*", default=[], help="only these: words of titles")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--share", type=int, default=16, help="play 1/share of each batch and fleet"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", default=str(ROOT / "docs" / "images" / "async.png"))
    parser.add_argument("--record", default="", help="a file for the numbers, as JSON lines")
    given = parser.parse_args()
    share, steps = given.share, given.steps
    with ProcessPoolExecutor(given.jobs) as pool:
        devices = [one for one in TABLE if one in given.only]
        fitted = pool.map(partial(calibrated, share=share), devices)
        medians = dict(zip(devices, fitted, strict=True))
        jobs = list(toy(steps, share=share)) if 0 in given.only else []
        for one in devices:
            median = medians[one]
            if one == 128:
                jobs += ladder(one, median, steps, share=share)
                jobs += turns(one, median, steps, share=share)
                jobs += splits(one, median, steps, share=share)
                jobs += longer(one, median, steps, share=share)
                if set(given.only) - {0, *TABLE}:
                    jobs += large(median, steps, share=share)
            jobs += orders(one, median, steps, share=share)
        wanted = given.sections
        jobs = [job for job in jobs if not wanted or any(word in job.section for word in wanted)]
        results: list[tuple[Job, Forecast]] = []
        for job, seen in zip(jobs, pool.map(Job.run, jobs), strict=True):
            results.append((job, seen))
            sys.stderr.write(f"{len(results)}/{len(jobs)} {' | '.join(line(job, seen))}\n")
    print_table(
        "calibration: one speed, the median length fitted to colocated generation",
        ("devices", "median", "mean length", "published step"),
        [
            (
                one,
                f"{median:.0f}",
                f"{workload(median, share=share).lengths.mean():.0f}",
                TABLE[one].colocated,
            )
            for one, median in medians.items()
        ],
    )
    for section in dict.fromkeys(job.section for job, _ in results):
        lines = [line(job, seen) for job, seen in results if job.section == section]
        print_table(section, HEADER, lines)
    if given.record:
        rows = [{"name": job.name, "section": job.section, **attrs.asdict(s)} for job, s in results]
        Path(given.record).write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    draw(Path(given.picture), results)


if __name__ == "__main__":
    main()
