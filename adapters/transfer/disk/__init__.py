"""Weights through files: safetensors in any folder that fsspec reaches; two versions are kept."""

from hexpo.adapters.transfer.disk.receiver import build_receiver
from hexpo.adapters.transfer.disk.sender import build_sender
from hexpo.adapters.transfer.disk.transfer import Config, build

__all__ = ["Config", "build", "build_receiver", "build_sender"]
