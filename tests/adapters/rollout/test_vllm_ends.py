"""How vLLM fails and ends: what is said, and what stays behind."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexpo.adapters.rollout.vllm import failures
from hexpo.adapters.rollout.vllm.failures import FAILURES, REFUSALS, translated
from hexpo.adapters.rollout.vllm.leftovers import SHARED, remove, segments
from hexpo.domain.errors import EngineFailed, WrongValue


def test_a_start_that_failed_elsewhere_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O5: vLLM's own processes log the cause; "see above" is no cause."""
    log = tmp_path / "replica.log"
    log.write_text(
        "(EngineCore pid=7) ERROR 12-03 07:25:49 [core.py:1510]     raise ValueError(\n"
        "(EngineCore pid=7) ERROR 12-03 07:25:49 [core.py:1510] ValueError: 2 nodes are wanted\n"
        "(EngineCore pid=7) INFO 12-03 07:25:50 [core.py:9] done\n"
    )
    monkeypatch.setattr(failures.last_error, "__defaults__", (log,))
    wrong = RuntimeError("Engine core initialization failed. See root cause above.")
    with pytest.raises(EngineFailed, match=r"above\. <- ValueError: 2 nodes are wanted$"):
        with translated("starting"):
            raise wrong
    log.write_text("nothing")
    with pytest.raises(EngineFailed, match=r"above\.$"):
        with translated("starting"):
            raise wrong
    assert failures.last_error(tmp_path) == failures.last_error(tmp_path / "none") == ""


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared memory lies elsewhere here")
def test_shared_memory_of_a_killed_process_is_found_before_and_taken_away() -> None:
    """O3: vLLM's alone, of the given processes alone."""
    code = (
        "from multiprocessing import shared_memory as s, resource_tracker as r\n"
        "one = s.SharedMemory('psm_hexpo_test', create=True, size=64)\n"
        "other = s.SharedMemory('hexpo_test', create=True, size=64)\n"
        "print(flush=True); input()"
    )
    mine = [SHARED / "psm_hexpo_test", SHARED / "hexpo_test"]
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        found = segments([child.pid, 2**30])
        assert found == {mine[0]}
        assert segments([os.getpid()]) == set()
        remove(found)
        assert [path.exists() for path in mine] == [False, True]
        remove(found)
    finally:
        child.kill()
        child.communicate()
        remove(mine)


def test_vllm_s_errors_become_the_port_s_by_kind() -> None:
    """One table; a refusal is the caller's fault, everything else the engine's."""

    class VLLMValidationError(Exception):
        """As vLLM names it."""

    with pytest.raises(WrongValue, match="too long"), translated("request 'x'"):
        raise VLLMValidationError("too long")
    with pytest.raises(EngineFailed, match="ValueError: a <- KeyError") as raised, translated("x"):
        raise ValueError("a") from KeyError("b")
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.filterwarnings("ignore")
def test_the_tables_know_every_error_of_the_installed_vllm() -> None:
    """A new one must be sorted by hand."""
    from vllm import exceptions
    from vllm.v1.engine import exceptions as engine_exceptions

    found = {
        name
        for module in (exceptions, engine_exceptions)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, exceptions.VLLMError)
    }
    assert found == REFUSALS | FAILURES
