"""Adapters are found by name, and nothing is imported before it is chosen."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure import find


def test_an_adapter_is_its_folder() -> None:
    """One folder is one adapter; what a port's adapters share is none."""
    assert {"cpu", "cuda"} <= set(find.names("platform"))
    assert "wire" not in find.names("trackers")
    assert find.adapter("platform", "cpu").__name__ == "hexpo.adapters.platform.cpu"


def test_a_dotted_path_is_an_adapter_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application's own module, without any registration."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "tracker.py").write_text("def build(*, folder, console=None): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find.adapter("trackers", "own.tracker").__name__ == "own.tracker"
    assert find.config_type("trackers", "own.tracker") is None


def test_an_entry_point_of_another_distribution_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Group `hexpo.<port>`; the name is the one in the configuration."""
    (tmp_path / "their_tracker.py").write_text("def build(*, folder, console=None): ...\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hexpo.trackers]\ntheirs = their_tracker\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.metadata.MetadataPathFinder().invalidate_caches()
    assert "theirs" in find.names("trackers")
    assert find.adapter("trackers", "theirs").__name__ == "their_tracker"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("jsnol", "did you mean 'jsonl'"),
        ("no.such.module", "no such module"),
        ("json", "there are|did you mean"),
        ("hexpo.domain.seeds", "no function `build`"),
    ],
)
def test_what_is_no_adapter_is_refused(kind: str, message: str) -> None:
    """M1."""
    with pytest.raises(ConfigurationError, match=message):
        find.adapter("trackers", kind)


def test_an_adapter_whose_own_import_fails_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O5: the first failure is the one shown."""
    (tmp_path / "broken_adapter.py").write_text("import not_installed_at_all\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "broken.py").write_text("import not_installed_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_installed_at_all"):
        find.adapter("trackers", "pack.broken")


def test_looking_for_names_imports_no_adapter_and_no_torch() -> None:
    """Nothing is imported before it is chosen; a platform is chosen before torch is loaded."""
    code = (
        "import sys; from hexpo.infrastructure import find; find.names('rollout');"
        " find.adapter('platform', 'cpu');"
        " print([m for m in sys.modules if m.startswith(('torch', 'transformers',"
        " 'hexpo.adapters.rollout'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
