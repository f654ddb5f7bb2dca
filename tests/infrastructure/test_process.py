"""The restart that gives a command its platform's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.platform import cpu
from hexpo.infrastructure.process import RESTARTED, missing, with_environment

_names = st.dictionaries(st.sampled_from("ABCD"), st.sampled_from(["0", "1"]))


class Replaced(Exception):
    """Stands for the end of this process."""


def _restart(present: Mapping[str, str]) -> tuple[Sequence[str], Mapping[str, str]] | None:
    """The command and environment of the new process; None if this one goes on."""
    seen: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def replace(program: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        assert program == sys.executable
        seen.append((argv, environment))
        raise Replaced

    command = ["python", "-X", "utf8", "train.py", "a b"]
    try:
        with_environment(PLATFORM, command, present=present, replace=replace)
    except Replaced:
        return seen[0]
    return None


PLATFORM = cpu.build(cpu.Config(threads=2, spins=0, keep_memory=False))
WANTED = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}


@given(_names, _names)
def test_what_the_user_has_set_stays(wanted: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Precedence: user, then platform."""
    added = missing(wanted, present)
    assert {**wanted, **present} == {**present, **added}
    assert not added.keys() & present.keys()


def test_a_process_without_the_variables_is_replaced_by_the_same_command() -> None:
    """Interpreter options and arguments stay as they were; the user's own value too."""
    restart = _restart({"OMP_NUM_THREADS": "1", "HOME": "/home/user"})
    assert restart is not None
    argv, environment = restart
    assert argv == [sys.executable, "-X", "utf8", "train.py", "a b"]
    assert environment == {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "HOME": "/home/user",
        RESTARTED: "1",
    }


def test_a_process_that_has_them_goes_on() -> None:
    """No restart for nothing."""
    assert _restart(WANTED) is None
    assert _restart({name: "the user's" for name in WANTED}) is None


def test_a_restart_that_changed_nothing_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A wrapper that drops variables must not make an endless loop."""
    assert _restart({RESTARTED: "1"}) is None
    assert "OMP_WAIT_POLICY" in caplog.text


def test_the_new_process_has_its_arguments_and_the_same_id() -> None:
    """The real restart, once: terminal, id and arguments stay."""
    code = (
        "import os, sys\n"
        "from hexpo.adapters.platform import cpu\n"
        "from hexpo.infrastructure.process import with_environment\n"
        "print(os.getpid(), sys.argv[1:], os.environ.get('OMP_WAIT_POLICY'), flush=True)\n"
        "with_environment(cpu.build(cpu.Config(threads=2, spins=0)))\n"
        "print('on', 'torch' in sys.modules)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in WANTED}
    environment.pop("GLIBC_TUNABLES", None)
    environment.pop(RESTARTED, None)
    answer = subprocess.run(
        [sys.executable, "-c", code, "a b", "--c"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, on = answer.stdout.splitlines()
    assert first.replace("None", "passive") == second
    assert first.endswith("['a b', '--c'] None")
    assert on == "on False"
