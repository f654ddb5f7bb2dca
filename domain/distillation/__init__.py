"""Divergences between a student and a teacher, over a vocabulary or the ids that were kept."""
