"""Where a run's numbers and samples go."""
