"""The command line: one more user of the library."""

from hexpo.entrypoints.cli.main import main

__all__ = ["main"]
