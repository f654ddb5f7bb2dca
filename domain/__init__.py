"""What is true of post-training, as pure functions and values: no I/O, clock, device or engine."""
