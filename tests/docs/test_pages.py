"""The pages' code is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> dict[str, str]:
    """Python blocks that begin with a comment naming their file."""
    text = (DOCS / page).read_text()
    found = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", text, flags=re.DOTALL)
    return dict(found)


@pytest.mark.slow
def test_the_page_on_losses_works_as_printed(tmp_path: Path) -> None:
    """docs/adding-a-loss.md: its functions pass hexpo's own checks and its own test."""
    for name, code in blocks("adding-a-loss.md").items():
        (tmp_path / name).write_text(code)
    (tmp_path / "test_estimator.py").write_text(
        "import torch\n"
        "from my_estimator import best_or_nothing\n"
        "from hexpo.domain.estimators import Estimator\n"
        "def test_estimator():\n"
        "    estimator = Estimator(function=best_or_nothing)\n"
        "    assert estimator.needs.sequences == ('score', 'scored', 'group')\n"
        "    made = best_or_nothing(\n"
        "        score_S=torch.tensor([1.0, 0.0, 9.0, 2.0]),\n"
        "        scored_S=torch.tensor([True, True, False, True]),\n"
        "        group_S=torch.tensor([7, 7, 7, 8]),\n"
        "    )\n"
        "    assert made.tolist() == [1.0, -0.5, 0.0, 1.0]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
