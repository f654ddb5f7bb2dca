"""Cached decoding against the model's own full forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models.decode import (
    Decoder,
    Feed,
    GenericDecoder,
    Lane,
    LlamaDecoder,
    WeightsMode,
    floors_of,
)
from hexpo.adapters.models.decode.cache import BlockCache
from hexpo.adapters.models.kernels import load_kernels
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.domain.sampling import Sampling

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama tied": lambda: transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama untied with biases": lambda: transformers.LlamaConfig(
        **SHAPE, tie_word_embeddings=False, attention_bias=True
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, tie_word_embeddings=False),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=32),
}
KINDS = ["live native", "packed native", "live eager", "generic"]


def policy_of(family: str) -> Policy:
    """A random model whose norms and biases matter."""
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0, 0.1)
    return Policy(module, precision=Precision.FP32)


def decoder_of(policy: Policy, kind: str) -> Decoder:
    if kind == "generic":
        return GenericDecoder(policy.module, vocabulary=policy.config.vocab_size)
    spec, (mode, code) = policy.spec, kind.split()
    assert spec is not None
    kernels = load_kernels(head_dim=spec.head_dim, group=spec.group, native=code == "native")
    return LlamaDecoder(spec, policy.weight, kernels, mode=WeightsMode(mode), dtype=torch.float32)


def full_forward(policy: Policy, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return policy.module(torch.tensor([ids])).logits[0, -1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_cached_logits_equal_a_full_forward(family: str, kind: str) -> None:
    """C1, C2 (1e-5, fp32): prompts of several blocks, forks inside a block, sequences that come
    and go."""
    policy = policy_of(family)
    decoder = decoder_of(policy, kind)
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, 96, (n,), generator=generator).tolist() for n in (70, 5, 33)]
    lanes = [decoder.open() for _ in ids]
    decoder.prefill([Feed(lane, own[:-1]) for lane, own in zip(lanes, ids, strict=True)])
    lanes.append(decoder.fork(lanes[0], 40))
    ids.append([*ids[0][:40], 7, 8, 9])
    logits = decoder.feed(
        [Feed(lane, own[lane.length :]) for lane, own in zip(lanes, ids, strict=True)]
    )
    for step in range(12):
        expected = torch.stack([full_forward(policy, own) for own in ids])
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
        following = logits.argmax(-1).tolist()
        for own, token in zip(ids, following, strict=True):
            own.append(token)
        if step == 4:
            decoder.close(lanes.pop(1))
            ids.pop(1)
        if step == 7:
            lanes.append(decoder.fork(lanes[1], 13))
            ids.append([*ids[1][:13], 3])
        logits = decoder.feed(
            [Feed(lane, own[lane.length :]) for lane, own in zip(lanes, ids, strict=True)]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_refresh_takes_over_every_weight(kind: str) -> None:
    """G6: the tied head too; packed copies are the old ones until then."""
    policy = policy_of("llama tied")
    decoder = decoder_of(policy, kind)
    ids = [5, 6, 7]
    before = full_forward(policy, ids)
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.mul_(1.1)
    if decoder.mode is WeightsMode.PACKED:
        torch.testing.assert_close(
            decoder.feed([Feed(decoder.open(), ids)])[0], before, rtol=0, atol=1e-5
        )
    decoder.refresh()
    after = decoder.feed([Feed(decoder.open(), ids)])[0]
    torch.testing.assert_close(after, full_forward(policy, ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("code", ["native", "eager"])
def test_bf16_copies_are_as_near_to_fp32_as_the_model_in_bf16(code: str) -> None:
    """The fast path adds no error of its own kind."""
    policy = policy_of("llama tied")
    spec = policy.spec
    assert spec is not None
    kernels = load_kernels(head_dim=spec.head_dim, group=spec.group, native=code == "native")
    decoder = LlamaDecoder(
        spec, policy.weight, kernels, mode=WeightsMode.PACKED, dtype=torch.bfloat16
    )
    ids = list(range(3, 60))
    exact = full_forward(policy, ids)
    ours = decoder.feed([Feed(decoder.open(), ids)])[0].float()
    policy.module.to(torch.bfloat16)
    theirs = full_forward(policy, ids).float()
    assert float((ours - exact).abs().mean()) < 1.5 * float((theirs - exact).abs().mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_in_one_call_are_the_kernels_one_by_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, prompts and single tokens, wherever the processor has products of its own."""
    policy = policy_of(family)
    spec = policy.spec
    assert spec is not None
    kernels = load_kernels(head_dim=spec.head_dim, group=spec.group)
    if kernels.pack(torch.zeros(2, 2, dtype=torch.bfloat16)) is None:
        pytest.skip("this processor's own library multiplies as fast")
    args = (spec, policy.weight, kernels)
    settings = {"mode": WeightsMode.PACKED, "dtype": torch.bfloat16}
    at_once = LlamaDecoder(*args, **settings)  # type: ignore[arg-type]
    monkeypatch.setattr("hexpo.adapters.models.decode.llama.addresses_of", lambda layers: None)
    one_by_one = LlamaDecoder(*args, **settings)  # type: ignore[arg-type]
    lanes = [(decoder, decoder.open(), decoder.open()) for decoder in (at_once, one_by_one)]
    for feeds in (([3, 5, *range(40)], [7]), ([8], [9]), ([4, 4], [2])):
        one, other = (
            decoder.feed([Feed(lane, ids) for lane, ids in zip(both, feeds, strict=True)])
            for decoder, *both in lanes
        )
        assert torch.equal(one, other)


def test_a_long_prompt_passes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a pass is bounded by rows, not by the prompt."""
    monkeypatch.setattr("hexpo.adapters.models.decode.llama.ROWS", 16)
    policy = policy_of("llama tied")
    decoder = decoder_of(policy, "live native")
    ids = [i % 96 for i in range(100)]
    logits = decoder.feed([Feed(decoder.open(), ids), Feed(decoder.open(), ids[:37])])
    expected = torch.stack([full_forward(policy, ids), full_forward(policy, ids[:37])])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_more_sequences_than_a_pass_holds_all_get_their_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row each, in several passes."""
    monkeypatch.setattr("hexpo.adapters.models.decode.llama.ROWS", 2)
    policy = policy_of("llama tied")
    decoder = decoder_of(policy, "live native")
    ids = [[3], [4], [5], [6], [7]]
    logits = decoder.feed([Feed(decoder.open(), own) for own in ids])
    expected = torch.stack([full_forward(policy, own) for own in ids])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 80)), max_size=30))
@settings(deadline=None, max_examples=60)
def test_shared_blocks_are_never_written_and_none_is_lost(steps: list[tuple[int, int]]) -> None:
    """Random opens, growths, forks and closes: what a sequence wrote is what it reads, and with
    the last one closed every block is free."""
    cache = BlockCache(
        layers=1, kv_heads=1, head_dim=16, dtype=torch.float32, device=torch.device("cpu")
    )
    lanes: list[Lane] = []
    contents: list[list[int]] = []
    stamp = 0
    for action, number in steps:
        place = number % len(lanes) if lanes else 0
        if action == 0 or not lanes:
            lanes.append(Lane())
            contents.append([])
        elif action == 1:
            lane, start = lanes[place], lanes[place].length
            cache.extend([lane], [number])
            values = cache.layer(0)[1]
            for position in range(start, lane.length):
                stamp += 1
                contents[place].append(stamp)
                values[lane.blocks[position // 32], 0, position % 32] = stamp
        elif action == 2:
            length = min(number, lanes[place].length)
            lanes.append(cache.fork(lanes[place], length))
            contents.append(contents[place][:length])
        else:
            cache.close(lanes.pop(place))
            contents.pop(place)
        for lane, content in zip(lanes, contents, strict=True):
            rows = [cache.layer(0)[1][block, 0, :, 0] for block in lane.blocks]
            kept = torch.cat(rows)[: lane.length].tolist() if rows else []
            assert kept == content
    for lane in lanes:
        cache.close(lane)
    assert cache.used == 0


def test_a_pool_grows_with_what_is_used() -> None:
    """8 prompts of 44 tokens with 8 answers of 64 each need 200 blocks at the end; the pool, which
    doubles, has 256. One block too many a sequence and step would make it 512, which is too large
    to be kept between two versions."""
    cache = BlockCache(
        layers=1, kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu")
    )
    prompts = [Lane() for _ in range(8)]
    cache.extend(prompts, [44] * 8)
    answers = [cache.fork(prompt, 44) for prompt in prompts for _ in range(8)]
    for prompt in prompts:
        cache.close(prompt)
    for _ in range(64):
        cache.extend(answers, [1] * 64)
    assert cache.used == 8 + 64 * 3
    assert len(cache.layer(0)[0]) == 256


@given(
    st.integers(0, 2**31),
    st.integers(0, 30),
    st.floats(0.05, 1.0),
    st.floats(0.0, 0.9),
    st.floats(0.3, 2.0),
)
@settings(deadline=None, max_examples=100)
def test_a_floor_keeps_what_the_filters_keep(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    """Top-k, then top-p of what is left, then min-p, one after the other on a sorted row."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed))
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    floor = floors_of(logits, [sampling])
    p, order = (logits[0].double() / temperature).softmax(-1).sort(descending=True)
    keep = torch.arange(40) < (top_k or 40)
    p = torch.where(keep, p, 0) / p[keep].sum()
    reached = p.cumsum(0) - p
    keep &= reached < top_p
    keep &= p >= min_p * p[0]
    edge = ((reached - top_p).abs() < 1e-6) | ((p - min_p * p[0]).abs() < 1e-6)
    kept = set((logits[0] >= floor[0]).nonzero()[:, 0].tolist())
    wanted = set(order[keep].tolist())
    assert kept ^ wanted <= set(order[edge].tolist())


def test_no_filter_leaves_every_id_possible() -> None:
    """The usual row costs nothing: its floor is -inf."""
    floors = floors_of(torch.zeros(2, 8), [Sampling(), Sampling(top_k=3)])
    assert floors.tolist() == [float("-inf"), 0.0]


def test_a_nucleus_wider_than_the_candidates_is_found_in_the_whole_row() -> None:
    """Top-p over a flat row of more ids than are looked at first."""
    logits = torch.linspace(0, 1e-3, 4000)[None]
    floor = floors_of(logits, [Sampling(top_p=0.75)])
    assert int((logits >= floor[:, None]).sum()) == pytest.approx(3000, abs=3)
