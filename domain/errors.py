"""Every error that hexpo raises on purpose.

A message says what is wrong, where (key, row, rank, sample id) and what to do. Arguments are
positional, so that an error survives pickle on its way between processes.
"""

from __future__ import annotations


class HexpoError(Exception):
    """Root of the hierarchy: catch this to catch all that hexpo raises on purpose."""


class WrongColumn(HexpoError):
    """A tensor's axes, dtype or presence disagree with what a function needs."""


class WrongBatch(HexpoError):
    """The two tables of a batch do not fit each other or their schema."""


class MissingCount(HexpoError):
    """A denominator of the whole optimizer step was not given; there is no local fallback."""


class GroupTooSmall(HexpoError):
    """A group estimator is asked to work with too few samples per prompt (configuration only)."""


class WrongValue(HexpoError):
    """A value lies outside its meaningful range."""


class IllegalTransition(HexpoError):
    """A state machine got an event that its state does not expect."""


class ConfigurationError(HexpoError):
    """The configuration cannot run; the message lists every conflict at once."""


class MissingExtra(HexpoError):
    """A chosen technology is not installed; the message names the extra to install."""


class Unsupported(HexpoError):
    """A chosen adapter cannot do what is asked of it; the message names those that can."""


class DataError(HexpoError):
    """A prompt source is missing, empty or has a bad row; names file, row and field."""


class ModelError(HexpoError):
    """A model folder cannot be loaded, or its family is not supported for what is asked."""


class EngineFailed(HexpoError):
    """A training or rollout engine died; carries its own first error as the cause."""


class NoProgress(HexpoError):
    """An answer was cut again and again without a new token."""


class RewardUnavailable(HexpoError):
    """The grader itself is gone; no sample is blamed."""


class CheckpointError(HexpoError):
    """A checkpoint is missing, incomplete or belongs to another run."""


class NonFinite(HexpoError):
    """Too many optimizer steps in a row had a non-finite loss or gradient."""


class NotEnough(HexpoError):
    """A cluster has fewer devices than wanted; names both."""
