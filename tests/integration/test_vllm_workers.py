"""One vLLM replica over two workers, started by each cluster."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.tiny import llama

from hexpo.adapters.cluster import local
from hexpo.adapters.cluster import ray as on_ray
from hexpo.adapters.rollout.vllm import SERVE, Config, environment
from hexpo.adapters.rollout.vllm.leftovers import MADE, SHARED
from hexpo.adapters.rollout.wire import connect
from hexpo.application.ports.cluster import Cluster, ProcessSpec
from hexpo.application.ports.rollout import Generation, Request
from hexpo.domain.sampling import Sampling

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
FREE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""By itself vLLM gives each worker a memory node of its own, and here is one."""


def opened(kind: str, folder: Path) -> Cluster:
    if kind == "ray":
        return on_ray.build(on_ray.Config(cpus=2), folder=folder)
    return local.build(local.Config(oversubscribe=True), folder=folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("HEXPO_ENGINES" not in os.environ, reason="make test-engines")
@pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-vllm: make test-engines")
@pytest.mark.parametrize("kind", ["local", "ray"])
def test_two_workers_answer_as_the_whole_model_and_end_with_their_replica(
    kind: str, tmp_path: Path
) -> None:
    """C1, O3: log-probs of a model cut in two, in an actor as in a process; no process and no
    shared memory stays."""
    if kind == "ray":
        pytest.importorskip("ray")
    module = llama(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.12,
    ).eval()
    module.save_pretrained(tmp_path / "model")
    options = {"slots": 4, "tensor_parallel": 2, "cache_gib": 0.1, "environment": FREE}
    config = Config(python=str(PYTHON), **options)
    spec = ProcessSpec(
        name="replica",
        entry=SERVE,
        value={"model": str(tmp_path / "model"), "precision": "fp32", "options": options},
        environment={**environment(config), "HF_HUB_OFFLINE": "1"},
        python=config.python,
    )
    sampling = Sampling(max_new_tokens=20, min_new_tokens=20)
    one = Request(id="a", prompt=(5, 6, 7), sampling=sampling, seed=1)

    before = shared()

    async def work() -> tuple[Generation, tuple[str, ...], list[psutil.Process]]:
        cluster = opened(kind, tmp_path)
        try:
            (process,) = await cluster.start([spec])
            replica = await connect(process)
            children = psutil.Process(process.pid).children(recursive=True)
            answer = await replica.generate(one)
            await replica.close()
        finally:
            await cluster.close()
        return answer, replica.readers, children

    answer, readers, children = asyncio.run(work())
    assert readers == ("replica/0", "replica/1")
    assert float((answer.logprobs - logprobs_of(module, one, answer)).abs().max()) < 2e-5
    assert len(children) >= 3  # the scheduler and two workers
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert shared() - before == set()


def shared() -> set[str]:
    """Shared memory of vLLM."""
    return {path.name for path in SHARED.glob("*") if path.name.startswith(MADE)}


@torch.no_grad()
def logprobs_of(module: Any, one: Request, answer: Generation) -> torch.Tensor:
    ids = torch.tensor([[*one.prompt, *answer.tokens.tolist()]])
    logits_TV = module(ids).logits[0, len(one.prompt) - 1 : -1]
    return logits_TV.log_softmax(-1).gather(1, answer.tokens[:, None])[:, 0]
