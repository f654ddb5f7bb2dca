"""What lies in the repository."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Written apart, so that this file does not find itself.
MACHINE_PATHS = re.compile(
    "|".join(["/" + "work/", "/" + "root/", r"\.\./" + "shared", r"[CD]:\\Users"])
)
BINARY = {".png", ".safetensors", ".gguf", ".pt", ".parquet"}


def _files() -> Iterator[Path]:
    """Text files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        pytest.skip("not a git checkout")
    for name in answer.stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink() and path.suffix not in BINARY:
            yield path


def test_no_file_mentions_a_path_of_one_machine() -> None:
    """The repository works anywhere."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in _files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []


def test_git_ignores_no_source() -> None:
    """A pattern such as `models/` without a leading slash hides a folder of the house."""
    layers = ["domain", "application", "adapters", "infrastructure", "entrypoints", "tests"]
    command = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", *layers]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        pytest.skip("not a git checkout")
    ignored = [name for name in answer.stdout.splitlines() if "__pycache__" not in name]
    assert ignored == []


def test_no_file_is_too_large_to_read() -> None:
    """Data sets and weights do not belong here."""
    found = {str(p.relative_to(ROOT)): p.stat().st_size for p in _files()}
    assert {name: size for name, size in found.items() if size > 1 << 20} == {}


def test_the_package_is_links_to_the_layer_folders() -> None:
    """`hexpo.domain` is `domain`: committed as relative links."""
    package = ROOT / ".src" / "hexpo"
    links = {
        path.name: path.readlink().as_posix() for path in package.iterdir() if path.is_symlink()
    }
    layers = ("adapters", "application", "domain", "entrypoints", "infrastructure")
    assert links == {name: f"../../{name}" for name in layers}


def test_every_pinned_version_is_exact_and_fits_the_declared_ranges() -> None:
    """Q3: the constraints and the package's own requirements agree."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(versions) == len(pins)
    installed = ("demo", "lora", "math", "parquet", "trackers")
    extras = project["project"]["optional-dependencies"]
    declared = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *(text for name in installed for text in extras[name]),
    ]
    for text in declared:
        requirement = Requirement(text)
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text
