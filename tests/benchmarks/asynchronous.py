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
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import attrs
from asynchronous_jobs import C, S, W, ladder, large, longer, orders, splits, toy, turns
from asynchronous_setting import TABLE, Job, calibrated, workload
from measure import ROOT, print_table

from hexpo.infrastructure.forecast import Forecast

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
    parser.add_argument("--median", type=float, help="of the lengths, not fitted: 1547")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", default=str(ROOT / "docs" / "images" / "async.png"))
    parser.add_argument("--record", default="", help="a file for the numbers, as JSON lines")
    given = parser.parse_args()
    share, steps = given.share, given.steps
    with ProcessPoolExecutor(given.jobs) as pool:
        devices = [one for one in TABLE if one in given.only]
        if given.median:
            medians = dict.fromkeys(devices, given.median)
        else:
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
            else:
                jobs += list(ladder(one, median, steps, share=share))[:1]  # colocated
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
