"""Procedural questions from reasoning-gym, split so that training never sees a held-out one."""

from hexpo.adapters.prompts.reasoning_gym.source import Config, Split, build

__all__ = ["Config", "Split", "build"]
