"""vLLM in a process and an environment of its own, started by a cluster, fed by a transfer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests import tiny
from torch import Tensor

from hexpo.adapters.cluster import local
from hexpo.adapters.rollout.vllm import SERVE, Config, environment
from hexpo.adapters.rollout.wire import connect
from hexpo.adapters.transfer import disk
from hexpo.application.ports.cluster import ProcessSpec
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Digest, Update, Weight
from hexpo.domain.sampling import Sampling

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-vllm: make test-engines"),
]


class Trainer:
    """Sends a module's weights."""

    def __init__(self, module: Any) -> None:
        self._module, self._send = module, disk.build_sender()

    async def send(self, update: Update) -> Digest:
        return self._send(self._weights(), update)

    def _weights(self) -> Iterable[Weight]:
        for name, parameter in self._module.named_parameters():
            yield Weight(name=name, shape=tuple(parameter.shape), tensor=parameter.detach())


def llama() -> Any:
    """A random one whose heads have a size that vLLM has kernels for."""
    return tiny.llama(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.12,
        pad_token_id=None,
    ).eval()


@torch.no_grad()
def logprobs_of(module: Any, one: Request, answer: Generation) -> Tensor:
    ids = torch.tensor([[*one.prompt, *answer.tokens.tolist()]])
    logits_TV = module(ids).logits[0, len(one.prompt) - 1 : -1]
    return logits_TV.log_softmax(-1).gather(1, answer.tokens[:, None])[:, 0]


def test_a_vllm_replica_follows_the_trainer_and_leaves_no_process_behind(tmp_path: Path) -> None:
    """G1, G2, O3: log-probs agree before and after a transfer; the engine's own children end."""
    module = llama()
    module.save_pretrained(tmp_path / "model")
    config = Config(slots=4, python=str(PYTHON))
    spec = ProcessSpec(
        name="replica",
        entry=SERVE,
        value={
            "model": str(tmp_path / "model"),
            "precision": "fp32",
            "options": {"slots": 4},
            "receiver": disk.__name__,
        },
        environment={**environment(config), "HF_HUB_OFFLINE": "1"},
        python=config.python,
    )
    sampling = Sampling(max_new_tokens=40, min_new_tokens=40)
    one = Request(id="a", prompt=(5, 6, 7), sampling=sampling, seed=1)

    async def work() -> tuple[list[float], list[psutil.Process]]:
        cluster = local.build(local.Config(oversubscribe=True), folder=tmp_path)
        off = []
        try:
            (process,) = await cluster.start([spec])
            children = psutil.Process(process.pid).children(recursive=True)
            replica = await connect(process)
            off.append(await difference(replica))
            transfer = disk.build(
                disk.Config(folder=str(tmp_path / "weights")),
                training=Trainer(module),
                replicas={replica.name: replica},
            )
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(0.2 * parameter.std() * torch.randn_like(parameter))
            await replica.pause(PauseMode.KEEP)
            await transfer.transfer(1)
            await replica.resume()
            assert replica.version == 1
            off.append(await difference(replica))
            scores = await process.call("score", list(one.prompt), top_k=3)
            assert scores.top_ids.shape == (3, 3)
            await replica.close()
        finally:
            await cluster.close()
        return off, children

    async def difference(replica: Any) -> float:
        answer = await replica.generate(one)
        return float((answer.logprobs - logprobs_of(module, one, answer)).abs().mean())

    off, children = asyncio.run(work())
    assert max(off) < 2e-5
    assert children
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, f"{os.getpid()} left {alive}"
