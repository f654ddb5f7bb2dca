"""Engines that generate, one folder each."""
