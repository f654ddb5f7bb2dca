"""Training in plain torch: one process, or FSDP2 over many ranks."""

from hexpo.adapters.models.lora import Lora
from hexpo.adapters.training.fsdp.building import build, build_frozen
from hexpo.adapters.training.fsdp.config import Config, Schedule
from hexpo.adapters.training.fsdp.engine import FsdpEngine
from hexpo.adapters.training.fsdp.frozen import FrozenScorer
from hexpo.adapters.training.fsdp.ranks import RANK, Model, require_ranks

__all__ = [
    "RANK",
    "Config",
    "FrozenScorer",
    "FsdpEngine",
    "Lora",
    "Model",
    "Schedule",
    "build",
    "build_frozen",
    "require_ranks",
]
