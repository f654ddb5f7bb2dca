"""Training over many processes: one engine of the loop, N ranks of a backend."""

from hexpo.adapters.training.host.engine import RankedEngine
from hexpo.adapters.training.host.starting import Config, Launch, specs, start

__all__ = ["Config", "Launch", "RankedEngine", "specs", "start"]
