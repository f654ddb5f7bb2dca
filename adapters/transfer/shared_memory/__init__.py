"""Weights through memory that the processes of one node share: written once, read by all."""

from hexpo.adapters.transfer.shared_memory.receiver import build_receiver
from hexpo.adapters.transfer.shared_memory.sender import build_sender
from hexpo.adapters.transfer.shared_memory.transfer import Config, build

__all__ = ["Config", "build", "build_receiver", "build_sender"]
