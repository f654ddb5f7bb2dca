"""How long one-digit addition takes to learn, over seeds, and beside TRL.

    python tests/benchmarks/demo.py [--seeds 0 1 2] [--peer-seeds 0] [--without-peers]

The run is `examples/addition.yaml` with an evaluation every other step: 25 held-out questions, 8
samples each at temperature 1. Times are of training steps only; evaluations are left out. TRL gets
the same 75 questions and hyper-parameters, stops at the training reward, and runs with this
library's process settings, in bf16 like the library, and with fp32 weights and bf16 products.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import ROOT, Spent, calibrated, print_table, restart_with_process_settings
from peers.environment import PEERS
from record import Record, child
from step import export_model

CONFIG = ROOT / "examples/addition.yaml"
REWARD, ACCURACY = 0.80, 0.85
MOST_STEPS = 30
"""Where TRL is stopped if it has not arrived."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--peer-seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--micro", type=int, default=16, help="TRL's sequences in a forward")
    parser.add_argument("--overrides", nargs="*", default=[], help="section.key=value")
    arguments = parser.parse_args()
    with calibrated():
        ours = {seed: hexpo(seed, arguments.overrides) for seed in arguments.seeds}
        show_seeds(ours)
        sides = {f"hexpo, seed {seed}": record for seed, record in ours.items()}
        if arguments.peer_seeds and PEERS.python.is_file():
            sides |= peers(arguments.peer_seeds, arguments.micro)
        show_sides(sides)


def hexpo(seed: int, overrides: Sequence[str]) -> Record:
    """The demonstration, to its end."""
    job = {
        "config": str(CONFIG),
        "overrides": [f"run.seed={seed}", "evaluation.every=2", *overrides],
    }
    return child(sys.executable, "hexpo_run.py", json.dumps(job))


def peers(seeds: Sequence[int], micro: int) -> dict[str, Record]:
    """TRL until the training reward is reached."""
    from hexpo.entrypoints import library

    run = library.build(CONFIG, folder=ROOT)  # nothing is written before it trains
    config, rows = run.config, list(run.container.train_prompts().rows())
    job = {
        "questions": [row.messages[-1].content for row in rows],
        "truths": [row.truth for row in rows],
        "new_tokens": config.rollout.max_new_tokens,
        "prompts": config.training.prompts_per_step,
        "samples": config.rollout.samples,
        "learning_rate": config.training.options["learning_rate"],
        "steps": MOST_STEPS,
        "until": REWARD,
        "micro": micro,
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        export_model(Path(folder))
        for seed in seeds:
            for name, precision in (
                ("bf16", {}),
                ("fp32 and autocast", {"full_precision": True, "autocast": True}),
            ):
                text = json.dumps({**job, **precision, "model": folder, "seed": seed})
                found[f"TRL {name}, seed {seed}"] = child(PEERS.python, "peers/trl_run.py", text)
    return found


def show_seeds(records: Mapping[int, Record]) -> None:
    """Held-out accuracy before and after, and when it was reached."""
    rows: list[tuple[object, ...]] = []
    arrivals = []
    for seed, record in records.items():
        trained = sum((step.spent for step in record.steps), Spent(0.0, 0.0))
        arrival = reached_held_out(record)
        arrivals.append(arrival[1] if arrival else Spent(float("inf"), float("inf")))
        rows.append(
            (
                seed,
                f"{record.evaluations[0].accuracy:.1%}",
                f"{record.evaluations[-1].accuracy:.1%}",
                *_arrival(arrival),
                len(record.steps),
                trained.wall,
                trained.cpu,
                record.peak / 1e9,
            )
        )
    header = (
        *("seed", "held-out before", "after", f"{ACCURACY:.0%} at step", "wall s", "CPU s"),
        *("steps", "wall s", "CPU s", "peak GB"),
    )
    print_table("examples/addition.yaml", header, rows)
    middle = (statistics.median(clock) for clock in zip(*arrivals, strict=True))
    print("median to {:.0%} held out: {:.0f} s, {:.0f} CPU s".format(ACCURACY, *middle))


def reached_held_out(record: Record) -> tuple[int, Spent] | None:
    """The first evaluated step with the accuracy, and the training time up to it."""
    for evaluation in record.evaluations:
        if evaluation.accuracy >= ACCURACY:
            steps = record.steps[: evaluation.step]
            return evaluation.step, sum((step.spent for step in steps), Spent(0.0, 0.0))
    return None


def show_sides(records: Mapping[str, Record]) -> None:
    """Time to the training reward, and each side's first and last rewards."""
    rows = []
    base = next(iter(records.values())).reached(REWARD)
    for name, record in records.items():
        arrival = record.reached(REWARD)
        ratio = ("", "")
        if base and arrival:
            ratio = (
                f"x{arrival[1].wall / base[1].wall:.2f}",
                f"x{arrival[1].cpu / base[1].cpu:.2f}",
            )
        last = statistics.mean(step.reward for step in record.steps[-3:])
        rows.append(
            (
                *(name, *_arrival(arrival), *ratio),
                *(len(record.steps), f"{last:.1%}", record.peak / 1e9),
            )
        )
    header = ("run", "step", "wall s", "CPU s", "wall", "CPU", "steps run", "last 3", "peak GB")
    print_table(f"to a training reward of {REWARD:.0%} (mean of three steps)", header, rows)


def _arrival(arrival: tuple[int, Spent] | None) -> tuple[object, object, object]:
    return (arrival[0], *arrival[1]) if arrival else ("never", "", "")


if __name__ == "__main__":
    restart_with_process_settings()
    main()
