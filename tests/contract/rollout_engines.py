"""Rollout engines under test, and requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import pytest
import torch
from tests.tiny import llama
from torch import Tensor

from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.rollout.embedded import Config, build
from hexpo.application.ports.rollout import Generation, PauseMode, Request, RolloutEngine
from hexpo.domain.sampling import Sampling

VOCABULARY = 64
END = 2
SLOTS = 4


@attrs.frozen(kw_only=True, eq=False)
class Bench:
    """An engine under test, and what the suite needs beside the port."""

    engine: RolloutEngine
    logits: Callable[[Sequence[int]], Tensor]
    """(L, V) logits of ids under the model's present weights."""
    train: Callable[[], None]
    """Changes the trainer's weights, not yet loaded."""
    break_it: Callable[[], None]
    """Makes the next step raise RuntimeError("broken")."""
    exactness: float
    """How far log-probs may be from a full forward's."""


class Letters:
    """A tokenizer whose id i is the letter number i."""

    identity, vocabulary, stop_ids = "letters", VOCABULARY, (END,)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("@") + i) for i in ids)


def embedded(**overrides: Any) -> Bench:
    """The embedded engine on a random Llama of two layers; answers seldom end by themselves."""
    module = llama(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.12,
        pad_token_id=None,
        eos_token_id=END,
        **overrides,
    ).eval()
    policy = Policy(module, precision=Precision.FP32)
    engine = build(Config(slots=SLOTS), policy=policy, tokenizer=Letters())  # type: ignore[arg-type]

    @torch.no_grad()
    def logits(ids: Sequence[int]) -> Tensor:
        return module(torch.tensor([list(ids)])).logits[0]  # type: ignore[no-any-return]

    @torch.no_grad()
    def train() -> None:
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * parameter.std() * noise if parameter.ndim > 1 else 0)

    def break_it() -> None:
        def raising(answers: object) -> list[object]:
            raise RuntimeError("broken")

        engine._batch.step = raising  # type: ignore[method-assign,assignment]

    return Bench(engine=engine, logits=logits, train=train, break_it=break_it, exactness=1e-5)


def generic() -> Bench:
    """The embedded engine on a family that it has no fast path for (scaled rotations)."""
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    return embedded(rope_parameters=scaling)


BENCHES: list[Callable[[], Bench]] = [embedded, generic]
OpenBench = Callable[[], Bench]
benches = pytest.mark.parametrize("open_bench", BENCHES, ids=lambda f: f.__name__)


def request(name: str, prompt: Sequence[int] = (5, 6, 7), *, seed: int = 0, **rest: Any) -> Request:
    """A request; settings of sampling and of the request by name."""
    own = {field.name for field in attrs.fields(Request)}
    outer = {key: value for key, value in rest.items() if key in own}
    inner = {key: value for key, value in rest.items() if key not in own}
    sampling = Sampling(**{"max_new_tokens": 12, "min_new_tokens": 12, **inner})
    return Request(id=name, prompt=tuple(prompt), sampling=sampling, seed=seed, **outer)


def run(bench: Bench, work: Callable[[RolloutEngine], Awaitable[Any]]) -> Any:
    """Do `work` with the engine, and close it."""

    async def whole() -> Any:
        try:
            return await work(bench.engine)
        finally:
            await bench.engine.close()

    return asyncio.run(asyncio.wait_for(whole(), 60))


async def all_of(engine: RolloutEngine, requests: Sequence[Request]) -> list[Generation]:
    """Answers to requests that are made at once."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.generate(one)) for one in requests]
    return [task.result() for task in tasks]


async def started(engine: RolloutEngine, one: Request) -> asyncio.Task[Generation]:
    """A long request of which at least one token is sampled."""
    seen = asyncio.Event()

    async def watch() -> None:
        async for _ in engine.stream(attrs.evolve(one, id=one.id + " (watched)")):
            seen.set()
            return

    task = asyncio.ensure_future(engine.generate(one))
    await watch()
    return task


def assert_whole(answer: Generation) -> None:
    count = len(answer.tokens)
    assert answer.tokens.dtype == torch.int64
    assert answer.logprobs.dtype == torch.float32
    assert len(answer.logprobs) == count
    covered = [place for span in answer.spans for place in range(span.start, span.end)]
    assert covered == list(range(count))
    assert bool((answer.logprobs <= 0).all())


def expected_logprobs(bench: Bench, one: Request, answer: Generation) -> Tensor:
    ids = [*one.prompt, *answer.tokens.tolist()]
    logits = bench.logits(ids)[len(one.prompt) - 1 : -1] / one.sampling.temperature
    return torch.log_softmax(logits, -1).gather(1, answer.tokens[:, None])[:, 0]


def support_of(logits_V: Tensor, sampling: Sampling) -> dict[int, float]:
    """The ids that the filters leave, with their probabilities."""
    p, order = logits_V.softmax(-1).sort(descending=True)
    keep = torch.arange(VOCABULARY) < (sampling.top_k or VOCABULARY)
    p = torch.where(keep, p, 0) / p[keep].sum()
    keep &= p.cumsum(0) - p < sampling.top_p
    keep &= p >= sampling.min_p * p[0]
    kept = p[keep] / p[keep].sum()
    return dict(zip(order[keep].tolist(), kept.tolist(), strict=True))


def assert_went_on(bench: Bench, one: Request, answer: Generation) -> None:
    """The weights of version 0 sampled the first of its 200 tokens, those of version 3 the rest:
    only the latter have the log-probs that the model has now."""
    assert_whole(answer)
    assert [span.version for span in answer.spans] == [0, 3]
    after = answer.spans[1].start
    assert 0 < after < 200 == len(answer.tokens)
    difference = answer.logprobs - expected_logprobs(bench, one, answer)
    assert float(difference[after:].abs().max()) < bench.exactness
    assert float(difference[:after].abs().max()) > 1e-2


def skip_without(bench: Bench, mode: PauseMode) -> None:
    if mode not in bench.engine.capabilities.pause_modes:
        pytest.skip(f"this engine declares no pause mode {mode.value}")
