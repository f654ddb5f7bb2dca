"""What is compiled, where it is kept, and what runs without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexpo.adapters.models.kernels import (
    load_kernels,
)
from hexpo.adapters.models.kernels import native as native_module

HEAD, GROUP = 32, 3
NATIVE = load_kernels(head_dim=HEAD, group=GROUP)

needs_compiler = pytest.mark.skipif(not NATIVE.native, reason="no C compiler here")


def test_without_a_compiler_the_eager_twins_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code is an option, never a need."""
    monkeypatch.setattr(native_module, "COMPILERS", ("no-such-compiler",))
    assert not load_kernels(head_dim=HEAD, group=GROUP).native


@needs_compiler
def test_compiled_files_are_kept_whole_and_named_by_what_they_depend_on(tmp_path: Path) -> None:
    """One file for each storage type, none half-written; a second load compiles nothing."""
    load_kernels(head_dim=16, group=1, folder=tmp_path)
    first = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len([path for path in first if path.name.startswith("kernels-")]) == 2
    assert all(path.suffix == ".so" for path in first)
    load_kernels(head_dim=16, group=1, folder=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == first
