"""One folder per technology, grouped by the port that it implements."""
