"""Low-rank adapters reach vLLM, merged or by themselves."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.rollout_vllm.bench import (
    MARKS,
    SUITE,
    Model,
    OverThere,
    ask,
    bench_of,
    long_ask,
    make_model,
    needs_vllm,
    stand_in,
)

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.lora import Lora, attach, without_adapters
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm import Config, VllmEngine, build, environment
from hexpo.adapters.training.fsdp.config import Sent
from hexpo.adapters.training.fsdp.stream import exported
from hexpo.adapters.transfer.disk import build_sender
from hexpo.application.ports.rollout import PauseMode
from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import EngineFailed

pytestmark = MARKS


def test_requests_name_the_adapter_once_it_came(tmp_path: Path) -> None:
    """O14: the base alone answers before the first update, which brings the adapter."""
    engine = stand_in(make_model(tmp_path), adapter="the adapter")
    llm: Any = engine._llm

    async def work() -> None:
        await engine.generate(ask("before"))
        await engine.pause(PauseMode.DRAIN)
        await engine.load_weights(Update(version=1))
        await engine.resume()
        await engine.generate(ask("after"))
        assert llm.named == [None, "the adapter"]
        await engine.close()

    asyncio.run(work())


@needs_vllm
@pytest.mark.slow
def test_a_merged_adapter_reaches_the_engine_and_leaves_the_base_alone(real: OverThere) -> None:
    """O14, G5: the engine says what the adapted policy says, for both of two versions."""
    policy = load_policy(str(real.model.folder), precision=Precision.FP32)
    base = {name: policy.weight(name).clone() for name in policy.names()}
    attach(policy, Lora(rank=4, alpha=8.0))
    ids = list(long_ask("w", 1).prompt[:60])
    generator = torch.Generator().manual_seed(3)

    def learn() -> None:
        with torch.no_grad():
            for name, parameter in policy.module.named_parameters():
                if ".lora_" in name:
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))

    async def there(version: int) -> float:
        learn()
        sent = {w.name: w.tensor for w in exported(policy, policy.names(), sent=Sent.MERGED)}
        await real.engine.pause(PauseMode.DRAIN)
        await real.engine.load_weights(real.sent(version, sent))
        await real.engine.resume()
        scores = await real.engine.score(ids)
        with torch.no_grad():
            logits_LV = policy.module(torch.tensor([ids])).logits[0, :-1]
        expected_L = logits_LV.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        return float((scores.logprobs[1:] - expected_L).abs().max())

    async def work(_: Any) -> list[float]:
        return [await real.there(there(version)) for version in (1, 2)]

    assert max(SUITE.run(bench_of(real), work)) < 1e-4
    with without_adapters(policy):
        assert all(
            torch.equal(policy.module.get_parameter(name), tensor)
            for name, tensor in base.items()
            if "_proj" not in name
        )


@needs_vllm
@pytest.mark.slow
def test_adapters_that_come_by_themselves_are_added_to_the_base_once(model: Model) -> None:
    """O14, G5: what the trainer says in adapter mode, for the base and two versions; an engine of
    its own."""
    policy = load_policy(str(model.folder), precision=Precision.FP32)
    attach(policy, Lora(rank=4, alpha=8.0))
    ids = list(long_ask("w", 1).prompt[:60])
    generator = torch.Generator().manual_seed(3)
    config = Config(slots=2, adapter_rank=4, adapter_alpha=8.0)
    os.environ.update(environment(config))

    def sent(version: int, kind: Sent) -> Update:
        folder = str(model.folder / f"adapters-{version}-{kind.value}")
        update = Update(version=version, address={"folder": folder, "keep": 1, "bucket": 9000})
        build_sender()(exported(policy, policy.names(), sent=kind), update)
        return update

    async def off_by(engine: VllmEngine) -> float:
        scores = await engine.score(ids)
        with torch.no_grad():
            logits_LV = policy.module(torch.tensor([ids])).logits[0, :-1]
        expected_L = logits_LV.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        return float((scores.logprobs[1:] - expected_L).abs().max())

    async def work() -> list[float]:
        receiver = "hexpo.adapters.transfer.disk"
        engine = await build(
            config,
            model=str(model.folder),
            precision=Precision.FP32,
            receiver=receiver,
            reader="alone",
        )
        assert engine.capabilities.adapters
        found = [await off_by(engine)]
        for version in (1, 2):
            with torch.no_grad():
                for name, parameter in policy.module.named_parameters():
                    if ".lora_" in name:
                        parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            await engine.pause(PauseMode.DRAIN)
            await engine.load_weights(sent(version, Sent.ADAPTERS))
            await engine.resume()
            found.append(await off_by(engine))
        await engine.pause(PauseMode.DRAIN)
        with pytest.raises(EngineFailed, match="no adapter's weight"):
            await engine.load_weights(sent(3, Sent.MERGED))
        await engine.close()
        return found

    assert max(asyncio.run(work())) < 1e-4
