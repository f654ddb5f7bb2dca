"""Training of a policy in one process, in plain torch; the place where FSDP2 ranks will stand."""

from hexpo.adapters.models.lora import Lora
from hexpo.adapters.training.fsdp.building import build, build_frozen
from hexpo.adapters.training.fsdp.config import Config, Schedule
from hexpo.adapters.training.fsdp.engine import FsdpEngine
from hexpo.adapters.training.fsdp.frozen import FrozenScorer

__all__ = ["Config", "FrozenScorer", "FsdpEngine", "Lora", "Schedule", "build", "build_frozen"]
