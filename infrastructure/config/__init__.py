"""The configuration of a run: schema, files and overrides, checks."""
