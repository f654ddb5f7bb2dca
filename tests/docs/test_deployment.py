"""The page on deployment names options that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from hexpo.adapters.cluster import local
from hexpo.adapters.cluster import ray as on_ray
from hexpo.entrypoints.cli.main import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "deployment.md").read_text()
ON_RAY = set(attrs.fields_dict(on_ray.Config))
EITHER = ON_RAY | set(attrs.fields_dict(local.Config))


def documents() -> list[Any]:
    """What the page's YAML blocks say."""
    return [
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    ]


def test_every_option_of_a_cluster_is_one() -> None:
    """M1: in the text, in the blocks and in the scripts."""
    named = set(re.findall(r"cluster\.options\.(\w+)", PAGE))
    assert {"host", "interface", "accelerators", "address", "oversubscribe"} <= named <= EITHER
    inline = [yaml.safe_load(f"{{{text}}}") for text in re.findall(r"`(cluster: \{.*?\}\})`", PAGE)]
    sections = [one["cluster"] for one in [*documents(), *inline] if "cluster" in one]
    assert len(sections) == 3
    for section in sections:
        assert section["kind"] == "ray"
        assert set(section["options"]) <= ON_RAY


def test_the_manifest_mounts_what_it_claims_and_runs_commands_that_there_are() -> None:
    """Both kinds of node see the same folder."""
    (job,) = [one for one in documents() if one.get("kind") == "RayJob"]
    spec = job["spec"]["rayClusterSpec"]
    kinds = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for pod in [kind["template"]["spec"] for kind in kinds]:
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {
            mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]
        }
        assert set(mounts) == volumes
        assert mounts["runs"] == "/runs"
    for command in re.findall(r"(?:hexpo|run) ([a-z]+) (?:--|/|run)", PAGE):
        assert app[command] is not None


@pytest.mark.parametrize("script", re.findall(r"```bash\n(#!.*?)```", PAGE, flags=re.DOTALL))
def test_a_script_is_one(script: str, tmp_path: Path) -> None:
    """As far as a shell can say without Slurm."""
    import subprocess

    path = tmp_path / "job"
    path.write_text(script)
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
