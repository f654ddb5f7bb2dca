"""Training over many processes: one engine of the loop, N ranks of a backend."""

from hexpo.adapters.training.host.engine import RankedEngine
from hexpo.adapters.training.host.starting import Config, Launch, start

__all__ = ["Config", "Launch", "RankedEngine", "start"]
