"""Another application that post-trains a model with hexpo.

python examples/make_tiny.py models/tiny
cd examples/embedding && python main.py ../../models/tiny
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from application.tuning import tune

ROWS = Path(__file__).parents[1] / "tiny.jsonl"


def main(model: str, runs: str = "runs") -> None:
    """Tune for two steps and print the numbers as JSON."""
    source = {"kind": "jsonl", "options": {"paths": [str(ROWS)]}}
    tuned = tune(
        {
            "run": {"name": "embedded", "folder": runs, "steps": 2},
            "model": {"path": model},
            "data": {"train": source, "max_prompt_tokens": 64},
            "reward": {"kind": "python", "options": {"function": "domain.tone.brevity"}},
            "rollout": {"samples": 4, "max_new_tokens": 8},
            "training": {"prompts_per_step": 2, "options": {"learning_rate": 1e-3}},
            "trackers": [{"kind": "jsonl"}],
        }
    )
    sys.stdout.write(json.dumps({"rewards": tuned.rewards, "answers": tuned.answers}) + "\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python main.py MODEL [RUNS]; examples/make_tiny.py makes a tiny model")
    main(*sys.argv[1:])
