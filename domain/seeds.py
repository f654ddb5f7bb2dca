"""Random seeds as a pure function of what they are for, so that no order of events changes one."""

from __future__ import annotations

import hashlib


def seed_for(*parts: int | str) -> int:
    """A 63-bit seed from a run's seed and names, equal on every machine and in every order.

    `seed_for(run_seed, "sample", ticket, sample)` is the seed of one answer, for example.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
