"""Engines that learn."""
