"""An engine, real or not, the model that it serves, and what is asked of it."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from tests.contract.borrowed import own_copy
from tests.tiny import llama
from torch import Tensor

from hexpo.adapters.rollout.vllm import Config, VllmEngine, capabilities
from hexpo.adapters.rollout.vllm.engine import Served
from hexpo.adapters.rollout.wire import RemoteRollout, RolloutService
from hexpo.adapters.transfer.disk import build_sender
from hexpo.application.ports.cluster import Death
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Digest, Update, Weight
from hexpo.domain.digest import Digester
from hexpo.domain.sampling import Sampling

MARKS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of vLLM and what it imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.timeout(600),
]
"""Of every test here."""

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed in this environment: make test-engines",
)


TESTS = Path(__file__).parents[2]
SUITE = own_copy(TESTS / "contract" / "test_rollout.py")
FAKE = own_copy(TESTS / "adapters" / "rollout" / "vllm_fake.py")


async def started(engine: Any, one: Request) -> asyncio.Task[Generation]:
    """As the suite's, but of this very request: vLLM may begin a later one first."""
    adapter = engine if isinstance(engine, VllmEngine) else engine._process.engine
    task = asyncio.ensure_future(engine.generate(one))
    while not (  # noqa: ASYNC110 - nothing says so on this loop
        task.done() or any(a.ids for a in list(adapter._answers) if a.request.id == one.id)
    ):
        await asyncio.sleep(0.001)
    return task


SUITE.started = started  # in this module's own copy of the suite


@attrs.define(eq=False)
class Model:
    """A random Llama whose heads vLLM's processor kernels know, and the weights it began with."""

    module: Any
    folder: Path

    @torch.no_grad()
    def logits(self, ids: Any) -> Tensor:
        return self.module(torch.tensor([list(ids)])).logits[0]  # type: ignore[no-any-return]

    @torch.no_grad()
    def train(self) -> None:
        generator = torch.Generator().manual_seed(1)
        for parameter in self.module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * parameter.std() * noise if parameter.ndim > 1 else 0)

    def weights(self) -> dict[str, Tensor]:
        named = self.module.named_parameters()
        return {name: parameter.detach().clone() for name, parameter in named}

    def restore(self) -> None:
        from safetensors.torch import load_file

        loaded = load_file(self.folder / "model.safetensors")
        self.module.load_state_dict(loaded, strict=False)

    def digest(self) -> Digest:
        digester = Digester()
        for name, tensor in self.weights().items():
            digester.add(name, tensor)
        return digester.digest


def make_model(folder: Path) -> Model:
    module = llama(
        vocab_size=SUITE.VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.12,
        pad_token_id=None,
        eos_token_id=SUITE.END,
    ).eval()
    module.save_pretrained(folder)
    return Model(module, folder)


class OverThere:
    """A process that is none: the engine lives on a loop of its own thread for the whole module,
    and every test finds it as it started."""

    name, pid = "replica", 0

    def __init__(self, engine: VllmEngine, loop: asyncio.AbstractEventLoop, model: Model) -> None:
        self.engine, self.loop, self.model = engine, loop, model
        self._service = RolloutService(engine)
        self.updates = 0

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "close":
            return await self.there(self._left())
        if method == "load_weights":
            arguments = (self.sent(arguments[0].version),)
        return await self.there(getattr(self._service, method)(*arguments, **options))

    async def there(self, work: Any) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def sent(self, version: int, weights: Mapping[str, Tensor] | None = None) -> Update:
        """Weights, by default the model's present ones, in files."""
        self.updates += 1
        folder = self.model.folder / f"update-{self.updates}"
        update = Update(version=version, address={"folder": str(folder), "keep": 1, "bucket": 9000})
        named = self.model.weights() if weights is None else weights
        stream = (Weight(name=k, shape=tuple(v.shape), tensor=v) for k, v in named.items())
        build_sender()(stream, update)
        return update

    async def _left(self) -> None:
        await self.engine.interrupt()
        await self.engine.pause(PauseMode.DRAIN)

    async def fresh(self) -> None:
        """As it started: the first weights, version 0, serving."""
        await self.engine.pause(PauseMode.DRAIN)
        self.model.restore()
        await self.engine.load_weights(self.sent(0))
        await self.engine.resume()

    async def death(self) -> Death:
        return await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """It runs on."""


def bench_of(there: OverThere) -> Any:
    asyncio.run(there.there(there.fresh()))
    engine = RemoteRollout(
        there,  # type: ignore[arg-type]
        capabilities=there.engine.capabilities,
        version=there.engine.version,
    )
    return SUITE.Bench(
        engine=engine,
        logits=there.model.logits,
        train=there.model.train,
        break_it=lambda: None,
        exactness=1e-4,
    )


def stand_in(model: Model, *, sleep: bool = False, adapter: Any = None) -> VllmEngine:
    """The adapter over `FakeLLM`, which reads the model live."""
    llm = FAKE.FakeLLM(model.logits, slots=SUITE.SLOTS)
    served = Served(
        vocabulary=SUITE.VOCABULARY,
        max_tokens=256,
        stop_ids=frozenset({SUITE.END}),
        decode=SUITE.Letters().decode,
        top_k=8,
        receives=True,
        adapter=adapter,
    )
    able = capabilities(Config(sleep=sleep))
    return VllmEngine(llm, served, capabilities=able, sampling=FAKE.sampling)


def ask(name: str, *, seed: int = 0, priority: int = 0, **settings: Any) -> Request:
    sampling = Sampling(**{"max_new_tokens": 12, "min_new_tokens": 12, **settings})
    return Request(id=name, prompt=(5, 6, 7), sampling=sampling, seed=seed, priority=priority)


def long_ask(name: str, seed: int) -> Request:
    """Longer than a block of vLLM's cache (128 tokens on a processor)."""
    return attrs.evolve(ask(name, seed=seed), prompt=tuple(5 + i % 50 for i in range(200)))


def off_by(model: Model, one: Request, answer: Generation) -> float:
    """Mean difference of the answer's log-probs from the model's own."""
    expected = SUITE.expected_logprobs(
        SUITE.Bench(
            engine=None, logits=model.logits, train=model.train, break_it=model.train, exactness=0
        ),
        one,
        answer,
    )
    return float((answer.logprobs - expected).abs().mean())
