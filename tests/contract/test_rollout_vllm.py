"""vLLM keeps the contract of rollouts: the adapter over a stand-in for its engine everywhere, and
over the real one where it is installed (`make test-engines`)."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from hexpo.adapters.models.export import export_policy
from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.lora import Lora, attach, without_adapters
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm import (
    Config,
    ServedScorer,
    VllmEngine,
    build,
    capabilities,
    environment,
)
from hexpo.adapters.rollout.vllm.engine import Served
from hexpo.adapters.rollout.wire import RemoteRollout, RolloutService
from hexpo.adapters.stores import memory
from hexpo.adapters.training.fsdp import Config as Training
from hexpo.adapters.training.fsdp import build_frozen
from hexpo.adapters.training.fsdp.config import Sent
from hexpo.adapters.training.fsdp.stream import exported
from hexpo.adapters.transfer.disk import build_sender
from hexpo.application.ports.cluster import Death
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Digest, Update, Weight
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.digest import Digester
from hexpo.domain.errors import EngineFailed, IllegalTransition, Unsupported
from hexpo.domain.sampling import Sampling

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of vLLM and what it imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.timeout(600),
]

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed in this environment: make test-engines",
)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem + "_for_vllm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).parent
SUITE = _module(HERE / "test_rollout.py")
FAKE = _module(HERE.parent / "adapters" / "rollout" / "vllm_fake.py")


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

EXCEPT = (
    "tells_every_waiter",  # below: what breaks is another process
    "lower_priority",  # below: vLLM starts what comes first while it has room
)


def _cases() -> Iterator[Any]:
    """Every test of the suite, with each set of its further parameters."""
    for name, test in vars(SUITE).items():
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        if not name.startswith("test_") or not any(m.args[0] == "open_bench" for m in marks):
            continue
        if any(part in name for part in EXCEPT):
            continue
        others = [mark for mark in marks if mark.args[0] != "open_bench"]
        for values in itertools.product(*(mark.args[1] for mark in others)):
            given: dict[str, Any] = {}
            for mark, value in zip(others, values, strict=True):
                names = mark.args[0]
                many = not isinstance(names, str)
                given.update(zip(names, value, strict=True) if many else {names: value})
            filters = given.get("filters", {})
            if "min_p" in filters and "top_p" in filters:
                continue  # refused: vLLM's order of these two is another one
            yield pytest.param(test, given, id=" ".join([name, *map(str, given.values())])[:110])


CASES = list(_cases())


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
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=SUITE.VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.12,
        eos_token_id=SUITE.END,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    module.save_pretrained(folder)
    return Model(module, folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """As transformers reads a folder that hexpo exported; the engine serves the same folder."""
    import transformers

    made = make_model(tmp_path_factory.mktemp("model"))
    exported = tmp_path_factory.mktemp("exported")
    export_policy(load_policy(str(made.folder), precision=Precision.FP32), exported)
    module = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, made.module.get_parameter(name))
    return Model(module.eval(), exported)


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


@pytest.fixture(scope="module")
def real(model: Model) -> Iterator[OverThere]:
    """One engine for all tests here: a start takes half a minute."""
    arguments = {"max_num_batched_tokens": 256}  # one longest prompt, and no room beside it
    config = Config(slots=SUITE.SLOTS, top_k=SUITE.VOCABULARY, arguments=arguments)
    os.environ.update(environment(config))  # its processes inherit them
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engine = asyncio.run_coroutine_threadsafe(
        build(
            config,
            model=str(model.folder),
            precision=Precision.FP32,
            tokenizer=SUITE.Letters(),
            receiver="hexpo.adapters.transfer.disk",
            reader="replica",
        ),
        loop,
    ).result()
    yield OverThere(engine, loop, model)
    asyncio.run_coroutine_threadsafe(engine.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


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


@pytest.mark.parametrize(("test", "given"), CASES)
def test_the_adapter_keeps_the_contract(
    test: Callable[..., None], given: dict[str, Any], tmp_path: Path
) -> None:
    """Ids, log-probs, spans, streams, cancellation, pauses and updates are the adapter's own."""

    def open_bench() -> Any:
        model = make_model(tmp_path)
        return SUITE.Bench(
            engine=stand_in(model),
            logits=model.logits,
            train=model.train,
            break_it=lambda: None,
            exactness=1e-5,
        )

    test(open_bench=open_bench, **given)


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize(("test", "given"), CASES)
def test_vllm_keeps_the_contract(
    test: Callable[..., None], given: dict[str, Any], real: OverThere
) -> None:
    """The whole suite on one real engine."""
    test(open_bench=lambda: bench_of(real), **given)


def ask(name: str, *, seed: int = 0, priority: int = 0, **settings: Any) -> Request:
    sampling = Sampling(**{"max_new_tokens": 12, "min_new_tokens": 12, **settings})
    return Request(id=name, prompt=(5, 6, 7), sampling=sampling, seed=seed, priority=priority)


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


def test_an_engine_that_dies_tells_whoever_waits(tmp_path: Path) -> None:
    """F5: the error's own words and cause; afterwards everything is refused."""
    engine = stand_in(make_model(tmp_path))
    llm: Any = engine._llm

    async def work() -> None:
        waiting = [asyncio.create_task(engine.generate(ask(str(i)))) for i in range(8)]
        await asyncio.sleep(0.002)
        llm.broken = RuntimeError("broken")
        await asyncio.wait(waiting)
        for task in waiting:
            error = task.exception()
            assert isinstance(error, EngineFailed)
            assert "broken" in str(error)
            assert isinstance(error.__cause__, RuntimeError)
        with pytest.raises(EngineFailed, match="died before"):
            await engine.generate(ask("after"))
        await engine.close()

    asyncio.run(work())


def test_lower_priority_numbers_leave_the_engine_s_queue_first(tmp_path: Path) -> None:
    """Behind requests that fill the engine, priority decides."""
    engine = stand_in(make_model(tmp_path))

    async def work() -> list[str]:
        return await order_of_ends(engine)

    assert_urgent_first(asyncio.run(work()))


async def order_of_ends(engine: Any) -> list[str]:
    """Long requests fill the engine; then come patient ones, then urgent ones."""
    order: list[str] = []

    async def one(wanted: Request) -> None:
        await engine.generate(wanted)
        order.append(wanted.id)

    async with asyncio.TaskGroup() as group:
        for name, priority, length in (("full", 0, 60), ("patient", 5, 12), ("urgent", 1, 12)):
            for number in range(SUITE.SLOTS):
                wanted = ask(
                    f"{name} {number}",
                    seed=number,
                    priority=priority,
                    max_new_tokens=length,
                    min_new_tokens=length,
                )
                group.create_task(one(wanted))
    return order


def assert_urgent_first(order: list[str]) -> None:
    late = [name for name in order if not name.startswith("full")]
    assert {name.split()[0] for name in late[: SUITE.SLOTS]} == {"urgent"}


@needs_vllm
@pytest.mark.slow
def test_vllm_serves_urgent_requests_first(real: OverThere) -> None:
    """Waiting requests leave vLLM's queue by priority."""
    assert_urgent_first(SUITE.run(bench_of(real), order_of_ends))


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
def test_an_exported_folder_has_equal_logits_in_vllm_and_in_transformers(real: OverThere) -> None:
    """H7: over the whole vocabulary, at every place of a long text."""
    ids = torch.randint(3, SUITE.VOCABULARY, (200,), generator=torch.Generator().manual_seed(5))

    async def work(_: Any) -> Any:
        return await real.there(real.engine.score(ids.tolist(), top_k=SUITE.VOCABULARY))

    scores = SUITE.run(bench_of(real), work)
    expected_LV = real.model.logits(ids.tolist()).log_softmax(-1)[:-1]
    found_LV = torch.zeros_like(expected_LV).scatter(1, scores.top_ids[1:], scores.top_logprobs[1:])
    torch.testing.assert_close(found_LV, expected_LV, rtol=0, atol=1e-4)


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


def long_ask(name: str, seed: int) -> Request:
    """Longer than a block of vLLM's cache (128 tokens on a processor)."""
    return attrs.evolve(ask(name, seed=seed), prompt=tuple(5 + i % 50 for i in range(200)))


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


@needs_vllm
@pytest.mark.slow
def test_a_served_teacher_says_what_the_trainer_s_own_engine_says(real: OverThere) -> None:
    """C1, S4: the same columns of the same rows, within single precision."""
    store = memory.build()
    lengths = torch.tensor([9, 40, 3, 120])
    rows = Sequences.of({"id": torch.arange(4), "length": lengths})
    generator = torch.Generator().manual_seed(2)
    count = int(lengths.sum())
    action_T = torch.rand(count, generator=generator) < 0.6
    action_T[lengths.cumsum(0) - lengths] = False  # nothing stands before a first token
    token_T = torch.randint(3, SUITE.VOCABULARY, (count,), generator=generator)
    position_T = torch.cat([torch.arange(one) for one in lengths.tolist()])
    store.put(Batch.of(rows, {"token": token_T, "action": action_T, "position": position_T}))
    policy = load_policy(str(real.model.folder), precision=Precision.FP32)
    own = build_frozen(
        Training(top_k=7), policy=policy, store=store, temperature=1.0, column="reference"
    )
    served = ServedScorer(Away(real), store=store, top_k=7)

    async def work(_: Any) -> None:
        for scorer, name in ((own, "reference"), (served, "teacher")):
            await scorer.score(rows, [name, f"{name}_topk", f"{name}_ids"])

    SUITE.run(bench_of(real), work)
    kinds = ("", "_topk", "_ids")
    found = store.get(
        rows.ids, [f"{one}{kind}" for one in ("teacher", "reference") for kind in kinds]
    )
    for kind in ("", "_topk"):
        torch.testing.assert_close(
            found[f"teacher{kind}"], found[f"reference{kind}"], rtol=0, atol=1e-4
        )
    assert torch.equal(found["teacher_ids"], found["reference_ids"])
    assert float(found["teacher"][action_T].max()) < 0


@attrs.frozen
class Away:
    """The engine, as whoever calls it from another loop sees it."""

    real: OverThere

    async def score(self, prompt_ids: Any, *, top_k: int) -> Any:
        return await self.real.there(self.real.engine.score(prompt_ids, top_k=top_k))


@needs_vllm
@pytest.mark.slow
def test_scores_are_those_of_a_full_forward(real: OverThere) -> None:
    """Teachers: the id's own log-prob and the likeliest ids, at temperature 1."""
    ids = [5, 9, 33, 2, 17, 40, 6]

    async def work(_: Any) -> Any:
        return await real.there(real.engine.score(ids, top_k=5))

    scores = SUITE.run(bench_of(real), work)
    expected_LV = real.model.logits(ids).log_softmax(-1)[:-1]
    own = expected_LV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    top = expected_LV.topk(5)
    torch.testing.assert_close(scores.logprobs[1:], own, rtol=0, atol=1e-4)
    torch.testing.assert_close(scores.top_logprobs[1:], top.values, rtol=0, atol=1e-4)
    assert torch.equal(scores.top_ids[1:], top.indices)
    assert scores.logprobs[0] == 0


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


@needs_vllm
@pytest.mark.slow
def test_a_killed_engine_process_reaches_whoever_waits(real: OverThere) -> None:
    """F5, O3: the last test of this engine."""
    engine = real.engine

    async def there() -> None:
        waiting = asyncio.create_task(
            engine.generate(ask("w", max_new_tokens=240, min_new_tokens=240))
        )
        await asyncio.sleep(0.2)
        for process in engine._llm.engine_core.resources.engine_manager.processes:
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="EngineDeadError"):
            await waiting
        with pytest.raises(EngineFailed, match="died before"):
            await engine.generate(ask("after"))

    asyncio.run(real.there(real.fresh()))
    asyncio.run(asyncio.wait_for(real.there(there()), 60))
