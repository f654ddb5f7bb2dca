"""The example application of docs/embedding.md, as its reader would run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "embedding"
PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"


def test_an_application_with_packages_of_the_same_names_embeds_a_run(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Its own `domain` and `application` collide with nothing; its reward and its engine replace
    hexpo's; its metrics come back."""
    done = subprocess.run(
        [sys.executable, "main.py", str(tiny_model), str(tmp_path / "runs")],
        cwd=EXAMPLE, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert len(numbers["rewards"]) == 2
    assert all(0 <= reward <= 1 for reward in numbers["rewards"])
    assert numbers["answers"] == 2 * 2 * 4
    assert (tmp_path / "runs" / "embedded" / "metrics.jsonl").is_file()


def test_the_page_shows_code_that_is_in_the_example() -> None:
    """Each Python block of the page stands in one of the example's files, so it cannot rot."""
    sources = [_words(path.read_text()) for path in EXAMPLE.rglob("*.py")]
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        assert any(_words(block) in source for source in sources), block


def _words(text: str) -> str:
    return " ".join(text.split())
