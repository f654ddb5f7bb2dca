"""Other libraries, timed in environments of their own."""
