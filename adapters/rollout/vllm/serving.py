"""The entry of a vLLM process that is composed without a run's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm.building import build
from hexpo.adapters.rollout.vllm.engine import VllmEngine
from hexpo.adapters.rollout.vllm.scores import Scores
from hexpo.adapters.rollout.vllm.settings import Config, readers
from hexpo.adapters.rollout.wire import RolloutService
from hexpo.application.ports.cluster import Context

SERVE = "hexpo.adapters.rollout.vllm:serve"
"""What `ProcessSpec.entry` names."""


class VllmService(RolloutService):
    """Serves the port, and teachers."""

    def __init__(self, engine: VllmEngine, *, readers: Sequence[str]) -> None:
        super().__init__(engine, readers=readers)
        self._vllm = engine

    async def score(self, prompt_ids: Sequence[int], *, top_k: int = 0) -> Scores:
        """See `VllmEngine.score`."""
        return await self._vllm.score(prompt_ids, top_k=top_k)


async def serve(value: Mapping[str, Any], context: Context) -> VllmService:
    """Entry of a cluster.

    Args: value: `model`, `precision` (fp32, bf16), `options` (fields of Config) and `receiver`
        (a module with `build_receiver`; none: weights never change).
    """
    config = Config(**value.get("options", {}))
    engine = await build(
        config,
        model=value["model"],
        precision=Precision(value.get("precision", "bf16")),
        receiver=value.get("receiver", ""),
        reader=context.name,
    )
    return VllmService(engine, readers=readers(config, context.name))
