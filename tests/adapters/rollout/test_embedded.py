"""What the embedded engine does beyond the port's promises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest
import torch
import transformers

from hexpo.adapters.models.decode import Feed, LlamaDecoder
from hexpo.adapters.models.kernels import load_kernels
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.rollout.embedded import Config, DecodePrecision, EmbeddedEngine, build
from hexpo.adapters.rollout.embedded.answer import StopRule
from hexpo.application.ports.rollout import Generation, PauseMode, Request
from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import IllegalTransition
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason


class Bytes:
    """A tokenizer whose ids are bytes."""

    identity, vocabulary, stop_ids = "bytes", 256, ()

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")


def engine_of(own: Precision = Precision.FP32, **settings: Any) -> EmbeddedEngine:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=None,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    for parameter in module.parameters():
        parameter.data = parameter.data.to(own.dtype)
    policy = Policy(module, precision=own)
    return build(Config(**settings), policy=policy, tokenizer=Bytes())  # type: ignore[arg-type]


def request(number: int, prompt: Sequence[int], *, session: str = "") -> Request:
    sampling = Sampling(max_new_tokens=4)
    return Request(
        id=str(number), prompt=tuple(prompt), sampling=sampling, seed=number, session=session
    )


async def all_of(engine: EmbeddedEngine, requests: Sequence[Request]) -> list[Generation]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.generate(one)) for one in requests]
    return [task.result() for task in tasks]


def test_a_prompt_that_a_session_shares_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight samples of a prompt of 101 ids: 100 rows once, then one a sample."""
    rows: list[int] = []
    original = LlamaDecoder._last_rows

    def counting(self: LlamaDecoder, feeds: Sequence[Feed]) -> torch.Tensor:
        rows.append(sum(len(feed.ids) for feed in feeds))
        return original(self, feeds)

    monkeypatch.setattr(LlamaDecoder, "_last_rows", counting)
    prompt = [i % 256 for i in range(101)]
    engine = engine_of()
    asyncio.run(all_of(engine, [request(i, prompt, session="group") for i in range(8)]))
    assert rows == [100, 8, 8, 8, 8]


def test_the_next_turn_of_a_session_starts_where_the_last_one_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Multi-turn: only the new ids and the last sampled one are computed."""
    rows: list[int] = []
    original = LlamaDecoder._last_rows

    def counting(self: LlamaDecoder, feeds: Sequence[Feed]) -> torch.Tensor:
        rows.append(sum(len(feed.ids) for feed in feeds))
        return original(self, feeds)

    monkeypatch.setattr(LlamaDecoder, "_last_rows", counting)
    engine = engine_of()

    async def turns() -> tuple[Generation, Request, Generation]:
        first = await engine.generate(request(0, range(70), session="talk"))
        second = request(1, [*range(70), *first.tokens.tolist(), 9, 8, 7], session="talk")
        return first, second, await engine.generate(second)

    _, second, answer = asyncio.run(turns())
    assert rows == [70, 1, 1, 1, 4, 1, 1, 1]
    alone = asyncio.run(engine_of().generate(Request(**{**_fields(second), "session": ""})))
    assert torch.equal(answer.tokens, alone.tokens)


def _fields(one: Request) -> dict[str, Any]:
    names = ("id", "prompt", "sampling", "seed", "session")
    return {name: getattr(one, name) for name in names}


def test_the_order_of_tasks_makes_the_composition() -> None:
    """Y8: requests that are made at once are batched alike in every run: the same bits."""
    requests = [request(i, range(3 + i)) for i in range(9)]
    first = asyncio.run(all_of(engine_of(slots=4), requests))
    second = asyncio.run(all_of(engine_of(slots=4), requests))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.logprobs, other.logprobs)


@pytest.mark.parametrize(
    ("own", "asked", "overlaps"),
    [
        (Precision.FP32, DecodePrecision.AUTO, False),
        (Precision.FP32, DecodePrecision.BF16, True),
        (Precision.BF16, DecodePrecision.AUTO, True),
        (Precision.BF16, DecodePrecision.FP32, True),
    ],
)
@pytest.mark.parametrize("native", [True, False])
def test_only_packed_copies_declare_that_training_may_go_on(
    own: Precision, asked: DecodePrecision, *, overlaps: bool, native: bool
) -> None:
    """A capability is what is true: live tensors change under the reader."""
    engine = engine_of(own, precision=asked, native=native)
    assert engine.capabilities.overlap is overlaps
    answer = asyncio.run(engine.generate(request(0, range(40))))
    assert len(answer.tokens) == 4
    assert bool(answer.logprobs.isfinite().all())


def test_weights_cannot_be_loaded_under_running_requests() -> None:
    """A state machine's error, not a torn answer."""

    async def work() -> None:
        engine = engine_of()
        long = Request(id="x", prompt=(1,), sampling=Sampling(max_new_tokens=300), seed=0)
        task = asyncio.ensure_future(engine.generate(long))
        await anext(engine.stream(attrs.evolve(long, id="watched")))
        with pytest.raises(IllegalTransition, match="pause"):
            await engine.load_weights(Update(version=1))
        await engine.pause(PauseMode.ABORT)
        await engine.load_weights(Update(version=1))
        assert (await task).stop is StopReason.ABORTED

    asyncio.run(work())


def rule(**sampling: Any) -> StopRule:
    one = Request(id="r", prompt=(1,), sampling=Sampling(**sampling), seed=0)
    return StopRule(one, stop_ids=(0,), decode=Bytes().decode)


@pytest.mark.parametrize("text", ["stop", "né", "</a>", "\n\n"])
def test_a_stop_text_is_seen_whatever_tokens_it_comes_in(text: str) -> None:
    """O09 r5: also where one character is several tokens; not one token later."""
    check = rule(max_new_tokens=100, stop_texts=(text,)).check
    answer = list(f"some words before {text}".encode())
    stops = [check(answer[: i + 1]) for i in range(len(answer))]
    assert stops == [None] * (len(answer) - 1) + [StopReason.STOP]


def test_a_stop_text_before_the_least_length_does_not_end_the_answer_later() -> None:
    """Benchmarks of fixed length: what was passed over stays passed over."""
    check = rule(max_new_tokens=9, min_new_tokens=5, stop_texts=("ab",)).check
    answer = list(b"xxabyyyab")
    stops = [check(answer[: i + 1]) for i in range(9)]
    assert stops == [None] * 8 + [StopReason.STOP]


def test_a_stop_id_before_the_least_length_stays_and_does_not_end_the_answer() -> None:
    """Benchmarks of fixed length."""
    check = rule(max_new_tokens=4, min_new_tokens=3).check
    assert check([5, 0]) is None
    assert check([5, 0, 0]) is StopReason.STOP
    assert check([5, 0, 7, 8]) is StopReason.LENGTH


@pytest.mark.parametrize("cut", [1, 5, 12, 29])
def test_an_answer_that_is_cut_and_continued_is_the_uncut_one(cut: int) -> None:
    """F8: under equal weights; a token's randomness is its own place's, in either request."""
    sampling = Sampling(max_new_tokens=30, min_new_tokens=30)
    one = Request(id="whole", prompt=tuple(range(40)), sampling=sampling, seed=11)

    async def work() -> tuple[Generation, Generation]:
        engine = engine_of()
        whole = await engine.generate(one)
        rest = Request(
            id="rest",
            prompt=(*one.prompt, *whole.tokens[:cut].tolist()),
            given=cut,
            sampling=Sampling(max_new_tokens=30 - cut, min_new_tokens=30 - cut),
            seed=11,
        )
        found = await engine.generate(rest)
        await engine.close()
        return whole, found

    whole, rest = asyncio.run(work())
    assert torch.equal(rest.tokens, whole.tokens[cut:])
    torch.testing.assert_close(rest.logprobs, whole.logprobs[cut:], rtol=0, atol=1e-5)


def test_a_stop_text_may_begin_before_the_cut() -> None:
    """The earlier ids are read for it, and count for no budget."""
    sampling = Sampling(max_new_tokens=20, stop_texts=("END",))
    prompt = tuple(b"question E")
    one = Request(id="r", prompt=(*prompt, *b"N"), given=2, sampling=sampling, seed=0)
    rule = StopRule(one, (), Bytes().decode)
    assert rule.check(list(b"END"), earlier=2) is StopReason.STOP
    assert rule.check(list(b"ENT"), earlier=2) is None
    assert rule.check(list(b"EN" + b"x" * 20), earlier=2) is StopReason.LENGTH
    least = Request(id="l", prompt=one.prompt, given=2, seed=0, sampling=Sampling(min_new_tokens=2))
    assert StopRule(least, (7,), Bytes().decode).check([1, 1, 7], earlier=2) is None


def test_random_numbers_of_a_place_do_not_depend_on_how_many_are_drawn() -> None:
    """A continued answer may have been given another budget."""

    def drawn(count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(5)
        return torch.rand(count, dtype=torch.float64, generator=generator)

    for count in (1, 7, 16, 33):
        assert torch.equal(drawn(count), drawn(200)[:count])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"native": False}, 1), ({"native": False, "threads": 3}, 3), ({"native": True}, 2)],
)
@pytest.mark.usefixtures("two_threads")
def test_the_threads_of_a_step_are_the_engines_own(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], expected: int
) -> None:
    """Without compiled kernels one of two is quicker; what trains meanwhile keeps both."""
    if settings["native"] and not load_kernels(head_dim=16, group=2).native:
        pytest.skip("there is no compiler")
    seen: list[int] = []
    original = LlamaDecoder._last_rows

    def noting(self: LlamaDecoder, feeds: Sequence[Feed]) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return original(self, feeds)

    monkeypatch.setattr(LlamaDecoder, "_last_rows", noting)
    asyncio.run(all_of(engine_of(**settings), [request(0, range(9))]))
    assert set(seen) == {expected}
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [torch.get_num_threads(), *later] == [2, 2]
