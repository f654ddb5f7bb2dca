"""Checkpoints in a folder of this machine: a save is whole or absent."""

from hexpo.adapters.checkpoints.local.store import Config, LocalCheckpoints, build

__all__ = ["Config", "LocalCheckpoints", "build"]
