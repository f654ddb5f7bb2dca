"""Where engine processes run: on this machine, or on a Ray cluster."""
