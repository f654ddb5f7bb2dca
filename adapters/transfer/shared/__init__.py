"""The rollout reads the trainer's own module in the same process: nothing is moved."""

from hexpo.adapters.transfer.shared.transfer import SharedTransfer, build

__all__ = ["SharedTransfer", "build"]
