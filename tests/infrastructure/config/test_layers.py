"""Files and overrides become one mapping, and each leaf knows where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure.config.layers import (
    Origin,
    leaves,
    merge,
    overrides,
    parse,
    read,
    resolve,
)

NAMES = st.sampled_from("abcd")
TREES = st.recursive(
    st.dictionaries(NAMES, st.integers() | st.none() | st.lists(st.integers(), max_size=2)),
    lambda inner: st.dictionaries(NAMES, inner | st.integers()),
    max_leaves=8,
)


@given(TREES, TREES, TREES)
def test_the_strongest_layer_that_names_a_leaf_decides_it(
    file: dict[str, Any], model: dict[str, Any], override: dict[str, Any]
) -> None:
    """Precedence is a pure function: override > file > model > default."""
    layers = {Origin.MODEL: model, Origin.FILE: file, Origin.OVERRIDE: override}
    resolved = resolve(layers)
    present = dict(leaves(resolved.values))
    for key, value in leaves(override):
        if value != {}:
            assert present[key] == value
            assert resolved.origins[key] is Origin.OVERRIDE
    assert set(resolved.origins) <= set(present)


@given(TREES, TREES)
def test_merging_changes_neither_side(below: dict[str, Any], above: dict[str, Any]) -> None:
    """Layers stay what they were."""
    before = (repr(below), repr(above))
    merge(below, above)
    assert (repr(below), repr(above)) == before


@given(TREES, TREES, TREES)
def test_layers_can_be_merged_in_any_grouping(
    a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]
) -> None:
    """Merging a mapping with a mapping is associative where no leaf hides a section."""
    if any(_hides(x, y) for x, y in ((a, b), (b, c), (a, c))):
        return
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


def _hides(a: dict[str, Any], b: dict[str, Any]) -> bool:
    for key in a.keys() & b.keys():
        sections = isinstance(a[key], dict), isinstance(b[key], dict)
        if sections[0] != sections[1] or (all(sections) and _hides(a[key], b[key])):
            return True
    return False


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("2E3", 2000.0),
        ("-1.5e-3", -0.0015),
        ("1.", 1.0),
        (".5", 0.5),
        ("3", 3),
        ("1_000", 1000),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("null", None),
        ("token-mean", "token-mean"),
        ("1e", "1e"),
    ],
)
def test_values_are_read_as_a_person_means_them(text: str, value: object) -> None:
    """A learning rate written 1e-5 is a number, not a text."""
    read_back = parse(text, where="here")
    assert read_back == value
    assert type(read_back) is type(value)


def test_overrides_nest_and_the_last_one_wins() -> None:
    """`a.b=value` from the command line."""
    assert overrides(["a.b=1", "a.c=[x, 2]", "a.b=3"]) == {"a": {"b": 3, "c": ["x", 2]}}


@pytest.mark.parametrize("argument", ["a.b", "=1", "a..b=1", ".a=1"])
def test_a_malformed_override_is_refused_with_the_form(argument: str) -> None:
    """M1."""
    with pytest.raises(ConfigurationError, match=r"key\.key=value"):
        overrides([argument])


def test_a_key_that_stands_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    """M2: the first of two would be ignored in silence."""
    path = tmp_path / "twice.yaml"
    path.write_text("run:\n  steps: 1\n  steps: 2\n")
    with pytest.raises(ConfigurationError, match=r"line 3.*'steps'.*twice"):
        read(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    """M3."""
    with pytest.raises(ConfigurationError, match="no configuration file"):
        read(tmp_path / "none.yaml")


def test_a_file_that_is_no_mapping_or_no_yaml_is_refused(tmp_path: Path) -> None:
    """M3."""
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n- 2\n")
    with pytest.raises(ConfigurationError, match="sections with keys"):
        read(path)
    path.write_text("a: [1\n")
    with pytest.raises(ConfigurationError, match="not valid YAML"):
        read(path)
    path.write_text("")
    assert read(path) == {}
