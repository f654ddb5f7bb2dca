"""Use cases: the order of things, through ports. Start at `application/ports`, then `train`."""
