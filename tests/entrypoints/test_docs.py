"""Generated pages are those that the schema gives."""

from __future__ import annotations

from pathlib import Path

import attrs

from hexpo.domain.algorithms import ELSEWHERE, lines
from hexpo.entrypoints.docs import algorithms, configuration
from hexpo.infrastructure.config.choices import KLPlace
from hexpo.infrastructure.config.documentation import fields_of, lines_under
from hexpo.infrastructure.config.schema import FurtherModel, RunConfig, TermSection

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_configuration_page_is_up_to_date() -> None:
    """Write it with `python -m hexpo.entrypoints.docs`."""
    assert PAGE.read_text(encoding="utf-8") == configuration()


def test_the_page_of_algorithms_is_up_to_date_and_lists_them_all() -> None:
    """Write it with `python -m hexpo.entrypoints.docs`."""
    page = PAGE.with_name("algorithms.md").read_text(encoding="utf-8")
    assert page == algorithms()
    assert page.count("\n### ") == len(list(lines()))
    for names in ELSEWHERE.values():
        assert all(f"\n- `{name}`" in page for name in names)
    assert " at 0x" not in page


def test_every_key_and_every_choice_has_a_line_of_documentation() -> None:
    """The page has no empty cell."""
    for field in [
        *fields_of(RunConfig),
        *fields_of(TermSection),
        *fields_of(FurtherModel),
    ]:
        if field.key not in {"trackers", "models"}:
            assert field.text, field.key
            assert not field.text.startswith("<br>"), field.key
        assert "`: <br>" not in field.text, field.key
    assert lines_under(KLPlace)["REWARD"].startswith("Subtracted")


def test_every_section_has_a_line_of_documentation() -> None:
    """Sections are headings of the page."""
    texts = lines_under(RunConfig)
    assert set(texts) == {field.name for field in attrs.fields(RunConfig)}
