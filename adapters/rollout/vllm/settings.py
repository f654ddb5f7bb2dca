"""Settings of vLLM, and what follows from them before anything is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import ge, gt

from hexpo.application.ports.rollout import PauseMode, RolloutCapabilities


@attrs.frozen(kw_only=True)
class Config:
    """Settings of a vLLM replica."""

    slots: int = attrs.field(default=64, validator=ge(1))
    """Most answers that are generated at once."""
    max_tokens: int = attrs.field(default=0, validator=ge(0))
    """Most tokens of prompt and answer together; 0 is what the model was made for."""
    cache_gib: float = attrs.field(default=1.0, validator=gt(0))
    """Memory of keys and values on a processor; on an accelerator `memory_share` counts."""
    memory_share: float = attrs.field(default=0.9, validator=gt(0))
    """Share of an accelerator's memory that the engine takes, weights included."""
    tensor_parallel: int = attrs.field(default=1, validator=ge(1))
    """Devices that one replica is split over."""
    eager: bool = True
    """Compile nothing: starts in half a minute instead of minutes, and answers slower."""
    sleep: bool = False
    """Give device memory back between generations; accelerators only."""
    adapter_rank: int = attrs.field(default=0, validator=ge(0))
    """Largest rank of low-rank adapters that come by themselves (`training.options.sent: adapters`)
    and are added to the base; 0: weights come whole."""
    adapter_alpha: float = attrs.field(default=32.0, validator=gt(0))
    """As the trainer's `lora.alpha`, which does not travel: it scales such adapters, over rank."""
    top_k: int = attrs.field(default=20, validator=ge(0))
    """Most ids a position that `score` may be asked for."""
    log_level: str = "ERROR"
    """Of vLLM's own log."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    """Further arguments of the installed engine, by its own names; unknown ones are refused."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that vLLM reads from nowhere else (VLLM_CPU_OMP_THREADS_BIND, ...)."""
    python: str = ""
    """Interpreter of the environment that vLLM is installed in; empty: the run's own."""


def capabilities(config: Config) -> RolloutCapabilities:
    """What an engine of these settings can do, stop texts as far as its tokenizer reads."""
    return RolloutCapabilities(
        pause_modes=frozenset(PauseMode),
        filtered_logprobs=True,
        stop_texts=True,
        overlap=True,
        sleep=config.sleep,
        adapters=config.adapter_rank > 0,
    )


def cannot_teach(
    config: Config, *, temperature: float, longest: int, wide: bool
) -> Mapping[str, str]:
    """Why an engine of these settings cannot score a run's answers: reasons, by the option to
    change; of none where it is the engine itself.

    Args: temperature: that answers are sampled at. longest: tokens of prompt and answer. wide:
        likeliest ids are asked for.
    """
    found = {}
    if temperature != 1:
        found[""] = (
            f"vllm scores given ids at temperature 1, and rollout.temperature is {temperature:g}:"
            " use 1, or a backend of training (fsdp) for this model"
        )
    if wide and not config.top_k:
        found["top_k"] = "0, but its likeliest ids are compared; use the number to keep"
    if 0 < config.max_tokens <= longest:
        found["max_tokens"] = (
            f"{config.max_tokens}: scoring {longest} tokens of prompt and answer takes room for one"
            f" more; use {longest + 1}, or 0"
        )
    if config.sleep:
        found["sleep"] = "nothing lets a teacher sleep; remove it"
    if config.adapter_rank:
        found["adapter_rank"] = "a teacher's weights never change; remove it"
    return found


def environment(config: Config) -> dict[str, str]:
    """Variables of a replica's process, set before its interpreter starts; vLLM reads them nowhere
    else. The user's own win."""
    found = {
        "VLLM_LOGGING_LEVEL": config.log_level,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "OMP_WAIT_POLICY": "passive",
        # Weights are loaded by another thread than the first: with a heap of its own it would give
        # each large one back to the kernel, and wait for cleared pages at the next.
        "MALLOC_ARENA_MAX": "1",
    }
    runtime = Path(config.python or sys.executable).parent.parent / "lib" / "libiomp5.so"
    if runtime.is_file():  # vLLM's build for processors wants Intel's threads preloaded
        found["LD_PRELOAD"] = str(runtime)
        found["KMP_BLOCKTIME"] = "5"  # milliseconds that an idle one spins; 200 by itself
        if config.tensor_parallel == 1:  # the model runs in the scheduler's process: one less to
            found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # start, and all threads are the model's
    return {**found, **config.environment}


def readers(config: Config, name: str) -> tuple[str, ...]:
    """Names under which a replica's workers read a transfer: every rank reads for itself."""
    if config.tensor_parallel == 1:
        return (name,)
    return tuple(f"{name}/{rank}" for rank in range(config.tensor_parallel))
