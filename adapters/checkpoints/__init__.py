"""Where saves are kept."""
