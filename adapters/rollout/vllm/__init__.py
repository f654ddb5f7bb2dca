"""Rollout by vLLM, in a process and an environment of its own."""

from hexpo.adapters.rollout.vllm.building import build
from hexpo.adapters.rollout.vllm.engine import VllmEngine
from hexpo.adapters.rollout.vllm.scorer import ServedScorer
from hexpo.adapters.rollout.vllm.scores import Scores
from hexpo.adapters.rollout.vllm.serving import SERVE, serve
from hexpo.adapters.rollout.vllm.settings import (
    Config,
    cannot_teach,
    capabilities,
    environment,
    readers,
)

__all__ = [
    "SERVE",
    "Config",
    "Scores",
    "ServedScorer",
    "VllmEngine",
    "build",
    "cannot_teach",
    "capabilities",
    "environment",
    "readers",
    "serve",
]
