"""Text and ids."""
