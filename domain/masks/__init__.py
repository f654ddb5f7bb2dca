"""Which tokens train: masks fixed before a step, and gates that read the current policy."""
