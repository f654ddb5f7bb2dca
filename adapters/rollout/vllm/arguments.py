"""Settings become the installed engine's own arguments."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm.adapter import room_for
from hexpo.adapters.rollout.vllm.settings import Config
from hexpo.domain.errors import ConfigurationError

WORKER = "hexpo.adapters.rollout.vllm.worker.WeightsExtension"
"""Mixed into vLLM's workers; it takes weights in there."""


def engine_arguments(
    config: Config,
    *,
    model: Path,
    precision: Precision,
    known: Collection[str],
    on_processor: bool = False,
) -> dict[str, Any]:
    """Arguments of vLLM's AsyncEngineArgs.

    Args: known: the names that the installed engine knows.
        on_processor: of the build for processors. Its cache has a size in bytes; and no prompt is
            cut in two, as vLLM 0.32 dies there of a seeded request whose prompt is cut: it turns
            its generator back, which a processor's cannot do.
    Raises: ConfigurationError: an unknown argument, with the nearest known one, or one that
        hexpo sets itself; all of them at once.
    """
    own: dict[str, Any] = {
        "model": str(model),
        "dtype": "float32" if precision is Precision.FP32 else "bfloat16",
        "max_num_seqs": config.slots,
        "tensor_parallel_size": config.tensor_parallel,
        "enforce_eager": config.eager,
        "enable_sleep_mode": config.sleep,
        "gpu_memory_utilization": config.memory_share,
        "max_logprobs": max(1, config.top_k),
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "worker_extension_cls": WORKER,
        "scheduling_policy": "priority",
        "generation_config": "vllm",
        "enable_log_requests": False,
    }
    if config.max_tokens:
        own["max_model_len"] = config.max_tokens
    if config.adapter_rank:
        room = room_for(config.adapter_rank)
        own |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}
    free: dict[str, Any] = {
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enable_prefix_caching": True,
    }
    if config.tensor_parallel > 1:  # inside a Ray actor vLLM would ask Ray for more of them
        free["distributed_executor_backend"] = "mp"
    if on_processor:
        own["kv_cache_memory_bytes"] = int(config.cache_gib * 2**30)
        free["enable_chunked_prefill"] = False
    _refuse(config.arguments, own, known)
    return {**{k: v for k, v in free.items() if k in known}, **config.arguments, **own}


def _refuse(given: Mapping[str, Any], own: Mapping[str, Any], known: Collection[str]) -> None:
    problems = []
    for name in given:
        if name in own:
            problems.append(f"{name} is set by hexpo; use the option that stands for it")
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"the installed vLLM has no argument {name}{hint}")
    if problems:
        raise ConfigurationError("rollout.options.arguments: " + "; ".join(problems))
