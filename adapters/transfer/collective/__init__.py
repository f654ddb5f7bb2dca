"""Weights by broadcast from the trainer's first rank: gloo between processors, nccl between
accelerators."""

from hexpo.adapters.transfer.collective.receiver import build_receiver
from hexpo.adapters.transfer.collective.sender import build_sender
from hexpo.adapters.transfer.collective.transfer import Config, build

__all__ = ["Config", "build", "build_receiver", "build_sender"]
