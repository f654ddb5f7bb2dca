"""What every checkpoint store promises."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hexpo.adapters.checkpoints import local
from hexpo.entrypoints.testing.checkpoints import CONTRACT, Check, Open

OPENERS: dict[str, Open] = {
    "local": lambda folder: local.build(local.Config(keep=2), folder=folder),
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("open_store", OPENERS.values(), ids=OPENERS.keys())
def test_a_checkpoint_store_keeps_its_contract(
    check: Check, open_store: Open, tmp_path: Path
) -> None:
    """H3, H4, H5: the newest whole save is what any process finds, whatever befell the others."""
    asyncio.run(check(open_store, tmp_path / "checkpoints"))
