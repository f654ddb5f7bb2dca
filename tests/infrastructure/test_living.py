"""Whether the process that wrote something still lives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure import living, runs

CODE = """
import json
from hexpo.infrastructure import living
print(json.dumps(living.present()), flush=True)
input()
"""


@contextmanager
def another() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process, and what it says of itself."""
    command = [sys.executable, "-c", CODE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        if child.stdout is not None:
            yield child, json.loads(child.stdout.readline())
        child.kill()


def test_this_process_lives() -> None:
    """H5."""
    assert living.lives(living.present()) is True


def test_a_folder_is_its_trainers_alone_until_that_process_has_ended(tmp_path: Path) -> None:
    """H5: two would overwrite each other's metrics and checkpoints. A process that has ended, and
    that nobody has waited for yet, trains no more."""
    runs.mark(tmp_path, runs.State.RUNNING)
    runs.require_free(tmp_path)  # one's own
    with another() as (child, told):
        (tmp_path / runs.STATE).write_text(json.dumps({"state": "running", **told}))
        assert living.lives(told) is True
        assert runs.summary(tmp_path).state is runs.State.RUNNING
        with pytest.raises(ConfigurationError, match=f"trained by process {child.pid}"):
            runs.require_free(tmp_path)
        child.communicate("")
    assert living.lives(told) is False
    assert runs.summary(tmp_path).state is runs.State.DEAD
    runs.require_free(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs /proc")
def test_a_later_process_of_the_same_number_is_another() -> None:
    """H5: numbers are used again, in a container after each restart."""
    assert living.lives({**living.present(), "born": "1"}) is False


def test_nobody_knows_of_another_machine(tmp_path: Path) -> None:
    """A shared folder holds the runs of many: what runs elsewhere is not called dead here."""
    elsewhere = {**living.present(), "host": "another", "pid": 2**30}
    assert living.lives(elsewhere) is None
    (tmp_path / runs.STATE).write_text(json.dumps({"state": "running", **elsewhere}))
    assert runs.summary(tmp_path).state is runs.State.RUNNING
    runs.require_free(tmp_path)
