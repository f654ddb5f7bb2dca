"""Weights that arrive at an engine: none is forgotten, and half of them generate nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from hexpo.adapters.models.lora import Lora, attach, is_adapted
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.rollout.wire import ReceivingRollout, fill, policy_targets
from hexpo.adapters.rollout.wire.filling import Targets
from hexpo.application.ports.rollout import PauseMode, RolloutCapabilities, RolloutEngine
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.digest import Digester
from hexpo.domain.errors import EngineFailed, IllegalTransition, ModelError


class TwoByTwo(nn.Module):
    """x W^T, W the identity."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type="two", tie_word_embeddings=tied)
        self.layer = nn.Linear(2, 2, bias=False)
        self.layer.weight.data = torch.eye(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def adapted() -> Policy:
    """O14's trainer: B = [[1], [0]], A = [[0, 2]], scale 0.5."""
    policy = Policy(cast(Any, TwoByTwo()), precision=Precision.FP32)
    attach(policy, Lora(rank=1, alpha=0.5, targets=("layer",)))
    layer: Any = policy.module.layer
    layer.lora_A["default"].weight.data = torch.tensor([[0.0, 2.0]])
    set_b(policy, 1.0)
    return policy


def set_b(policy: Policy, value: float) -> None:
    layer: Any = policy.module.layer
    layer.lora_B["default"].weight.data = torch.tensor([[value], [0.0]])


def stream(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    for name in policy.names():
        yield name, policy.weight(name)


def digest(pairs: Iterable[tuple[str, Tensor]]) -> Digest:
    digester = Digester()
    for name, tensor in pairs:
        digester.add(name, tensor)
    return digester.digest


def test_a_merged_adapter_reaches_the_engine_once_and_leaves_the_base_alone() -> None:
    """O14, G5, G3: exact numbers; (3, 1) would mean added twice, (1, 1) lost."""
    trainer, engine = adapted(), TwoByTwo()
    targets = policy_targets(Policy(cast(Any, engine), precision=Precision.FP32))
    x = torch.tensor([1.0, 1.0])
    first = fill(targets, stream(trainer))
    assert engine.layer.weight.tolist() == [[1, 1], [0, 1]]
    assert engine(x).tolist() == [2, 1]
    base: Any = trainer.module.layer
    assert base.base_layer.weight.tolist() == [[1, 0], [0, 1]]
    assert trainer.module(x).tolist() == [2, 1]  # the adapter's own mode
    assert first == digest(stream(trainer))
    set_b(trainer, 2.0)
    second = fill(targets, stream(trainer))
    assert engine.layer.weight.tolist() == [[1, 2], [0, 1]]
    assert engine(x).tolist() == [3, 1]
    assert first.checksum != second.checksum


def test_an_adapter_that_matches_no_module_fails() -> None:
    """O14, G4."""
    policy = Policy(cast(Any, TwoByTwo()), precision=Precision.FP32)
    with pytest.raises(ModelError, match="no linear layers named missing"):
        attach(policy, Lora(rank=1, targets=("missing",)))
    assert not is_adapted(policy)


def tied_targets() -> Targets:
    return Targets(
        parameters={"model.embed_tokens.weight": torch.zeros(3, 2), "rotary": torch.zeros(4)},
        tied={"lm_head.weight": "model.embed_tokens.weight"},
        frozen=frozenset({"rotary"}),
    )


def test_a_tied_head_follows_its_embedding_and_is_not_sent() -> None:
    """O14, G6: sent on its own it is a disagreement about the model, by name."""
    targets, embedding = tied_targets(), torch.ones(3, 2)
    fill(targets, [("model.embed_tokens.weight", embedding)])
    assert torch.equal(targets.parameters["model.embed_tokens.weight"], embedding)
    with pytest.raises(EngineFailed, match=r"lm_head.weight was sent, but the engine ties it"):
        fill(targets, [("lm_head.weight", embedding)])


class Headed(nn.Module):
    """An embedding of three ids and the head that reads them out."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type="headed", tie_word_embeddings=tied)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(3, 2)
        self.lm_head = nn.Linear(2, 3, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


@pytest.mark.parametrize("tied", [True, False])
def test_an_update_brings_a_head_of_its_own_and_a_tied_one_by_its_embedding(*, tied: bool) -> None:
    """O14, G6: after it the engine's head is the trainer's."""
    trainer, engine = Headed(tied=tied), Headed(tied=tied)
    policy = Policy(cast(Any, trainer), precision=Precision.FP32)
    assert ("lm_head.weight" in policy.names()) is not tied
    fill(policy_targets(Policy(cast(Any, engine), precision=Precision.FP32)), stream(policy))
    assert torch.equal(engine.lm_head.weight, trainer.lm_head.weight)
    embedding = cast(Tensor, engine.model.embed_tokens.weight)
    assert torch.equal(engine.lm_head.weight, embedding) is tied


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([], r"2 parameters .* nor frozen: lm_head.weight, model"),
        ([("model.embed_tokens.weight", torch.ones(2, 2))], r"shape \(2, 2\), the engine's has"),
        ([("lora_A.weight", torch.ones(2, 2))], r"no parameter lora_A.weight"),
    ],
)
def test_a_parameter_that_is_forgotten_unknown_or_misshapen_is_named(
    sent: list[tuple[str, Tensor]], message: str
) -> None:
    """O14, G4: neither written, tied nor frozen."""
    with pytest.raises(EngineFailed, match=message):
        fill(tied_targets(), sent)


def test_weights_are_cast_to_the_engine_and_the_digest_is_of_what_came() -> None:
    """A bf16 trainer, an fp32 engine."""
    target, sent = torch.zeros(5), torch.randn(5).bfloat16()
    found = fill(Targets(parameters={"w": target}), [("w", sent)])
    assert torch.equal(target, sent.float())
    assert found == digest([("w", sent)])
    assert found.bytes == 10


class Engine:
    """Notes what is asked of it."""

    version = 0
    capabilities = RolloutCapabilities()

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        async def call(*arguments: object) -> None:
            self.calls.append(name)
            if name == "load_weights":
                self.version = cast(Update, arguments[0]).version

        return call


def receiving(receive: Callable[[Update], Digest]) -> tuple[ReceivingRollout, Engine]:
    engine = Engine()
    return ReceivingRollout(cast(RolloutEngine, engine), receive), engine


EMPTY = Digest(tensors=0, bytes=0, checksum="")


def test_an_engine_with_half_of_its_weights_does_not_resume() -> None:
    """G8, G2: until a load succeeds; nor after a sleep."""
    fails = [True]

    def receive(update: Update) -> Digest:
        if fails:
            fails.pop()
            raise ValueError("half way")
        return EMPTY

    async def play() -> None:
        rollout, engine = receiving(receive)
        with pytest.raises(IllegalTransition, match="pause first"):
            await rollout.load_weights(Update(version=1))
        await rollout.pause(PauseMode.KEEP)
        with pytest.raises(EngineFailed, match=r"version 1 could not be received.*half way"):
            await rollout.load_weights(Update(version=1))
        with pytest.raises(EngineFailed, match="version 1 did not arrive whole"):
            await rollout.resume()
        assert await rollout.load_weights(Update(version=2)) == EMPTY
        await rollout.resume()
        await rollout.pause(PauseMode.ABORT)
        await rollout.sleep()
        await rollout.wake()
        with pytest.raises(EngineFailed, match="gone since it slept"):
            await rollout.resume()
        await rollout.load_weights(Update(version=3))
        await rollout.resume()
        assert (rollout.version, engine.calls.count("resume")) == (3, 2)
        assert rollout.capabilities.overlap
        await rollout.close()

    asyncio.run(play())


def test_a_cancelled_load_and_the_next_one_never_write_at_once() -> None:
    """F7: the thread of a cancelled load is waited for."""
    inside, most, go = [0], [0], threading.Event()

    def receive(update: Update) -> Digest:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        if update.version == 1:
            go.wait(5)
        inside[0] -= 1
        return EMPTY

    async def play() -> None:
        rollout, _ = receiving(receive)
        await rollout.pause(PauseMode.KEEP)
        first = asyncio.ensure_future(rollout.load_weights(Update(version=1)))
        await asyncio.sleep(0.02)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(rollout.load_weights(Update(version=2)))
        await asyncio.sleep(0.02)
        assert not second.done()
        go.set()
        await second
        assert rollout.version == 2
        await rollout.close()

    asyncio.run(play())
    assert most == [1]
