"""Writes pairs of a right, brief answer and a wrong, wordy one to the additions of `addition.yaml`:
75 to learn from, and those of the 25 held-out questions.

python examples/make_pairs.py examples
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml


def make(folder: Path) -> None:
    """Write both files."""
    from hexpo.adapters.prompts.reasoning_gym import Config, build
    from hexpo.adapters.prompts.reasoning_gym.source import Split

    example = yaml.safe_load((Path(__file__).parent / "addition.yaml").read_text())
    options = example["data"]["train"]["options"]
    for name, split, size in (("pairs", Split.TRAIN, 75), ("pairs-held-out", Split.HELD_OUT, 25)):
        source = build(Config(**{**options, "split": split, "size": size}), seed=0)
        rows = [
            {
                "id": row.id,
                "prompt": row.messages[-1].content,
                "chosen": row.truth,
                "rejected": f"The answer is {_wrong(int(row.truth), place)}.",
            }
            for place, row in enumerate(source.rows())
        ]
        file = folder / f"addition-{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _wrong(truth: int, place: int) -> int:
    """Near it, on either side."""
    return truth + (1 if place % 2 else -1) * (1 + place % 3)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
