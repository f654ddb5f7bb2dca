"""What is added to the outcome that estimators see, by name."""

from __future__ import annotations

from collections.abc import Mapping

from hexpo.domain.catalogue import Entry, by_name
from hexpo.domain.shaping.length import overlong_penalty

SHAPINGS: Mapping[str, Entry] = by_name(Entry(name="overlong", function=overlong_penalty))
"""Functions of sequences columns; the outcome as graded stays as it is."""
