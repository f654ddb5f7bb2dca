"""Settings of the sources that read rows from files."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Config:
    """Where the rows lie and which of their fields mean what."""

    paths: tuple[str, ...] = attrs.field(validator=attrs.validators.min_len(1))
    """Files, in order; local paths or fsspec URLs, `*` allowed."""
    prompt: str = "prompt"
    """Field of the question: a text, or a list of `{role, content}`. Dots reach into a field."""
    truth: str | None = None
    """Field that the grader compares with; unset: `truth`, else `reward_model.ground_truth`."""
    truth_after: str | None = None
    """Keep only what follows this mark's last occurrence in the truth; `####` for GSM8K."""
    needs_truth: bool = True
    """Refuse a row without a truth; false for sets that no grader compares with anything."""
    id: str | None = None
    """Field of the row's id; unset: `id` where a row has it, else `<file name>:<row>`."""
    source: str | None = None
    """Field that names the data set; unset: `source`, else `data_source`, else empty."""
    template: str = "{prompt}"
    """What is asked where the question is a text; every field of the row may stand in braces."""
    system: str | None = None
    """A system message, put before rows that have none."""
    limit: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    """Read only so many rows, from the first; unset: all."""
    shuffle: bool = True
    """Draw each epoch in a seeded order of its own; false: in file order."""
