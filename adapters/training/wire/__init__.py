"""What all training engines share: how rows are found and split, and how a save is described."""

from hexpo.adapters.training.wire.description import describe, progress_of, ranks_of
from hexpo.adapters.training.wire.kept import blank, joined, kept_columns
from hexpo.adapters.training.wire.rows import columns_of, part_of
from hexpo.adapters.training.wire.skipping import counted, skipped
from hexpo.adapters.training.wire.split import by_row, split_rows

__all__ = [
    "blank",
    "by_row",
    "columns_of",
    "counted",
    "describe",
    "joined",
    "kept_columns",
    "part_of",
    "progress_of",
    "ranks_of",
    "skipped",
    "split_rows",
]
