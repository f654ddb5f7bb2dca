"""The data plane's value: two tables without padding."""

from hexpo.domain.batch.assemble import Masked, assemble
from hexpo.domain.batch.batch import Batch, Sequences
from hexpo.domain.batch.encoding import from_bytes, to_bytes
from hexpo.domain.batch.schema import SCHEMA, Column, Kind, Schema, Table

__all__ = [
    "SCHEMA",
    "Batch",
    "Column",
    "Kind",
    "Masked",
    "Schema",
    "Sequences",
    "Table",
    "assemble",
    "from_bytes",
    "to_bytes",
]
