"""New weights in vLLM: whole, in every copy of them, and nothing of older ones stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.rollout_vllm.bench import (
    MARKS,
    SUITE,
    OverThere,
    ask,
    bench_of,
    long_ask,
    make_model,
    needs_vllm,
    off_by,
    stand_in,
)
from torch import Tensor

from hexpo.application.ports.rollout import Generation, PauseMode
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed, IllegalTransition, Unsupported

pytestmark = MARKS


def test_an_engine_whose_weights_are_not_whole_cannot_resume(tmp_path: Path) -> None:
    """G8, G4: a failed load leaves the engine paused until one succeeds."""
    engine = stand_in(make_model(tmp_path))
    llm: Any = engine._llm

    async def failing(method: str, *, args: tuple[Any, ...]) -> list[Any]:
        raise RuntimeError("3 weights of the engine were not sent")

    async def work() -> None:
        with pytest.raises(IllegalTransition, match="pause first"):
            await engine.load_weights(Update(version=1))
        await engine.pause(PauseMode.DRAIN)
        good, llm.collective_rpc = llm.collective_rpc, failing
        with pytest.raises(EngineFailed, match=r"version 1.*3 weights"):
            await engine.load_weights(Update(version=1))
        assert engine.version == 0
        with pytest.raises(EngineFailed, match="version 1 did not arrive whole"):
            await engine.resume()
        llm.collective_rpc = good
        assert await engine.load_weights(Update(version=2)) is not None
        assert llm.resets == 1
        await engine.resume()
        assert len((await engine.generate(ask("after"))).tokens) == 12
        with pytest.raises(Unsupported, match=r"rollout\.options\.sleep"):
            await engine.sleep()
        await engine.close()

    asyncio.run(work())


def test_an_engine_wakes_in_stages(tmp_path: Path) -> None:
    """G8: memory for weights comes back first, and that for the cache when all is whole."""
    engine = stand_in(make_model(tmp_path), sleep=True)
    llm: Any = engine._llm

    async def work() -> None:
        await engine.pause(PauseMode.DRAIN)
        await engine.sleep()
        await engine.sleep()
        with pytest.raises(IllegalTransition, match="asleep: wake first"):
            await engine.load_weights(Update(version=1))
        await engine.wake()
        assert llm._paused
        with pytest.raises(EngineFailed, match="gone since it slept"):
            await engine.resume()
        await engine.load_weights(Update(version=1))
        await engine.resume()
        assert [call for call, _ in llm.calls] == ["sleep", "wake_up", "hexpo_load", "wake_up"]
        assert [arguments for call, arguments in llm.calls if call == "wake_up"] == [
            ("weights",),
            ("kv_cache",),
        ]
        assert len((await engine.generate(ask("after"))).tokens) == 12
        await engine.close()

    asyncio.run(work())


@needs_vllm
@pytest.mark.slow
def test_loaded_weights_reach_the_tied_head_too(real: OverThere) -> None:
    """G1, G3, G6: the CPU build packs the head; a reload alone leaves the old one in use and the
    log-probs 0.1 off. What was read is what was sent, and old weights come back as well."""
    model = real.model

    async def work(engine: Any) -> tuple[list[float], list[Digest]]:
        off, digests = [], []
        for version in (1, 2):
            await engine.pause(PauseMode.DRAIN)
            model.train()
            digests.append(await engine.load_weights(Update(version=version)))
            assert digests[-1] == model.digest()
            await engine.resume()
            off.append(off_by(model, one, await engine.generate(one)))
        return off, digests

    one = ask("w", seed=1, max_new_tokens=60, min_new_tokens=60)
    off, digests = SUITE.run(bench_of(real), work)
    assert max(off) < 2e-5
    assert digests[0] != digests[1]


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sent: sent.pop("model.norm.weight"), "1 weights .* not sent: model.norm.weight"),
        (lambda sent: sent.update(extra=torch.ones(1)), "has no weight extra"),
        (lambda sent: sent.update({"model.norm.weight": torch.ones(3)}), "shape .3,., the engine"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_that_do_not_fit_are_named_and_the_next_whole_load_mends_it(
    real: OverThere, change: Callable[[dict[str, Tensor]], Any], message: str
) -> None:
    """G4, G8."""
    model, engine = real.model, real.engine

    async def there() -> float:
        await engine.pause(PauseMode.DRAIN)
        model.train()
        wrong = model.weights()
        change(wrong)
        update = real.sent(1, wrong)
        with pytest.raises(EngineFailed, match=message):
            await engine.load_weights(update)
        with pytest.raises(EngineFailed, match="did not arrive whole"):
            await engine.resume()
        await engine.load_weights(real.sent(2))
        await engine.resume()
        return off_by(model, one, await engine.generate(one))

    one = ask("w", seed=1, max_new_tokens=60, min_new_tokens=60)

    async def work(_: Any) -> Any:
        return await real.there(there())

    assert SUITE.run(bench_of(real), work) < 2e-5


@needs_vllm
@pytest.mark.slow
def test_prompts_are_never_cut_in_two(real: OverThere) -> None:
    """F5: vLLM's scheduler would begin a second prompt with the rest of the budget, and its
    processor build dies of a seeded prompt that is cut."""

    async def work(engine: Any) -> list[Generation]:
        wanted = [long_ask(str(seed), seed) for seed in range(2 * SUITE.SLOTS)]
        return await asyncio.gather(*map(engine.generate, wanted))

    answers = SUITE.run(bench_of(real), work)
    off = [off_by(real.model, long_ask(str(i), i), answer) for i, answer in enumerate(answers)]
    assert max(off) < 2e-5


@needs_vllm
@pytest.mark.slow
def test_a_prefix_cached_under_older_weights_is_never_read(real: OverThere) -> None:
    """G7: within a version a prompt's blocks are read again; after an update they are not."""
    model, engine = real.model, real.engine
    one = long_ask("w", 1)

    async def cached() -> int:
        """Tokens of the prompt that vLLM found in its cache."""
        wanted = engine._sampling(max_tokens=1, temperature=0.0, detokenize=False)
        prompt = {"prompt_token_ids": list(one.prompt)}
        stream = engine._llm.generate(prompt, wanted, f"cached/{real.updates}/{id(wanted)}")
        return [output.num_cached_tokens async for output in stream][-1]

    async def there() -> tuple[list[int], list[float]]:
        found, off = [await cached(), await cached()], []
        for version in (1, 2):
            await engine.pause(PauseMode.DRAIN)
            model.train()
            await engine.load_weights(real.sent(version))
            await engine.resume()
            off.append(off_by(model, one, await engine.generate(one)))
            found.append(await cached())
        return found, off

    async def work(_: Any) -> Any:
        return await real.there(there())

    found, off = SUITE.run(bench_of(real), work)
    assert found == [0, 128, 128, 128]
    assert max(off) < 2e-5


@needs_vllm
@pytest.mark.slow
def test_a_packed_layer_is_stale_until_it_is_packed_again() -> None:
    """The trap itself, without an engine: vLLM's CPU linears multiply a copy."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    from hexpo.adapters.rollout.vllm.worker import repack

    torch.manual_seed(0)
    head = torch.nn.Linear(64, 64, bias=False).requires_grad_(requires_grad=False)
    dispatch_cpu_unquantized_gemm(head, remove_weight=False)
    x = torch.randn(3, 64)
    packed: Any = head
    head.weight.copy_(torch.randn(64, 64))
    expected = x @ head.weight.T
    assert float((packed.cpu_linear(x, head.weight, None) - expected).abs().max()) > 1
    assert repack(torch.nn.Sequential(head)) == ["0"]
    torch.testing.assert_close(packed.cpu_linear(x, head.weight, None), expected)
