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
from measure import ROOT, print_table

from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.adapters.simulated.lengths import Lengths, LogNormal
from hexpo.application.continuing import OnUpdate
from hexpo.domain.schedule import Order
from hexpo.infrastructure.forecast import Choice, Costs, Forecast, Workload, forecast

PROMPTS, SAMPLES, UPDATES = 512, 16, 16
LONGEST, PROMPT_TOKENS = 28_672, 200
SPREAD, KINSHIP = 0.7, 0.5

SPEED = RolloutSpeed(
    token_seconds=5.1e-3,  # 15 GB of weights at 3 TB/s: a lone answer gets 196 tokens a second
    request_seconds=1.78e-4,
    slots=96,
    prefill_seconds=1.7e-4,  # 15 GFLOP a token at 90 TFLOP/s
)


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


def separate(devices: int, work: Workload, *, share: int) -> Costs:
    """Half of the devices for each side. What old log-probs would cost there is not published:
    they keep their share of the update."""
    row = TABLE[devices]
    old = row.old * row.asynchronous_update / row.update
    rest = max(0.0, row.asynchronous - row.waiting - row.asynchronous_update)
    return Costs(
        replicas=devices // 2 // share,
        rollout=SPEED,
        training=training(row.asynchronous_update, old, rest, work),
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

    def run(self) -> Forecast:
        """Play it."""
        gc.set_threshold(200_000, 50, 100)  # most objects live for a step
        return forecast(self.work, self.costs, self.choice, steps=self.steps, warmup=2)


def calibrated(devices: int, *, share: int) -> float:
    """The median length with which colocated generation takes as long as published (secant)."""

    def excess(median: float) -> float:
        work = workload(median, share=share)
        free = attrs.evolve(colocated(devices, work, share=share), training=TrainingCost())
        taken = forecast(work, free, Choice(), steps=1, warmup=1).step_seconds
        return taken - TABLE[devices].generation

    low, high = 1_200.0, 2_400.0
    under, over = excess(low), excess(high)
    for _ in range(3):
        if abs(over) < 1 or over == under:
            break
        low, high = high, high - over * (high - low) / (over - under)
        under, over = over, excess(high)
    return high


S, W, C = Order.SUBMISSION, Order.WINDOW, Order.COMPLETION
KEEP, DRAIN = OnUpdate.KEEP, OnUpdate.DRAIN


def ladder(devices: int, median: float, steps: int, *, share: int) -> Iterator[Job]:
    """From the colocated step to the asynchronous one, one change at a time."""
    work = workload(median, share=share)
    together = colocated(devices, work, share=share)
    apart = separate(devices, work, share=share)
    rungs = (
        ("colocated, old log-probs scored", together, Choice(old_pass=True)),
        ("colocated, not scored", together, Choice()),
        ("half : half", apart, Choice()),
        ("+ mini-batches as they come", apart, Choice(streaming=True)),
        ("+ staleness 0.5, submission", apart, Choice(streaming=True, max_staleness=0.5)),
        (
            "+ order of completion, drained",
            apart,
            Choice(streaming=True, max_staleness=0.5, order=C, on_update=DRAIN),
        ),
        (
            "+ answers interrupted (theirs)",
            apart,
            Choice(streaming=True, max_staleness=0.5, order=C, on_update=KEEP),
        ),
        (
            "theirs, old log-probs scored",
            apart,
            Choice(streaming=True, max_staleness=0.5, order=C, on_update=KEEP, old_pass=True),
        ),
    )
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
    """Staleness, order and what an update does."""
    work = workload(median, share=share)
    few = devices != 128
    settings = [
        Choice(max_staleness=staleness, order=order, window=window, on_update=mode)
        for staleness, modes in ((0.5, (KEEP,)), (1.0, (KEEP, DRAIN)), (2.0, (KEEP,)))
        for order, window in ((S, None), (W, work.groups // 4), (C, None))
        for mode in modes
        if not few or (mode is KEEP and order is not W)
    ]
    for choice in settings:
        yield Job(
            section=f"staleness and order, {devices} devices",
            name=named(choice),
            devices=devices,
            work=work,
            costs=separate(devices, work, share=share),
            choice=attrs.evolve(choice, streaming=True),
            steps=steps,
        )


def large(median: float, *, share: int) -> Iterator[Job]:
    """Many devices: more prompts a version, and several devices for each replica.

    A pass reads its weights no faster (what more devices read at once, they lose to talking), and
    each request adds to it the less.
    """
    for devices, times, steps in ((1_024, 4, 4), (16_384, 8, 3)):
        work, each = workload(median, share=share, times=times), devices // 128 // times
        apart = separate(128, workload(median, share=share), share=share)
        costs = Costs(
            replicas=64 * times // share,
            rollout=attrs.evolve(
                SPEED,
                request_seconds=SPEED.request_seconds / each,
                prefill_seconds=SPEED.prefill_seconds / each,
            ),
            training=attrs.evolve(
                apart.training,
                token_seconds=apart.training.token_seconds / times / each,
                score_seconds=apart.training.score_seconds / times / each,
            ),
            load_seconds=2.0,
        )
        for choice in (
            Choice(),
            Choice(max_staleness=1.0, order=C, on_update=KEEP),
            Choice(max_staleness=3.0, order=C, on_update=KEEP),
        ):
            yield Job(
                section="large fleets",
                name=f"{devices:,}: {named(choice)}",
                devices=devices,
                work=work,
                costs=costs,
                choice=attrs.evolve(choice, streaming=True),
                steps=steps,
            )


def named(choice: Choice) -> str:
    """A line's name."""
    mode = choice.on_update.value
    window = f"({choice.window})" if choice.window else ""
    return f"S {choice.max_staleness:g}, {choice.order.value}{window}, {mode}"


HEADER = (
    "",
    "step s",
    "speed-up",
    "trainer waits",
    "replicas idle",
    "reading",
    "age mean",
    "max",
    "partial",
    "dropped",
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
        f"{seen.partial:.0%}",
        f"{seen.dropped:.0%}",
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
        axes.axhline(row.colocated / row.asynchronous, color=f"C{colour}", linestyle=":")
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, title="dotted: published, staleness 0.5")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, nargs="*", default=[*TABLE, 1024])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--share", type=int, default=4, help="play 1/share of each batch and fleet")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", default=str(ROOT / "docs" / "images" / "async.png"))
    parser.add_argument("--record", default="", help="a file for the numbers, as JSON lines")
    given = parser.parse_args()
    share, steps = given.share, given.steps
    with ProcessPoolExecutor(given.jobs) as pool:
        devices = [one for one in TABLE if one in given.only]
        fitted = pool.map(partial(calibrated, share=share), devices)
        medians = dict(zip(devices, fitted, strict=True))
        jobs = [job for one in devices for job in ladder(one, medians[one], steps, share=share)]
        jobs = [job for job in jobs if job.devices == 128 or job.name.startswith("colocated")]
        jobs += [job for one in devices for job in orders(one, medians[one], steps, share=share)]
        if set(given.only) - set(TABLE):
            jobs += list(large(medians.get(128) or calibrated(128, share=share), share=share))
        results = []
        for job, seen in zip(jobs, pool.map(Job.run, jobs), strict=True):
            results.append((job, seen))
            sys.stderr.write(f"{len(results)}/{len(jobs)} {job.section}: {job.name}\n")
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
