"""Generation by vLLM's CPU build, timed; runs in `.venv-vllm` (see peers/environment.py).

A child process of `generation.py`, which gives it the model, the prompts and the number of tokens.
Eager mode; each round is 64 requests of a fixed length at temperature 1.
"""

from __future__ import annotations

import os
import sys
import time

from measure import Spent, now
from record import Step, job_of, of


def main() -> None:
    """Run the job that the argument describes: `model`, `prompts`, `new_tokens`, `repeats`."""
    began, job = Spent(time.perf_counter(), 0.0), job_of(sys.argv[1])
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # its work is timed in here
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    engine = LLM(
        model=job["model"],
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=len(job["prompts"]),
        disable_log_stats=True,
    )
    new = job["new_tokens"]
    sampling = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, max_tokens=new, min_tokens=new, logprobs=0
    )
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    steps = []
    for _ in range(job["repeats"] + 1):
        start = now()
        made = engine.generate(prompts, sampling, use_tqdm=False)
        tokens = sum(len(one.outputs[0].token_ids) for one in made)
        steps.append(Step(now() - start, 0.0, tokens))
    of(steps[1:], (), began, now()).write()


if __name__ == "__main__":
    main()
