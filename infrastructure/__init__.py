"""Composition root: configuration, container, process runtime."""
